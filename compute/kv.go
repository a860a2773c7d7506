package compute

import "fmt"

// KVType is the element type of a KV cache.
type KVType uint8

// Element types of a KV cache. The quantised ones store a head's keys or values as blocks of 32 in the layout of the GGUF
// weight types of these names.
const (
	KVF16 KVType = iota
	KVF32
	KVQ8_0
	KVQ4_0
)

// KVTypes counts the element types.
const KVTypes = 4

func (t KVType) String() string { return [KVTypes]string{"f16", "f32", "q8_0", "q4_0"}[t] }

// Block is the number of elements that are stored together.
func (t KVType) Block() int {
	if t == KVQ8_0 || t == KVQ4_0 {
		return 32
	}
	return 1
}

// RowBytes is the number of bytes of n elements, a whole number of blocks.
func (t KVType) RowBytes(n int) int {
	switch t {
	case KVF32:
		return 4 * n
	case KVQ8_0:
		return n / 32 * 34
	case KVQ4_0:
		return n / 32 * 18
	}
	return 2 * n
}

// KVLayer is the geometry of one layer of a KV cache.
type KVLayer struct {
	Heads  int // KV heads
	KeyDim int // elements of a key per head
	ValDim int // elements of a value per head
	// Window > 0: a query sees the last Window positions only, its own included, and no more than these (and what one
	// Attention appends) are kept.
	Window int
	// Latent: values are the first ValDim elements of the keys and are not stored.
	Latent bool
}

// KVShape is the geometry of one sequence's KV cache: the layers that have one, in the order of the walk.
type KVShape struct {
	Layers  []KVLayer
	Context int // positions
	Slack   int // the most rows that one Attention appends; windowed layers have room for so many more
	K, V    KVType
}

// Cells is the number of positions that layer l has memory for. A windowed layer may have fewer than Context: then position
// p lies in cell p modulo Cells, which is a multiple of 64.
func (s KVShape) Cells(l int) int {
	w := s.Layers[l].Window
	if w == 0 || w >= s.Context {
		return s.Context
	}
	if n := (w - 1 + max(s.Slack, 1) + 63) &^ 63; n < s.Context {
		return n
	}
	return s.Context
}

// Sizes gives the bytes of the keys and of the values of layer l.
func (s KVShape) Sizes(l int) (k, v int64) {
	x := &s.Layers[l]
	n := int64(x.Heads) * int64(s.Cells(l))
	k = n * int64(s.K.RowBytes(x.KeyDim))
	if !x.Latent {
		v = n * int64(s.V.RowBytes(x.ValDim))
	}
	return k, v
}

// Bytes is the size of a cache of this shape.
func (s KVShape) Bytes() int64 {
	sum := int64(0)
	for l := range s.Layers {
		k, v := s.Sizes(l)
		sum += k + v
	}
	return sum
}

// Check fails where a head is no whole number of blocks of the type it shall be stored as.
func (s KVShape) Check() error {
	for l := range s.Layers {
		x := &s.Layers[l]
		if b := s.K.Block(); x.KeyDim%b != 0 || x.Latent && x.ValDim%b != 0 {
			return fmt.Errorf("keys of %d elements a head cannot be cached as %s, whose blocks have %d", x.KeyDim, s.K, b)
		}
		if b := s.V.Block(); !x.Latent && x.ValDim%b != 0 {
			return fmt.Errorf("values of %d elements a head cannot be cached as %s, whose blocks have %d", x.ValDim, s.V, b)
		}
	}
	return nil
}

// KV is one sequence's key and value cache. Positions at and after the next one written are never read, so going back to
// an earlier position needs no call as long as windowed layers still hold what its window sees.
type KV interface {
	Shape() *KVShape
	// CopyPrefix copies what layers hold of the first n positions from another cache of the same shape; of layers with a window
	// all cells, as they are. It must not be called between the recording of an operation on either and the next Submit.
	CopyPrefix(from KV, n int)
	// Trim gives back the memory of the positions from n on in layers that keep all of them, as far as it is whole pages. It
	// answers false where that cannot be done.
	Trim(n int) bool
	// CopyOut copies what r names to dst, bytes as they are stored; CopyIn puts such bytes there. They must be as many as r has
	// (KVShape.RangeBytes). Neither may be called between the recording of an operation on this cache and the next Submit; other
	// caches may be at work meanwhile.
	CopyOut(dst []byte, r KVRange)
	CopyIn(r KVRange, src []byte)
	Free()
}

// KVRange names the keys, or the values, of one head in cells that follow each other: cell Cell to Cell+Cells-1 of a layer.
type KVRange struct {
	Layer, Head int
	Values      bool
	Cell, Cells int
}

// RangeBytes is the number of bytes that r names. A range that the shape does not have is a programmer's error and panics.
func (s *KVShape) RangeBytes(r KVRange) int {
	if r.Layer < 0 || r.Layer >= len(s.Layers) {
		panic(fmt.Sprintf("compute: layer %d of a KV cache of %d", r.Layer, len(s.Layers)))
	}
	x := &s.Layers[r.Layer]
	if r.Head < 0 || r.Head >= x.Heads || r.Cell < 0 || r.Cells < 0 || r.Cells > s.Cells(r.Layer)-r.Cell || r.Values && x.Latent {
		panic(fmt.Sprintf("compute: %d cells from %d on of head %d (values: %t), layer %d of a KV cache has %d cells of %d heads", r.Cells, r.Cell, r.Head,
			r.Values, r.Layer, s.Cells(r.Layer), x.Heads))
	}
	if r.Values {
		return r.Cells * s.V.RowBytes(x.ValDim)
	}
	return r.Cells * s.K.RowBytes(x.KeyDim)
}
