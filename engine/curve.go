package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"terrace/gguf"
	"terrace/model"
	"terrace/plan"
)

// CurvePath is where the reuse curve of a model lies in the cache folder dir, where one was measured.
func CurvePath(dir, fingerprint string) string {
	return filepath.Join(dir, "curve-"+fingerprint+".json")
}

// CurveOf is what is known in the cache folder dir about how the model in f uses its experts again: a measured curve, else
// one from its heat profile. nil: nothing, or the folder is "".
// log, which may be nil, is told of files that are there and of no use.
func CurveOf(f *gguf.File, dir string, log *slog.Logger) *plan.Curve {
	if dir == "" {
		return nil
	}
	fp, err := f.Fingerprint()
	if err != nil {
		return nil
	}
	path := CurvePath(dir, fp)
	b, err := os.ReadFile(path)
	if err == nil {
		var c *plan.Curve
		if c, err = plan.ParseCurve(path, b); err == nil {
			return c
		}
	}
	useless := func(what string, err error) {
		if log != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn(what+" is ignored", "reason", err)
		}
	}
	useless("reuse curve", err)
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return nil
	}
	p, err := heatProfile(f, m, dir)
	if err != nil {
		return nil
	}
	h, err := p.Load()
	if err != nil {
		useless("heat profile", err)
		return nil
	}
	return plan.CurveFromHeat(fmt.Sprintf("heat profile of this model, %d tokens", h.Tokens), m.Config().TopK, h.Recent)
}
