package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"terrace/gguf"
	"terrace/kernels"
	"terrace/model"
	"terrace/quant"
	"terrace/router"
)

// A fit of the predictor's maps: the model reads texts, and for each layer the normal equations of a ridge regression from
// its residual to the router scores one and two layers ahead are summed.

// FitMemory is what a fit takes beside the model: the sums held at once, and copies while they are solved. A large model's
// layers are fitted in several passes over the texts.
const FitMemory = 512 << 20

// fitRidge is the ridge relative to the mean squared feature. On tiny-moe anything from 1e-4 to 1e-2 gives the same recall
// within 0.2 points.
const fitRidge = 1e-3

// Scan shows a visitor every layer of every token of some texts, batch by batch. Batch is the number of the rows in it;
// for each layer with experts seen holds what it saw, nil for other layers. first says that the batch begins a text.
func (s *Session) Scan(ctx context.Context, texts [][]int32, visit func(seen []*model.Watched, rows int, first bool) error) error {
	m := s.e.model
	c := m.Config()
	if err := s.e.oneStream(); err != nil {
		return err
	}
	layers := make([]*model.Watched, c.Layers)
	hold := make([]model.Watched, c.Layers)
	m.SetWatch(func(w model.Watched) {
		h := &hold[w.Layer]
		h.Layer, h.Rows = w.Layer, w.Rows
		h.In = append(h.In[:0], w.In...)
		h.Mid = append(h.Mid[:0], w.Mid...)
		h.Scores = append(h.Scores[:0], w.Scores...)
		layers[w.Layer] = h
	})
	defer m.SetWatch(nil)
	rows := max(1, min(s.e.opt.Batch, 4<<20/c.Vocab))
	out := make([]float32, rows*c.Vocab)
	for i, ids := range texts {
		s.Reset()
		ids = ids[:min(len(ids), s.e.opt.Context)]
		for at := 0; at < len(ids); at += rows {
			n := min(rows, len(ids)-at)
			clear(layers)
			if err := s.EvalAll(ctx, ids[at:at+n], out[:n*c.Vocab]); err != nil {
				return fmt.Errorf("text %d: %w", i+1, err)
			}
			if err := visit(layers, n, at == 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// oneStream refuses models whose routers do not read a normalised residual: a mixer of several streams comes first, which
// guesses run as it is.
func (e *Engine) oneStream() error {
	if n := e.model.Streams(); n > 1 {
		return fmt.Errorf("%s: the residual is %d streams, and maps are fitted to a residual of one", e.opt.Path, n)
	}
	return nil
}

// Normalised divides a residual row by its root mean square.
func (e *Engine) Normalised(dst, x []float32) {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	scale := float32(1 / math.Sqrt(sum/float64(len(x))+float64(e.model.Config().Eps)))
	for i, v := range x {
		dst[i] = float32(v * scale)
	}
}

// RouterMap is a layer's own router with the norm before it, experts x embd, and its bias, nil where there is none: what
// gate-ahead multiplies with the normalised residual and adds. Errors are those of decoding the tensors.
func (e *Engine) RouterMap(layer int) (w, bias []float32, err error) {
	c := e.model.Config()
	if err := e.oneStream(); err != nil {
		return nil, nil, err
	}
	p := e.model.RouterParts(layer)
	if w, err = e.denseFloats(p.Router, c.Experts*c.Embd); err != nil {
		return nil, nil, err
	}
	g, err := e.denseFloats(p.Norm, c.Embd)
	if err != nil {
		return nil, nil, err
	}
	for i := range w {
		w[i] *= g[i%c.Embd] * p.Factor
	}
	if p.Bias != "" {
		bias, err = e.denseFloats(p.Bias, c.Experts)
	}
	return w, bias, err
}

func (e *Engine) denseFloats(name string, n int) ([]float32, error) {
	for _, t := range e.model.Dense() {
		if t.Name == name {
			if t.In*t.Out != n {
				return nil, fmt.Errorf("%s: tensor %q has %d elements, want %d", e.opt.Path, name, t.In*t.Out, n)
			}
			out := make([]float32, n)
			return out, quant.Decode(t.Type, out, e.dense.views[name])
		}
	}
	return nil, fmt.Errorf("%s: no tensor %q", e.opt.Path, name)
}

// FitSignal says which residual a guess is made from.
type FitSignal uint8

// The residuals.
const (
	AfterAttention  FitSignal = iota // of the layer at work, before its experts
	BeforeAttention                  // that entered the layer at work
	LayerOutput                      // that left the layer at work, experts included
)

// State is the residual of a signal at layer at, or nil where the last Scan did not see it.
func (f FitSignal) State(seen []*model.Watched, at int) []float32 {
	if f == LayerOutput {
		at++
	}
	if at >= len(seen) || seen[at] == nil {
		return nil
	}
	if f == AfterAttention {
		return seen[at].Mid
	}
	return seen[at].In
}

// FitPredictor fits maps for every layer and distance 1 and 2 on texts (token ids, each at most the context's length).
// With more false the residual is the only feature; else the previous token's scores at the target and, for a layer's
// output, this token's scores at the layer are features too.
func (s *Session) FitPredictor(ctx context.Context, texts [][]int32, signal FitSignal, more bool, progress func(done, all int)) ([]router.Map, error) {
	c := s.e.model.Config()
	if c.Experts == 0 {
		return nil, fmt.Errorf("%s: the model has no routed experts to predict", s.e.opt.Path)
	}
	var pending []int // layers with a router that have one ahead
	for l := range c.Layers - 1 {
		if s.e.model.Rule(l) != nil {
			pending = append(pending, l)
		}
	}
	features := c.Embd + 1 + 3*c.Experts
	each := 8*features*features + 8*features*2*c.Experts
	// While sums are solved, every thread has two copies of one.
	per := max(1, FitMemory/each-2*s.e.opt.Threads)
	var maps []router.Map
	all := len(pending)
	for len(pending) > 0 {
		now := pending[:min(per, len(pending))]
		pending = pending[len(now):]
		m, err := s.fitLayers(ctx, texts, signal, more, now)
		if err != nil {
			return nil, err
		}
		maps = append(maps, m...)
		if progress != nil {
			progress(all-len(pending), all)
		}
	}
	return maps, nil
}

// fitLayers fits the maps that start at some layers, in one pass over the texts.
func (s *Session) fitLayers(ctx context.Context, texts [][]int32, signal FitSignal, more bool, layers []int) ([]router.Map, error) {
	c := s.e.model.Config()
	h, n := c.Embd, c.Experts
	features := h + 1 + 3*n
	sums := make(map[int]*router.Normal, len(layers))
	for _, l := range layers {
		sums[l] = router.NewNormal(features, 2*n)
	}
	last := make([][]float32, c.Layers) // scores of the token before this batch
	g := newGram(s.e.opt.Threads)
	err := s.Scan(ctx, texts, func(seen []*model.Watched, rows int, first bool) error {
		for _, l := range layers {
			w, state := seen[l], signal.State(seen, l)
			if w == nil || state == nil {
				continue
			}
			g.size(features, 2*n, rows)
			u := make([]float32, h)
			for r := range rows {
				s.e.Normalised(u, state[r*h:(r+1)*h])
				for i, v := range u {
					g.x[i][r] = v
				}
				g.x[h][r] = 1
				for e := range n {
					g.x[h+1+2*n+e][r] = w.Scores[r*n+e]
				}
			}
			for k := 1; k <= 2; k++ {
				if l+k >= c.Layers || seen[l+k] == nil {
					continue
				}
				sc := seen[l+k].Scores
				for r := range rows {
					before := last[l+k]
					if r > 0 {
						before = sc[(r-1)*n : r*n]
					} else if first {
						before = nil
					}
					for e := range n {
						if before != nil {
							g.x[h+1+(k-1)*n+e][r] = before[e]
						}
						g.y[(k-1)*n+e][r] = sc[r*n+e]
					}
				}
			}
			xx, xy := g.products()
			sums[l].Add(rows, xx, xy)
		}
		for l, w := range seen {
			if w != nil {
				last[l] = append(last[l][:0], w.Scores[(rows-1)*n:]...)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	type pair struct{ at, k int }
	var pairs []pair
	for _, l := range layers {
		for k := 1; k <= 2 && l+k < c.Layers; k++ {
			if s.e.model.Rule(l+k) != nil {
				pairs = append(pairs, pair{l, k})
			}
		}
	}
	maps, errs := make([]router.Map, len(pairs)), make([]error, len(pairs))
	var next atomic.Int32
	var wg sync.WaitGroup
	for range min(s.e.opt.Threads, len(pairs)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(pairs) || ctx.Err() != nil {
					return
				}
				p := pairs[i]
				if maps[i], errs[i] = solveMap(sums[p.at], h, n, p.k, more, signal == LayerOutput); errs[i] != nil {
					errs[i] = fmt.Errorf("layer %d to %d: %w", p.at, p.at+p.k, errs[i])
				}
				maps[i].At, maps[i].Target = p.at, p.at+p.k
			}
		})
	}
	wg.Wait()
	return maps, errors.Join(append(errs, ctx.Err())...)
}

// solveMap solves the sums of a layer for the scores k layers ahead: h features of the residual and a constant, then, with
// more, the n of the previous token's scores at the target and, with own, the n of this token's at the layer.
func solveMap(sum *router.Normal, h, n, k int, more, own bool) (router.Map, error) {
	var use []int
	for i := range h + 1 {
		use = append(use, i)
	}
	if more {
		for e := range n {
			use = append(use, h+1+(k-1)*n+e)
		}
	}
	if more && own {
		for e := range n {
			use = append(use, h+1+2*n+e)
		}
	}
	want := make([]int, n)
	for e := range want {
		want[e] = (k-1)*n + e
	}
	w, err := sum.Part(use, want).Solve(fitRidge)
	if err != nil {
		return router.Map{}, err
	}
	m := router.Map{State: make([]float32, n*h), Prev: make([]float32, n*n), Bias: make([]float32, n)}
	for e := range n {
		row := w[e*len(use) : (e+1)*len(use)]
		copy(m.State[e*h:], row[:h])
		m.Bias[e] = row[h]
		if more {
			copy(m.Prev[e*n:(e+1)*n], row[h+1:])
		}
		if len(row) > h+1+n {
			m.Own = append(m.Own, row[h+1+n:]...)
		}
	}
	return m, nil
}

// gram multiplies samples with themselves and with targets, on several threads.
type gram struct {
	threads  int
	x, y     [][]float32 // features and targets, each a row of samples
	bytes    []byte      // x as weights
	ax, ay   kernels.Act
	xx, xy   []float32
	scratch  []kernels.Scratch
	features int
}

func newGram(threads int) *gram {
	return &gram{threads: threads, scratch: make([]kernels.Scratch, threads)}
}

// size makes room for rows samples, all zero.
func (g *gram) size(features, targets, rows int) {
	g.features = features
	g.x, g.y = rowsOf(g.x, features, rows), rowsOf(g.y, targets, rows)
}

func rowsOf(v [][]float32, n, rows int) [][]float32 {
	v = slices.Grow(v[:0], n)[:n]
	for i := range v {
		v[i] = slices.Grow(v[i][:0], rows)[:rows]
		clear(v[i])
	}
	return v
}

// products answers x xT (features x features) and x yT (features x targets); valid until the next call.
func (g *gram) products() (xx, xy []float32) {
	rows := len(g.x[0])
	g.bytes = slices.Grow(g.bytes[:0], 4*rows*len(g.x))[:4*rows*len(g.x)]
	for i, v := range g.x {
		for r, f := range v {
			binary.LittleEndian.PutUint32(g.bytes[4*(i*rows+r):], math.Float32bits(f))
		}
	}
	fill := func(a *kernels.Act, v [][]float32) {
		a.Reset(kernels.ActF32, len(v), rows)
		for i := range v {
			a.Set(i, v[i])
		}
	}
	fill(&g.ax, g.x)
	fill(&g.ay, g.y)
	d, t := len(g.x), len(g.y)
	g.xx = slices.Grow(g.xx[:0], d*d)[:d*d]
	yx := make([]float32, t*d)
	var wg sync.WaitGroup
	for i := range g.threads {
		wg.Go(func() {
			r0, r1 := d*i/g.threads, d*(i+1)/g.threads
			kernels.MatMul(g.xx, d, gguf.F32, g.bytes, &g.ax, r0, r1, 0, d, &g.scratch[i])
			kernels.MatMul(yx, d, gguf.F32, g.bytes, &g.ay, r0, r1, 0, t, &g.scratch[i])
		})
	}
	wg.Wait()
	g.xy = slices.Grow(g.xy[:0], d*t)[:d*t]
	for c := range t {
		for r := range d {
			g.xy[r*t+c] = yx[c*d+r]
		}
	}
	return g.xx, g.xy
}

// TextsPieces are the tokens of texts in pieces of at most piece tokens, each behind one end-of-text token, at most most
// tokens in all.
func (e *Engine) TextsPieces(texts []string, piece, most int) ([][]int32, error) {
	var out [][]int32
	left := most
	for i, t := range texts {
		if left <= 0 {
			break
		}
		for first := true; len(t) > 0 && left > 0; first = false {
			part := t
			if n := 64 * max(left, piece); len(part) > n { // tokenizing more than is used takes time and memory
				part = part[:n]
			}
			ids, err := e.encodeText(part)
			if err != nil && first {
				return nil, fmt.Errorf("text %d: %w", i+1, err)
			}
			start, body := ids[:0], ids
			if e.startToken() >= 0 {
				start, body = ids[:1], ids[1:]
			}
			for len(body) > 0 && left > len(start) {
				n := min(piece-len(start), len(body), left-len(start))
				out = append(out, append(slices.Clone(start), body[:n]...))
				body, left = body[n:], left-n-len(start)
			}
			t = t[len(part):]
			if left <= len(start) {
				return out, nil
			}
		}
	}
	return out, nil
}

// startToken stands before a text: the end-of-text token, or what the model has instead; negative: nothing does.
func (e *Engine) startToken() int32 {
	if id, ok := e.tok.Lookup("<|endoftext|>"); ok {
		return id
	}
	return max(e.tok.EOT(), e.tok.BOS())
}

// encodeText is a text's tokens behind the start token.
func (e *Engine) encodeText(t string) ([]int32, error) {
	var ids []int32
	if start := e.startToken(); start >= 0 {
		ids = append(ids, start)
	}
	ids = e.tok.Encode(ids, t, false, false)
	if len(ids) == 0 {
		return nil, errors.New("is empty")
	}
	return ids, nil
}

// TextsTokens are the tokens of each text behind one end-of-text token (the model's start token where it has none), cut at
// the context.
func (e *Engine) TextsTokens(texts []string) ([][]int32, error) {
	out := make([][]int32, 0, len(texts))
	for i, t := range texts {
		ids, err := e.encodeText(t)
		if err != nil {
			return nil, fmt.Errorf("text %d: %w", i+1, err)
		}
		out = append(out, ids[:min(len(ids), e.opt.Context)])
	}
	return out, nil
}
