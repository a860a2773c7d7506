package compute

import (
	"fmt"

	"terrace/gguf"
)

// Mixer is the gated reading of a residual of several streams that stands where other models have a norm. With n the
// streams, each divided by its root mean square and multiplied by its part of Norm:
//
//	lo = silu(Down n / Streams);  g = Up lo;  x = mean over streams c of n[c] * sigmoid(g[c]);  inject = Inject n
type Mixer struct {
	Norm     Weight // Streams x width elements
	Down, Up Weight // to the low rank and back
	Inject   Weight // to one value a stream; nil: none
	Streams  int
	Eps      float32
}

// Engram holds the norms of an n-gram embedding's way into the streams, Streams x width elements each.
type Engram struct {
	KeyNorm, QueryNorm, ConvNorm Weight
	Streams                      int
	Eps                          float32
}

// IndexShape is the geometry of one sequence's block index: for each layer with block-sparse attention a key for every
// position, and one for every whole block of positions.
type IndexShape struct {
	Layers  int
	Dim     int    // elements of a key
	Block   int    // positions of a block, at least 2
	Context int    // positions
	Type    KVType // float16 or float32
}

// IndexType is the element type of index keys beside a cache whose keys are of type k: they only rank blocks, and are small.
func IndexType(k KVType) KVType {
	if k == KVF32 {
		return KVF32
	}
	return KVF16
}

// Blocks is the number of blocks that a layer has room for.
func (s *IndexShape) Blocks() int { return (s.Context + s.Block - 1) / s.Block }

// Bytes is the size of an index of this shape: Type's bytes of one key a position, up to a whole block. A block's own key
// stands where its last position's would.
func (s *IndexShape) Bytes() int64 {
	return int64(s.Layers) * int64(s.Blocks()) * int64(s.Block) * int64(s.Type.RowBytes(s.Dim))
}

// Index is one sequence's block index. As with a KV cache, going back to an earlier position needs no call.
type Index interface {
	Shape() *IndexShape
	// CopyPrefix copies the keys of the first n positions from another index of the same shape, as KV.CopyPrefix does.
	CopyPrefix(from Index, n int)
	// Trim is that of KV.
	Trim(n int) bool
	// CopyOut and CopyIn are those of KV, for keys of the index.
	CopyOut(dst []byte, r IndexRange)
	CopyIn(r IndexRange, src []byte)
	Free()
}

// IndexRange names N keys of a layer of an index from First on: those of whole blocks, in order, or those of the positions
// but the last of each block, in order.
type IndexRange struct {
	Layer    int
	Blocks   bool
	First, N int
}

// Before is the number of keys of whole blocks and of other positions that belong to the positions before pos.
func (s *IndexShape) Before(pos int) (blocks, others int) {
	blocks = pos / s.Block
	return blocks, pos - blocks
}

// RangeBytes is the number of bytes that r names. A range that the shape does not have is a programmer's error and panics.
func (s *IndexShape) RangeBytes(r IndexRange) int {
	most := s.Blocks()
	if !r.Blocks {
		most *= s.Block - 1
	}
	if r.Layer < 0 || r.Layer >= s.Layers || r.First < 0 || r.N < 0 || r.N > most-r.First {
		panic(fmt.Sprintf("compute: %d keys from %d on in layer %d, a block index has %d in each of %d layers", r.N, r.First, r.Layer, most, s.Layers))
	}
	return r.N * s.Type.RowBytes(s.Dim)
}

// SparseSpec says which positions block-sparse attention sees. A query sees Top*Block+Block-1 positions, or all up to its own:
// those of the last block where it is not yet whole, and those of the best of the whole blocks before it. A block's key is the
// mean of its positions' keys, normed by Norm and turned as the block's first position is (the first elements, NEOX pairs);
// its score is the sum over the index heads of max(0, query . key). Where the number of positions cuts a block, or equal
// blocks, kernels.Picked says which positions are taken.
type SparseSpec struct {
	AttnSpec
	Index      Index
	IndexLayer int // of the index
	Top        int // blocks
	Norm       Weight
	Eps        float32
	Cos, Sin   []float32 // pairs each for the first positions of the blocks that the rows make whole, in order
}

// StreamEncoder has the operations of models whose residual is several streams: hyper-connections, block-sparse attention,
// n-gram embeddings. Rows of streams hold one stream after the other.
type StreamEncoder interface {
	// Spread sets each of the streams of dst to x; dst has a whole number of times the columns of x.
	Spread(dst, x Tensor)
	// Mix reads the streams x by m; dst has their width. inject has m.Streams columns, or is nil together with m.Inject.
	Mix(dst, inject, x Tensor, m *Mixer)
	// Inject adds 2*sigmoid(inject[c]/streams) * y to stream c of x; inject has a column a stream.
	Inject(x, y, inject Tensor)
	// SparseAttention is Attention over the positions that s picks, which indexQ decides, the queries of the index side by
	// side, normed and turned, in as many rows as q. It also appends indexK, keys of the index as projected, in as many rows
	// as k. The layer of the cache has no window.
	SparseAttention(dst, q, k, v, indexQ, indexK Tensor, kv KV, s *SparseSpec)
	// DecodeRows sets each row of dst to some of rows, elements of type t, side by side: len(rows) is a whole number of times
	// the rows of dst. The bytes must stay valid until Submit.
	DecodeRows(dst Tensor, t gguf.Type, rows [][]byte)
	// EngramGate sets stream c of dst to sigmoid(r)*val with r = sgn(s)*sqrt(max(|s|, 1e-6)) and
	// s = norm(key)[c] . norm(x)[c] / sqrt(width), and norm to dst normed for the convolution. key is used up, and dst may be key.
	EngramGate(dst, norm, x, key, val Tensor, g *Engram)
}

// StreamBackend makes what they keep of a sequence.
type StreamBackend interface {
	// NewIndex makes an empty block index.
	NewIndex(s IndexShape) (Index, error)
}
