package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"terrace/compute"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
	"terrace/quant"
	"terrace/router"
)

// guesser is what an engine guesses experts with: fitted maps, or the routers of the layers ahead in a coarser type of their
// own. A router is float32 in most files, as large as an expert's part that a token touches, so that two of them for each
// layer would cost more than guesses save; in Q8_0 they take a quarter.
type guesser struct {
	name    string      // "gate-ahead", "fitted" or "" where nobody guesses
	ignored string      // why maps that are there are not used
	fitted  []fittedMap // nil: gate-ahead
	bytes   int64       // of the maps, or of the copies of routers
}

// predictorPath is where a model's fitted predictor lies.
func predictorPath(dir, fingerprint string) string {
	return filepath.Join(dir, "predictor-"+fingerprint+".bin")
}

// openGuesser decides who guesses, and what memory that takes.
func (e *Engine) openGuesser() error {
	g, o, c := &e.guesser, &e.opt, e.model.Config()
	if o.Predictor != "gate-ahead" && o.PredictorDir != "" {
		fp, err := e.file.Fingerprint()
		if err != nil {
			return err
		}
		path := predictorPath(o.PredictorDir, fp)
		g.fitted, err = readPredictor(path, fp, c)
		switch {
		case err == nil:
		case o.Predictor == "fitted":
			return fmt.Errorf("no fitted predictor: %w", err)
		case !errors.Is(err, fs.ErrNotExist):
			g.fitted, g.ignored = nil, err.Error()
			e.log.Warn("predictor profile is ignored", "reason", err)
		}
	} else if o.Predictor == "fitted" {
		return fmt.Errorf("%w: a fitted predictor is asked for, and no folder to look for it", ErrUsage)
	}
	if g.fitted != nil {
		g.name = "fitted"
		for i := range g.fitted {
			m := &g.fitted[i]
			g.bytes += int64(len(m.state.Data) + 4*(len(m.Prev)+len(m.Bias)))
		}
		return nil
	}
	g.name = "gate-ahead"
	g.bytes = int64(len(e.coarseRouters()) * c.Experts * guessType(c.Embd).RowBytes(c.Embd))
	return nil
}

// coarseRouters are the layers whose routers get a copy for guessing: those with a layer before them to guess from, whose
// own is not as coarse.
func (e *Engine) coarseRouters() []int {
	c := e.model.Config()
	if guessType(c.Embd) != gguf.Q8_0 {
		return nil
	}
	types, norms := make(map[string]gguf.Type), make(map[string]bool)
	for _, t := range e.model.Dense() {
		types[t.Name] = t.Type
		norms[t.Name] = t.In*t.Out == c.Embd
	}
	var out []int
	for l := 1; l < c.Layers; l++ {
		before := e.model.Rule(l-1) != nil || l > 1 && e.model.Rule(l-2) != nil
		if e.model.Rule(l) == nil || !before {
			continue
		}
		p := e.model.RouterParts(l)
		switch t, ok := types[p.Router]; {
		case !ok || !p.Plain() || !norms[p.Norm]: // a router of another kind: it guesses as it is
		case t == gguf.F32, t == gguf.F16, t == gguf.BF16:
			out = append(out, l)
		}
	}
	return out
}

// bindGuesser gives the model its guessing matrices; the dense weights are there.
func (e *Engine) bindGuesser() error {
	g := &e.guesser
	for i := range g.fitted {
		m := &g.fitted[i]
		if err := e.model.SetGuess(m.At, m.Target-m.At, m.state); err != nil {
			return fmt.Errorf("predictor: %w", err)
		}
	}
	if g.name != "gate-ahead" {
		return nil
	}
	layers := e.coarseRouters()
	made := make([]compute.Matrix, len(layers))
	errs := make([]error, len(layers))
	var next atomic.Int32
	var wg sync.WaitGroup
	for range min(max(e.opt.Threads, 1), len(layers)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(layers) {
					return
				}
				made[i], errs[i] = e.coarseRouter(layers[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, l := range layers {
		for k := 1; k <= min(e.opt.Lookahead, l); k++ {
			if e.model.Rule(l-k) == nil {
				continue
			}
			if err := e.model.SetGuess(l-k, k, made[i]); err != nil {
				return fmt.Errorf("predictor: %w", err)
			}
		}
	}
	return nil
}

// coarseRouter is a layer's router with the norm before it, for the residual divided by its root mean square.
func (e *Engine) coarseRouter(layer int) (compute.Matrix, error) {
	w, _, err := e.RouterMap(layer)
	if err != nil {
		return compute.Matrix{}, err
	}
	c := e.model.Config()
	m := compute.Matrix{Type: guessType(c.Embd), In: c.Embd, Out: c.Experts}
	m.Data = make([]byte, m.Type.RowBytes(c.Embd)*c.Experts)
	if err := quant.Encode(m.Type, m.Data, w); err != nil {
		return m, fmt.Errorf("%s: the router of layer %d: %w", e.opt.Path, layer, err)
	}
	return m, nil
}

// HasPredictor says that there is a fitted predictor for the model at o.Path that fits it.
func HasPredictor(o Options) bool {
	if o.PredictorDir == "" {
		return false
	}
	f, err := gguf.Open(o.Path)
	if err != nil {
		return false
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return false
	}
	fp, err := f.Fingerprint()
	if err != nil {
		return false
	}
	_, err = readPredictor(predictorPath(o.PredictorDir, fp), fp, m.Config())
	return err == nil
}

// SavePredictor keeps fitted maps of this model in the folder dir, where engines opened later find them, and returns the
// file's path and size. At no time is there a part of a file.
func (e *Engine) SavePredictor(dir string, maps []router.Map) (path string, size int64, err error) {
	fp, err := e.file.Fingerprint()
	if err != nil {
		return "", 0, err
	}
	path = predictorPath(dir, fp)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", 0, err
	}
	unlock, err := host.LockFile(path+".lock", heatLockWait)
	if err != nil {
		return "", 0, err
	}
	defer unlock()
	var b bytes.Buffer
	if err := WritePredictor(&b, fp, e.model.Config(), maps); err != nil {
		return "", 0, err
	}
	return path, int64(b.Len()), host.ReplaceFile(path, b.Bytes())
}

// newPredictor makes what a pipeline ranks guesses with.
func (e *Engine) newPredictor() (router.Predictor, error) {
	if e.guesser.fitted == nil {
		return new(router.GateAhead), nil
	}
	c := e.model.Config()
	maps := make([]router.Map, len(e.guesser.fitted))
	for i := range maps {
		maps[i] = e.guesser.fitted[i].Map
	}
	p, err := router.NewLinear(c.Layers, c.Experts, maps)
	if err != nil {
		return nil, err
	}
	p.Mul = multiplier()
	return p, nil
}
