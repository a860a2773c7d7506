package cpu

import (
	"fmt"
	"math"

	"terrace/compute"
	"terrace/kernels"
)

// kv implements compute.KV: one block of memory each for keys and values, laid out layer, KV head, position, element, so
// that a head's keys are one run in memory.
type kv struct {
	shape compute.KVShape
	k, v  []byte // v is nil where no layer stores values
	at    []kvPlace
	free  func([]byte) error
	b     *Backend
}

// kvPlace is where a layer's keys and values begin.
type kvPlace struct {
	k, v  int
	cells int
}

// NewKV implements compute.Backend. It fails where memory is refused.
func (b *Backend) NewKV(s compute.KVShape) (compute.KV, error) {
	if len(s.Layers) == 0 || s.Context < 1 || s.Slack < 0 {
		return nil, fmt.Errorf("cpu: a KV cache of %d layers and %d positions, %d of them at once", len(s.Layers), s.Context, s.Slack)
	}
	n := 0.0
	for i, l := range s.Layers {
		if l.Heads < 1 || l.KeyDim < 1 || l.ValDim < 1 || l.Window < 0 || l.Latent && l.ValDim > l.KeyDim {
			return nil, fmt.Errorf("cpu: layer %d of a KV cache has %d heads, keys of %d, values of %d, a window of %d", i, l.Heads, l.KeyDim, l.ValDim, l.Window)
		}
		n += float64(l.Heads) * float64(s.Context) * float64(l.KeyDim+l.ValDim) * 4
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	if n > math.MaxInt/2 {
		return nil, fmt.Errorf("cpu: a KV cache of %d positions needs %.3g bytes, more than can be addressed", s.Context, n)
	}
	c := &kv{shape: s, free: b.opts.Free, b: b, at: make([]kvPlace, len(s.Layers))}
	keys, values := 0, 0
	for l := range s.Layers {
		c.at[l] = kvPlace{keys, values, s.Cells(l)}
		kb, vb := s.Sizes(l)
		keys, values = keys+int(kb), values+int(vb)
	}
	var err error
	if c.k, err = b.opts.Alloc(keys); err != nil {
		return nil, fmt.Errorf("cpu: keys of %d positions (%d bytes): %w", s.Context, keys, err)
	}
	if values == 0 {
		return c, nil
	}
	if c.v, err = b.opts.Alloc(values); err != nil {
		err = fmt.Errorf("cpu: values of %d positions (%d bytes): %w", s.Context, values, err)
		c.Free()
		return nil, err
	}
	return c, nil
}

func (c *kv) Shape() *compute.KVShape { return &c.shape }

// Free gives the memory back; the cache must not be used afterwards. A second call does nothing.
func (c *kv) Free() {
	for _, m := range []*[]byte{&c.k, &c.v} {
		if *m != nil {
			if err := c.free(*m); err != nil {
				panic(fmt.Sprintf("cpu: KV memory was not taken back: %v", err))
			}
			*m = nil
		}
	}
}

// CopyPrefix implements compute.KV.
func (c *kv) CopyPrefix(from compute.KV, n int) {
	o, ok := from.(*kv)
	if !ok || len(o.k) != len(c.k) || len(o.v) != len(c.v) || n < 0 || n > c.shape.Context {
		panic(fmt.Sprintf("cpu: the first %d positions of a KV cache of %d (%T) into one of %d", n, from.Shape().Context, from, c.shape.Context))
	}
	for l := range c.shape.Layers {
		x := &c.shape.Layers[l]
		cells := c.at[l].cells
		if cells == c.shape.Context {
			cells = n
		}
		for h := range x.Heads {
			k := c.keys(l, h)
			copy(k.Data[:cells*k.Stride], o.keys(l, h).Data)
			if !x.Latent {
				v := c.values(l, h)
				copy(v.Data[:cells*v.Stride], o.values(l, h).Data)
			}
		}
	}
}

// Trim implements compute.KV.
func (c *kv) Trim(n int) bool {
	if c.b.opts.Release == nil {
		return false
	}
	for l := range c.shape.Layers {
		p, x := &c.at[l], &c.shape.Layers[l]
		if p.cells < c.shape.Context {
			continue
		}
		kb, vb := c.shape.K.RowBytes(x.KeyDim), c.shape.V.RowBytes(x.ValDim)
		for h := range x.Heads {
			k, v := p.k+h*p.cells*kb, p.v+h*p.cells*vb
			if !c.b.trimmed(c.k, k+n*kb, k+p.cells*kb) || !x.Latent && !c.b.trimmed(c.v, v+n*vb, v+p.cells*vb) {
				return false
			}
		}
	}
	return true
}

// CopyOut implements compute.KV.
func (c *kv) CopyOut(dst []byte, r compute.KVRange) { copy(dst, c.run(r, len(dst))) }

// CopyIn implements compute.KV.
func (c *kv) CopyIn(r compute.KVRange, src []byte) { copy(c.run(r, len(src)), src) }

// run is the memory of a range of n bytes.
func (c *kv) run(r compute.KVRange, n int) []byte {
	if want := c.shape.RangeBytes(r); want != n {
		panic(fmt.Sprintf("cpu: %d bytes for %d of a KV cache", n, want))
	}
	run := c.keys
	if r.Values {
		run = c.values
	}
	x := run(r.Layer, r.Head)
	return x.Data[r.Cell*x.Stride : (r.Cell+r.Cells)*x.Stride]
}

// keys is the run of a head's keys, cell 0 first.
func (c *kv) keys(layer, head int) kernels.KVRun {
	n := c.shape.K.RowBytes(c.shape.Layers[layer].KeyDim)
	p := &c.at[layer]
	from := p.k + head*p.cells*n
	return kernels.KVRun{Type: c.shape.K, Data: c.k[from : from+p.cells*n], Stride: n}
}

// values is the run of a head's values, cell 0 first.
func (c *kv) values(layer, head int) kernels.KVRun {
	if c.shape.Layers[layer].Latent {
		return c.keys(layer, head)
	}
	n := c.shape.V.RowBytes(c.shape.Layers[layer].ValDim)
	p := &c.at[layer]
	from := p.v + head*p.cells*n
	return kernels.KVRun{Type: c.shape.V, Data: c.v[from : from+p.cells*n], Stride: n}
}

// put stores x as element i of r.
func put(r kernels.KVRun, i int, x []float32) {
	kernels.EncodeKV(r.Type, r.Data[i*r.Stride:(i+1)*r.Stride], x)
}
