// Package compute is the seam to hardware: a small set of block-sized operations on opaque tensors that every backend
// (CPU, later Vulkan and the split of both) implements.
//
// It holds interfaces and plain structs only. Operations are as large as "attention" or "expert feed-forward", because
// each method costs every backend and every fake.
package compute

import "terrace/gguf"

// Tensor is a matrix of float32 activations, rows x cols, row-major, owned by the backend that made it.
// Rows is set per batch with SetRows and never exceeds the capacity it was made with; it must not change between the
// recording of an operation on the tensor and the next Submit.
type Tensor interface {
	Rows() int
	Cols() int
	SetRows(n int)
}

// View is a tensor that is a run of the rows of another. An operation that is recorded with it keeps the rows it had then, so it
// may be set to others before the next Submit. SetRows is not for it.
type View interface {
	Tensor
	// Set makes it rows rows of t from row first on.
	Set(t Tensor, first, rows int)
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

// Act is the function between an FFN's two halves: what becomes of the outputs a of gate and b of up.
type Act uint8

// The functions.
const (
	SiLU      Act = iota // silu(a)*b
	GELU                 // gelu(a)*b, in the form with tanh: a*sigmoid(2*sqrt(2/pi)*(a+0.044715*a^3))
	SwiGLUOAI            // a'*sigmoid(1.702*a')*(b'+1), a' = min(a, 7), b' = b between -7 and 7
	ReLU2                // max(a, 0)^2; there is no b
	Sigmoid              // sigmoid(a)*b
)

// Expert is one routed expert whose matrices are in memory. The bytes are borrowed from a lease and valid until it is
// released.
type Expert struct {
	Gate, Up, Down Matrix // with ReLU2 there is no Gate: its Out is 0
	Act            Act
	// Biases are added to the outputs of the three matrices; nil: none. They are borrowed like the matrices.
	GateBias, UpBias, DownBias []float32
	// Key names the expert for a Keeper; 0: it has no name. The matrices of one that a Keeper holds have no bytes.
	Key uint64
}

// Pairing says which elements RoPE turns together.
type Pairing uint8

// The pairings, of n rotated elements.
const (
	Neox Pairing = iota // (j, j+n/2)
	Norm                // (2j, 2j+1)
)

// AttnSpec says how attention weighs what a layer of a cache holds.
type AttnSpec struct {
	Layer int     // of the cache; its KVLayer says which positions are seen
	Pos   []int32 // positions of the rows
	Scale float32 // of the scores
	Sinks Weight  // one score a query head that joins its softmax without a value, not scaled; nil: none
}

// Done is told when the commands recorded before it have been executed.
type Done interface{ Done() }

// Encoder records the operations of one step and runs them. A backend may run an operation when it is recorded; results
// are certain after Submit only. Every operation works row by row of its tensors, and a row's result does not depend on
// the other rows (numeric contract, ARCHITECTURE.md). Where two tensors of an operation must have equal rows, the caller
// has set them with SetRows; shapes that disagree are a programmer's error and panic.
type Encoder interface {
	DenseEncoder
	ExpertEncoder
	RecurrentEncoder
	LatentEncoder
	StreamEncoder

	// Read copies the first x.Rows() rows of x to dst; valid after Submit.
	Read(dst []float32, x Tensor)
	// OnDone calls d.Done once everything recorded so far has run.
	OnDone(d Done)
	// Flush starts what is recorded without waiting for it; a backend that runs on the caller's thread runs it here.
	Flush()
	// Submit runs what is recorded and waits for it.
	Submit() error
}

// DenseEncoder has the operations that most layers are made of.
type DenseEncoder interface {
	// Embed sets row i of dst to row tokens[i] of w.
	Embed(dst Tensor, w Weight, tokens []int32)
	// RMSNorm sets dst to x / sqrt(mean(x^2) + eps) * w, row by row; w has x.Cols() elements. Without w nothing is
	// multiplied.
	RMSNorm(dst, x Tensor, w Weight, eps float32)
	// HeadNorm does the same in place for each run of dim elements (a head) of each row of x; w has dim elements or is nil.
	HeadNorm(x Tensor, w Weight, dim int, eps float32)
	// MatMul sets dst to x times w transposed: dst[i][o] = sum_k w[o][k]*x[i][k].
	MatMul(dst Tensor, w Weight, x Tensor)
	// AddBias adds the vector w to each row of x.
	AddBias(x Tensor, w Weight)
	// Add adds y to x.
	Add(x, y Tensor)
	// Mul multiplies x by y, element by element.
	Mul(x, y Tensor)
	// Scale multiplies x by s.
	Scale(x Tensor, s float32)
	// Clear sets x to zero.
	Clear(x Tensor)
	// CopyRows sets dst to the dst.Rows() rows of x that begin at row first.
	CopyRows(dst, x Tensor, first int)
	// Activate sets dst to act of a and b, which have its shape; dst may be either. With ReLU2 b is nil.
	Activate(dst, a, b Tensor, act Act)
	// GateRows multiplies row i of x by sigmoid(s[i][0]).
	GateRows(x, s Tensor)
	// Softcap sets x to limit*tanh(x/limit).
	Softcap(x Tensor, limit float32)
	// RoPE rotates in place, in each head of dim elements, the n elements from first on: pair j < n/2 by the angle whose
	// cosine and sine stand at cos[i*n/2+j], sin[i*n/2+j] for row i.
	RoPE(x Tensor, dim, first, n int, pairs Pairing, cos, sin []float32)
	// SplitHeads takes apart rows whose heads are dim queries followed by dim gates: x has twice the columns of q and gate.
	SplitHeads(q, gate, x Tensor, dim int)
	// Attention appends row i of k and v to kv at s.Pos[i], then sets each row of dst to the attention of that row of q over
	// the positions up to its own that the layer's window sees. q and dst may have fewer rows than k and v, even none: theirs
	// are the last positions then. Query head h reads KV head h/(heads/KV heads). s.Pos rises by one from row to row. Of a
	// latent layer v is nil. Where k is nil too, nothing is appended: the layer holds the rows already.
	Attention(dst, q, k, v Tensor, kv KV, s AttnSpec)
}

// ExpertEncoder has the operations of routed experts.
type ExpertEncoder interface {
	// ExpertFFN sets row first+i of parts to down(act(gate x, up x)) of row in[i] of x, for each i, the expert's biases added
	// to each product. Rows of different calls of one layer must not overlap. e and in must stay valid until Submit.
	ExpertFFN(parts Tensor, first int, e *Expert, x Tensor, in []int32)
	// WeightedSum adds to row t of x the sum over r < k, in that order, of weights[t*k+r] times row index[t*k+r] of parts.
	// The index lets parts stand in the order in which the experts arrived while the sum keeps the router's order.
	WeightedSum(x, parts Tensor, index []int32, weights []float32, k int)
}

// Backend makes tensors, weights and caches, and runs operations on them.
type Backend interface {
	Name() string
	// Supports reports whether weights and experts of type t can be computed with.
	Supports(t gguf.Type) bool
	// NewTensor makes an activation matrix with room for rows rows; it has 0 rows until SetRows.
	NewTensor(rows, cols int) Tensor
	// NewView makes a view, of nothing yet.
	NewView() View
	// NewWeight takes a dense weight whose bytes stay valid and unchanged for the backend's life.
	NewWeight(m Matrix) (Weight, error)
	// NewKV makes an empty cache.
	NewKV(s KVShape) (KV, error)
	RecurrentBackend
	StreamBackend
	// Encoder returns the backend's encoder; one step at a time.
	Encoder() Encoder
	Close() error
}
