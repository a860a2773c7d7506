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
	k, v  []byte
	free  func([]byte) error
}

// NewKV implements compute.Backend. It fails where memory is refused.
func (b *Backend) NewKV(s compute.KVShape) (compute.KV, error) {
	if s.Layers < 1 || s.Heads < 1 || s.KeyDim < 1 || s.ValDim < 1 || s.Context < 1 {
		return nil, fmt.Errorf("cpu: a KV cache of %d layers, %d heads, keys of %d, values of %d, %d positions", s.Layers, s.Heads, s.KeyDim, s.ValDim, s.Context)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	n := float64(s.Layers) * float64(s.Heads) * float64(s.Context) * float64(s.KeyDim+s.ValDim) * 4
	if n > math.MaxInt/2 {
		return nil, fmt.Errorf("cpu: a KV cache of %d positions needs %.3g bytes, more than can be addressed", s.Context, n)
	}
	c := &kv{shape: s, free: b.opts.Free}
	rows := s.Layers * s.Heads * s.Context
	var err error
	if c.k, err = b.opts.Alloc(rows * s.K.RowBytes(s.KeyDim)); err != nil {
		return nil, fmt.Errorf("cpu: keys of %d positions (%d bytes): %w", s.Context, rows*s.K.RowBytes(s.KeyDim), err)
	}
	if c.v, err = b.opts.Alloc(rows * s.V.RowBytes(s.ValDim)); err != nil {
		err = fmt.Errorf("cpu: values of %d positions (%d bytes): %w", s.Context, rows*s.V.RowBytes(s.ValDim), err)
		c.Free()
		return nil, err
	}
	return c, nil
}

func (c *kv) Shape() compute.KVShape { return c.shape }

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

// keys is the run of a head's keys from position 0 on.
func (c *kv) keys(layer, head int) []byte {
	n := c.shape.Context * c.shape.K.RowBytes(c.shape.KeyDim)
	i := layer*c.shape.Heads + head
	return c.k[i*n : (i+1)*n]
}

// values is the run of a head's values from position 0 on.
func (c *kv) values(layer, head int) []byte {
	n := c.shape.Context * c.shape.V.RowBytes(c.shape.ValDim)
	i := layer*c.shape.Heads + head
	return c.v[i*n : (i+1)*n]
}

// put stores x as element run i of dst.
func put(dst []byte, t compute.KVType, i int, x []float32) {
	n := t.RowBytes(len(x))
	kernels.EncodeKV(t, dst[i*n:(i+1)*n], x)
}
