package compute

import "errors"

// Keeper is a backend that keeps experts in memory of its own, by their keys. Its methods may be called from any goroutine.
type Keeper interface {
	// Hold reports whether the expert is kept, and if so keeps it until Release; ExpertFFN needs none of its bytes then.
	Hold(key uint64) bool
	Release(key uint64)
	// Keeps is Hold without a promise.
	Keeps(key uint64) bool
}

// ExpertLayer is all experts of a layer, which a LayerKeeper keeps.
type ExpertLayer struct {
	// Expert has what they share: types and shapes without bytes, the function, and the key of the first; the keys of the others
	// follow it. Biases are those of all experts, one after the other.
	Expert
	N int
}

// LayerKeeper is a Keeper that knows of whole layers.
type LayerKeeper interface {
	Keeper
	// HoldLayer reports whether the n experts from a key on are all kept, and if so keeps them until ReleaseLayer.
	HoldLayer(first uint64, n int) bool
	ReleaseLayer(first uint64)
}

// ErrNoRoom is the answer of a Keeper whose memory is taken.
var ErrNoRoom = errors.New("no room for an expert")

// Slots is a Keeper that is told what to keep, from another goroutine than the one that computes and beside it.
type Slots interface {
	Keeper
	// Put copies an expert to the device; when it returns, Hold finds the expert. Where there is no room for it the error wraps
	// ErrNoRoom, and nothing has changed.
	Put(e *Expert) error
	// Drop lets an expert go. It answers false for one that is held, or not kept.
	Drop(key uint64) bool
}

// HostRows is a backend whose tensors lie in the host's memory.
type HostRows interface {
	Backend
	// Floats are the elements of the rows in use, which the caller may change. Nothing recorded may still write them.
	Floats(t Tensor) []float32
}

// Guest is the encoder of a device that takes rows of its tensors from the host while it runs.
type Guest interface {
	Encoder
	// OnRun has f called whenever what was recorded before the first row that Await promised since the last call has begun to run:
	// f fills what Await has answered, and the device goes on with the rest when it returns.
	OnRun(f func())
	// Await sets rows first to first+n-1 of dst to what f will have put into the slice it answers.
	Await(dst Tensor, first, n int) []float32
}

// Sharer is an encoder that may want rows of x on the host as well as on the device: those that experts read. It is told before the
// Submit that their router's scores are read with.
type Sharer interface{ Share(x Tensor) }

// Placer is a backend that has layers in different places.
type Placer interface {
	// Layer says that the next weights are of this layer; -1: of none.
	Layer(n int)
}
