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
	c := &kv{shape: s, free: b.opts.Free, at: make([]kvPlace, len(s.Layers))}
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
