package compute

import "fmt"

// RecurrentLayer is what a layer keeps of a sequence however long it is: float32 elements, all zero at its start. Either part
// may be missing.
type RecurrentLayer struct {
	// Channels and Back: the last Back inputs of a convolution over so many channels, (taps-1)*dilation of them.
	Channels, Back int
	// Heads, KeyDim and ValDim: a matrix of KeyDim x ValDim a head, of gated DeltaNet or Mamba-2.
	Heads, KeyDim, ValDim int
}

// Elems is the number of elements of a layer.
func (l RecurrentLayer) Elems() int64 {
	return int64(l.Channels)*int64(l.Back) + int64(l.Heads)*int64(l.KeyDim)*int64(l.ValDim)
}

// RecurrentShape is the geometry of one sequence's recurrent state: the layers that have one, in the order of the walk.
type RecurrentShape struct {
	Layers []RecurrentLayer
}

// Bytes is the size of one copy of a state.
func (s *RecurrentShape) Bytes() int64 {
	sum := int64(0)
	for _, l := range s.Layers {
		sum += 4 * l.Elems()
	}
	return sum
}

// Copies is the number of copies of the state that a Recurrent of so many slots holds: the state, what comes after it, and
// the slots.
func (s *RecurrentShape) Copies(slots int) int64 { return 2 + int64(slots) }

// Check fails where a layer is empty or misshapen.
func (s *RecurrentShape) Check() error {
	for i, l := range s.Layers {
		conv, heads := l.Channels > 0 && l.Back > 0, l.Heads > 0 && l.KeyDim > 0 && l.ValDim > 0
		if !conv && !heads || !conv && (l.Channels|l.Back) != 0 || !heads && (l.Heads|l.KeyDim|l.ValDim) != 0 {
			return fmt.Errorf("a recurrent state of %d inputs of %d channels and %d heads of %d by %d in layer %d", l.Back, l.Channels, l.Heads, l.KeyDim, l.ValDim, i)
		}
	}
	return nil
}

// Recurrent is one sequence's state of recurrent layers. Operations read the state and write what comes after it beside it;
// Commit makes that the state. So a step that fails leaves no trace, and a step that succeeds must have written each part of
// each layer once. There is no way back but to what was saved. None of the methods may be called between the recording of an
// operation and the next Submit.
type Recurrent interface {
	Shape() *RecurrentShape
	// Commit makes what the operations since the last call have written the state.
	Commit()
	// Clear goes back to the start of a sequence.
	Clear()
	// Save copies the state to a slot; Restore makes what was saved there the state.
	Save(slot int)
	Restore(slot int)
	// CopyFrom makes the state of another of the same shape, or what it saved in a slot, the state; -1: the state.
	CopyFrom(from Recurrent, slot int)
	// CopyOut copies the state to dst, which has Bytes of the shape; CopyIn makes such bytes the state.
	CopyOut(dst []byte)
	CopyIn(src []byte)
	// Capture has the operations until the next Commit copy the state on its way as well: what it is after the first rows of
	// theirs. A step that fails leaves unknown bytes; it may be repeated. nil: no more. The slice is kept.
	Capture(at []Capture)
	Free()
}

// Capture is a copy of a recurrent state after Rows of the rows of a step, at least one: CopyOut's bytes.
type Capture struct {
	Rows int
	Dst  []byte
}

// ConvSpec is a causal depthwise convolution over the rows of a sequence.
type ConvSpec struct {
	Layer    int    // of the state, which has the channels and the inputs before the first row
	Weight   Weight // a row of taps a channel, the oldest input's first
	Bias     Weight // one a channel, or nil
	Dilation int    // rows from tap to tap; 0: 1
	SiLU     bool   // silu of the sums
}

// DeltaSpec is a gated DeltaNet layer.
type DeltaSpec struct {
	Layer    int // of the state, which has the value heads and the sizes of keys and values
	KeyHeads int // heads of queries and keys, a divisor of the value heads
	// Grouped: value head h reads key head h/(heads/KeyHeads) (qwen3next); otherwise h modulo KeyHeads.
	Grouped bool
	// A is the negative factor of a head's decay and Dt the bias of its step.
	A, Dt Weight
	Eps   float32 // of the L2 norms of queries and keys
	Scale float32 // of the results
}

// MambaSpec is a Mamba-2 layer.
type MambaSpec struct {
	Layer  int // of the state, which has the heads; a key is a row of the state here and a value an input
	Groups int // head h reads the keys and queries of group h/(heads/Groups)
	// A is the negative factor of a head's decay, Dt the bias of its step, Skip what of the input is added to the result.
	A, Dt, Skip Weight
}

// RecurrentEncoder has the operations of layers whose state each token changes for good: short convolutions, gated
// DeltaNet, Mamba-2. The rows of a tensor are tokens that follow each other. The order of every sum is that of kernels.Conv,
// kernels.DeltaNet and kernels.Scan.
type RecurrentEncoder interface {
	// ShortConv sets dst to the convolution of x; they must not be one tensor.
	ShortConv(dst, x Tensor, r Recurrent, s ConvSpec)
	// DeltaNet sets dst, a value a value head, to the results of the recurrence over qkv, whose rows are the queries and the
	// keys of all key heads and the values of all value heads; it leaves queries and keys there divided by their lengths.
	// alpha and beta are the projections of a row, one a value head. Where alpha is nil beta has both: for each key head the
	// betas of its value heads, then their alphas.
	DeltaNet(dst, qkv, alpha, beta Tensor, r Recurrent, s DeltaSpec)
	// SplitGroups takes apart rows that have key elements of queries, key of keys, val of values and val of gates for each of
	// groups key heads: qkv gets the queries of all, then the keys, then the values, and z the gates.
	SplitGroups(qkv, z, x Tensor, groups, key, val int)
	// Mamba2 sets dst to the results of the recurrence over xbc, whose rows are the inputs of all heads, the keys of all groups
	// and their queries; dt has the projected step of each head.
	Mamba2(dst, xbc, dt Tensor, r Recurrent, s MambaSpec)
	// GatedNorm sets dst to act(z) times the RMS norm of x by heads of dim elements, as HeadNorm has it; act is SiLU or
	// Sigmoid. dst may be x.
	GatedNorm(dst, x, z Tensor, w Weight, dim int, eps float32, act Act)
	// GroupNorm is HeadNorm with a weight of its own for each element of a row.
	GroupNorm(x Tensor, w Weight, dim int, eps float32)
}

// RecurrentBackend makes their states.
type RecurrentBackend interface {
	// NewRecurrent makes the state of an empty sequence with so many slots for Save. It fails where memory is refused.
	NewRecurrent(s RecurrentShape, slots int) (Recurrent, error)
}
