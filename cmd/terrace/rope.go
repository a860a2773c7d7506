package main

import (
	"github.com/urfave/cli/v2"

	"terrace/model"
)

// ropeOptions turns the flags of context extension, named as in llama.cpp, into what the model takes.
func ropeOptions(c *cli.Context) (model.RopeOptions, error) {
	var o model.RopeOptions
	if c.IsSet("rope-scaling") {
		if o.Scaling = c.String("rope-scaling"); o.Scaling == "" {
			return o, usagef("--rope-scaling is empty, want none, linear or yarn")
		}
	}
	if c.IsSet("rope-scale") && c.IsSet("rope-freq-scale") {
		return o, usagef("--rope-scale is %g and --rope-freq-scale is %g, want one of the two", c.Float64("rope-scale"), c.Float64("rope-freq-scale"))
	}
	for _, f := range []struct {
		name string
		to   *float64
	}{
		{"rope-scale", &o.FreqScale}, {"rope-freq-scale", &o.FreqScale}, {"rope-freq-base", &o.FreqBase},
		{"yarn-attn-factor", &o.AttnFactor}, {"yarn-beta-slow", &o.BetaSlow}, {"yarn-beta-fast", &o.BetaFast},
	} {
		v := c.Float64(f.name)
		if !c.IsSet(f.name) || v == -1 && f.name[0] == 'y' { // -1 leaves it to the file, as in llama.cpp
			continue
		}
		if !(v > 0) {
			return o, usagef("--%s is %g, want a number above 0", f.name, v)
		}
		if f.name == "rope-scale" {
			v = 1 / v
		}
		*f.to = v
	}
	if v := c.Float64("yarn-ext-factor"); c.IsSet("yarn-ext-factor") && v != -1 {
		if !(v >= 0) {
			return o, usagef("--yarn-ext-factor is %g, want a number of at least 0, or -1", v)
		}
		o.ExtFactor = &v
	}
	if o.OrigContext = c.Int("yarn-orig-ctx"); o.OrigContext < 0 {
		return o, usagef("--yarn-orig-ctx is %d, want at least 1 (0: as the file says)", o.OrigContext)
	}
	return o, nil
}
