package engine

import (
	"fmt"
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
func CurveOf(f *gguf.File, dir string) *plan.Curve {
	if dir == "" {
		return nil
	}
	fp, err := f.Fingerprint()
	if err != nil {
		return nil
	}
	path := CurvePath(dir, fp)
	if b, err := os.ReadFile(path); err == nil {
		if c, err := plan.ParseCurve(path, b); err == nil {
			return c
		}
	}
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
		return nil
	}
	return plan.CurveFromHeat(fmt.Sprintf("heat profile of this model, %d tokens", h.Tokens), m.Config().TopK, h.Recent)
}
