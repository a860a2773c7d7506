// Package compute is the seam to hardware: a small set of block-sized operations on opaque tensors that every backend
// (CPU, later Vulkan and the split of both) implements.
//
// It holds interfaces and plain structs only. Operations are as large as "attention" or "expert feed-forward", because
// each method costs every backend and every fake.
package compute

import (
	"fmt"

	"terrace/gguf"
)

// Tensor is a matrix of float32 activations, rows x cols, row-major, owned by the backend that made it.
// Rows is set per batch with SetRows and never exceeds the capacity it was made with; it must not change between the
// recording of an operation on the tensor and the next Submit.
type Tensor interface {
	Rows() int
	Cols() int
	SetRows(n int)
}

// Weight is a dense weight of Out rows of In elements (ggml dims [In, Out]), resident in the backend's memory.
// A vector (norm weights, biases) has Out == 1.
type Weight interface {
	Type() gguf.Type
	In() int
	Out() int
}

// Matrix is a borrowed view of quantised bytes: Out rows of In elements of Type, no padding between rows.
type Matrix struct {
	Type    gguf.Type
	In, Out int
	Data    []byte
}

// Expert is one routed expert whose three matrices are in memory. The bytes are borrowed from a lease and valid until it
// is released.
type Expert struct {
	Gate, Up, Down Matrix
}

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

// KVShape is the geometry of one sequence's KV cache.
type KVShape struct {
	Layers  int // layers that have attention
	Heads   int // KV heads
	KeyDim  int // elements of a key per head
	ValDim  int // elements of a value per head
	Context int // positions
	K, V    KVType
}

// Bytes is the size of a cache of this shape.
func (s KVShape) Bytes() int64 {
	return int64(s.Layers) * int64(s.Heads) * int64(s.Context) * int64(s.K.RowBytes(s.KeyDim)+s.V.RowBytes(s.ValDim))
}

// Check fails where a head is no whole number of blocks of the type it shall be stored as.
func (s KVShape) Check() error {
	if b := s.K.Block(); s.KeyDim%b != 0 {
		return fmt.Errorf("keys of %d elements a head cannot be cached as %s, whose blocks have %d", s.KeyDim, s.K, b)
	}
	if b := s.V.Block(); s.ValDim%b != 0 {
		return fmt.Errorf("values of %d elements a head cannot be cached as %s, whose blocks have %d", s.ValDim, s.V, b)
	}
	return nil
}

// KV is one sequence's key and value cache. Positions at and after the next one written are never read, so going back to
// an earlier position needs no call.
type KV interface {
	Shape() KVShape
	Free()
}

// Done is told when the commands recorded before it have been executed.
type Done interface{ Done() }

// Encoder records the operations of one step and runs them. A backend may run an operation when it is recorded; results
// are certain after Submit only. Every operation works row by row of its tensors, and a row's result does not depend on
// the other rows (numeric contract, ARCHITECTURE.md). Where two tensors of an operation must have equal rows, the caller
// has set them with SetRows; shapes that disagree are a programmer's error and panic.
type Encoder interface {
	// Embed sets row i of dst to row tokens[i] of w.
	Embed(dst Tensor, w Weight, tokens []int32)
	// RMSNorm sets dst to x / sqrt(mean(x^2) + eps) * w, row by row; w has x.Cols() elements.
	RMSNorm(dst, x Tensor, w Weight, eps float32)
	// HeadNorm does the same in place for each run of dim elements (a head) of each row of x; w has dim elements.
	HeadNorm(x Tensor, w Weight, dim int, eps float32)
	// MatMul sets dst to x times w transposed: dst[i][o] = sum_k w[o][k]*x[i][k].
	MatMul(dst Tensor, w Weight, x Tensor)
	// RoPE rotates in place, in each head of dim elements, the pairs (j, j+n/2) for j < n/2 by the angle whose cosine and
	// sine stand at cos[i*n/2+j], sin[i*n/2+j] for row i (the NEOX layout), n <= dim.
	RoPE(x Tensor, dim, n int, cos, sin []float32)
	// Attention appends row i of k and v to kv at pos[i] for the given layer, then sets each row of dst to the attention of
	// that row of q over positions 0 to its own, scores multiplied by scale. q and dst may have fewer rows than k and v,
	// even none: theirs are the last positions then. Query head h reads KV head h/(heads/KV heads). pos rises by one from
	// row to row.
	Attention(dst, q, k, v Tensor, kv KV, layer int, pos []int32, scale float32)
	// SwiGLU sets dst to silu(gate)*up.
	SwiGLU(dst, gate, up Tensor)
	// Add adds y to x.
	Add(x, y Tensor)
	// CopyRows sets dst to the dst.Rows() rows of x that begin at row first.
	CopyRows(dst, x Tensor, first int)
	// ExpertFFN sets row first+i of parts to down(silu(gate x) * (up x)) of row in[i] of x, for each i. Rows of different
	// calls of one layer must not overlap. e and in must stay valid until Submit.
	ExpertFFN(parts Tensor, first int, e *Expert, x Tensor, in []int32)
	// WeightedSum adds to row t of x the sum over r < k, in that order, of weights[t*k+r] times row index[t*k+r] of parts.
	// The index lets parts stand in the order in which the experts arrived while the sum keeps the router's order.
	WeightedSum(x, parts Tensor, index []int32, weights []float32, k int)
	// Read copies the first x.Rows() rows of x to dst; valid after Submit.
	Read(dst []float32, x Tensor)
	// OnDone calls d.Done once everything recorded so far has run.
	OnDone(d Done)
	// Flush starts what is recorded without waiting for it; a backend that runs on the caller's thread runs it here.
	Flush()
	// Submit runs what is recorded and waits for it.
	Submit() error
}

// Backend makes tensors, weights and caches, and runs operations on them.
type Backend interface {
	Name() string
	// Supports reports whether weights and experts of type t can be computed with.
	Supports(t gguf.Type) bool
	// NewTensor makes an activation matrix with room for rows rows; it has 0 rows until SetRows.
	NewTensor(rows, cols int) Tensor
	// NewWeight takes a dense weight whose bytes stay valid and unchanged for the backend's life.
	NewWeight(m Matrix) (Weight, error)
	// NewKV makes an empty cache.
	NewKV(s KVShape) (KV, error)
	// Encoder returns the backend's encoder; one step at a time.
	Encoder() Encoder
	Close() error
}
