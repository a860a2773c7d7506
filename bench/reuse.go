package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"terrace/engine"
	"terrace/internal/host"
	"terrace/plan"
)

// ReuseConfig says on what a model's reuse curve is measured.
type ReuseConfig struct {
	Engine engine.Options
	Texts  []string // nil: random tokens of the vocabulary, for models without training
	Tokens int      // at most; 0: 4096
	Dir    string   // folder in which the curve is kept; "": it is not kept
}

// Reuse replays the experts that texts use through the cache that ships, at every size at once. The texts are read as
// prompts, which takes no longer than a prompt does; their experts are counted token by token, as decoding would use them.
func Reuse(ctx context.Context, c ReuseConfig) (*plan.Curve, error) {
	if c.Tokens == 0 {
		c.Tokens = 4096
	}
	o := c.Engine
	o.Lookahead, o.Reserve = 0, reuseLogits
	if o.Context == 0 {
		o.Context = 1024
	}
	e, s, err := openRouted(o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer s.Close()
	cfg := e.Model().Config()
	var ids [][]int32
	source := "routing of texts through this model"
	if c.Texts != nil {
		ids, err = e.TextsPieces(c.Texts, e.Options().Context, c.Tokens)
		if err != nil {
			return nil, err
		}
	} else {
		source = "routing of random tokens through this model"
		rng := rand.New(rand.NewPCG(3, 4))
		for left := c.Tokens; left > 0; left -= e.Options().Context {
			piece := make([]int32, min(left, e.Options().Context))
			for i := range piece {
				piece[i] = int32(rng.IntN(cfg.Vocab))
			}
			ids = append(ids, piece)
		}
	}
	var with []int // layers that have experts
	place := make([]int, cfg.Layers)
	for l := range cfg.Layers {
		if e.Model().Rule(l) != nil {
			place[l] = len(with)
			with = append(with, l)
		}
	}
	m, err := plan.NewCurveMeter(source, len(with), cfg.Experts, cfg.TopK, nil)
	if err != nil {
		return nil, err
	}
	batch := make([][]int32, len(with)) // the choices of the pass under way, rows x top-k
	s.OnRoute(func(layer int, choices []int32) {
		i := place[layer]
		batch[i] = append(batch[i][:0], choices...)
	})
	step := max(1, min(e.Options().Batch, reuseLogits/4/cfg.Vocab))
	out := make([]float32, step*cfg.Vocab)
	token := make([][]int32, len(with))
	for _, piece := range ids {
		s.Reset()
		for at := 0; at < len(piece); at += step {
			n := min(step, len(piece)-at)
			// All logits are asked for, so that the last layer sees every row.
			if err := s.EvalAll(ctx, piece[at:at+n], out[:n*cfg.Vocab]); err != nil {
				return nil, err
			}
			for r := range n {
				for l := range batch {
					token[l] = batch[l][r*cfg.TopK : (r+1)*cfg.TopK]
				}
				m.Pass(token)
			}
		}
	}
	curve, err := m.Curve()
	if err != nil {
		return nil, err
	}
	curve.Uncertainty = reuseError
	if c.Dir == "" {
		return curve, nil
	}
	fp, err := e.File().Fingerprint()
	if err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(curve, "", "  ")
	if err == nil {
		err = os.MkdirAll(c.Dir, 0o755)
	}
	path := engine.CurvePath(c.Dir, fp)
	if err == nil {
		err = host.ReplaceFile(path, append(b, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("reuse curve %s: %w", filepath.Base(path), err)
	}
	return curve, nil
}

// reuseLogits is the memory for logits, which are asked for and thrown away.
const reuseLogits = 64 << 20

// reuseError is how far other texts may lie from a measured curve, in share of touches.
const reuseError = 0.04
