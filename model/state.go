package model

import (
	"fmt"

	"terrace/compute"
	"terrace/internal/invariant"
)

// State is one sequence: its KV cache, the state of its recurrent layers, and how far it has come.
type State struct {
	kv       compute.KV        // nil where no layer has one
	rec      compute.Recurrent // nil where no layer is recurrent
	index    compute.Index     // nil where no layer has block-sparse attention
	ids      []int32           // the tokens, where a hash of the last ones is wanted
	saved    checkpoints       // of rec, one a slot
	captures []compute.Capture // of rec, in the next step
	pos, ctx int
	high     int // positions written at some time; windowed layers have overwritten those that lie far enough before
	low      int // positions before it never were in windowed layers (Adopt)
}

// KVShape is the geometry of one sequence's cache of ctx positions.
func (m *Model) KVShape(ctx int, k, v compute.KVType) compute.KVShape {
	return compute.KVShape{Layers: m.kvLayers, Context: ctx, Slack: m.maxRows, K: k, V: v}
}

// StateBytes is the size of a sequence of ctx positions: the cache and the recurrent state without checkpoints.
func (m *Model) StateBytes(ctx int, k, v compute.KVType) int64 {
	return m.KVShape(ctx, k, v).Bytes() + m.recurrent.Bytes()*m.recurrent.Copies(0) + m.indexBytes(ctx, k)
}

// indexShape is the block index of a sequence of ctx positions with keys stored as k.
func (m *Model) indexShape(ctx int, k compute.KVType) compute.IndexShape {
	x := m.index
	x.Context, x.Type = ctx, compute.IndexType(k)
	return x
}

// indexBytes is the size of the index and of the tokens' ids.
func (m *Model) indexBytes(ctx int, k compute.KVType) int64 {
	n := int64(0)
	if m.index.Layers > 0 {
		x := m.indexShape(ctx, k)
		n = x.Bytes()
	}
	if m.engram != nil {
		n += 4 * int64(ctx)
	}
	return n
}

// CheckpointBytes is the size of a checkpoint; 0: the model needs none to go back.
func (m *Model) CheckpointBytes() int64 { return m.recurrent.Bytes() }

// StateSize is what a sequence takes, in bytes.
type StateSize struct {
	Token     int64 // of a position's keys and values, all layers
	Index     int64 // of a position's keys in the block index, beside Token
	Windowed  int64 // of those, in layers that keep no more than a window
	Window    int   // the largest window; 0: no layer has one
	Recurrent int64 // of one copy of the matrices of recurrent layers, however long the sequence
	Conv      int64 // of the inputs that their convolutions look back at
}

// StateSize takes the state apart, keys and values stored as k and v.
func (m *Model) StateSize(k, v compute.KVType) StateSize {
	var z StateSize
	one := m.KVShape(1, k, v)
	for l, x := range one.Layers {
		kb, vb := one.Sizes(l)
		z.Token += kb + vb
		if x.Window > 0 {
			z.Windowed += kb + vb
			z.Window = max(z.Window, x.Window)
		}
	}
	z.Index = int64(m.index.Layers) * int64(compute.IndexType(k).RowBytes(m.index.Dim))
	for _, x := range m.recurrent.Layers {
		conv := 4 * int64(x.Channels) * int64(x.Back)
		z.Conv += conv
		z.Recurrent += 4*x.Elems() - conv
	}
	return z
}

// NewState makes an empty sequence with room for ctx positions, keys and values stored as k and v, and for so many
// checkpoints, where the model needs them to go back. It fails when memory is refused. Free gives the memory back.
func (m *Model) NewState(ctx int, k, v compute.KVType, saves int) (*State, error) {
	if m.backend == nil {
		panic("model: NewState before Bind")
	}
	if ctx < 1 || ctx > maxContext {
		return nil, fmt.Errorf("%s: a context of %d tokens, want 1 to %d", m.path, ctx, maxContext)
	}
	s := &State{ctx: ctx}
	if len(m.kvLayers) > 0 {
		kv, err := m.backend.NewKV(m.KVShape(ctx, k, v))
		if err != nil {
			return nil, err
		}
		s.kv = kv
	}
	if len(m.recurrent.Layers) > 0 {
		rec, err := m.backend.NewRecurrent(m.recurrent, saves)
		if err != nil {
			s.Free()
			return nil, err
		}
		s.rec, s.saved = rec, make(checkpoints, saves)
	}
	if m.index.Layers > 0 {
		x, err := m.backend.NewIndex(m.indexShape(ctx, k))
		if err != nil {
			s.Free()
			return nil, err
		}
		s.index = x
	}
	if m.engram != nil {
		s.ids = make([]int32, ctx)
	}
	return s, nil
}

// Pos is the number of tokens the sequence holds.
func (s *State) Pos() int { return s.pos }

// Context is the number of tokens it has room for.
func (s *State) Context() int { return s.ctx }

// Save makes a checkpoint of where the sequence stands, in place of another where all are taken. Models that need none to go
// back make none.
func (s *State) Save() {
	if s.rec == nil || s.pos == 0 {
		return
	}
	if slot, ok := s.saved.take(s.pos); ok {
		s.rec.Save(slot)
	}
}

// Truncate goes back to the first pos tokens, or to fewer where the state cannot stand there any more: a layer's window has
// lost what it would see, or recurrent layers have no checkpoint there. It answers how many tokens the sequence holds now.
func (s *State) Truncate(pos int) int {
	if pos < 0 || pos > s.pos {
		panic(fmt.Sprintf("model: Truncate to %d of a sequence of %d tokens", pos, s.pos))
	}
	if pos == s.pos {
		return pos
	}
	was := s.pos
	if s.rec != nil {
		slot, at, ok := s.saved.best(pos)
		if pos = at; ok && s.sees(pos) {
			s.rec.Restore(slot)
		} else {
			pos = 0
			s.rec.Clear()
		}
		s.saved.cut(pos)
	} else if !s.sees(pos) {
		pos = 0
	}
	if s.pos = pos; pos == 0 {
		s.high, s.low = 0, 0
	}
	if invariant.On {
		s.poison(pos, was)
	}
	return pos
}

// poison makes what caches in RAM hold of the positions from first to end unlike anything that could be read there: the sequence
// no longer has them.
func (s *State) poison(first, end int) {
	type poisoner interface{ Poison(first, end int) }
	if p, ok := s.kv.(poisoner); ok {
		p.Poison(first, end)
	}
	if p, ok := s.index.(poisoner); ok {
		p.Poison(first, end)
	}
}

// Lost tells that what the sequence remembers is gone, whoever lost it: it is at its start.
func (s *State) Lost() { s.reset() }

// reset goes back to the start.
func (s *State) reset() {
	if s.rec != nil {
		s.rec.Clear()
	}
	s.saved.cut(0)
	s.pos, s.high, s.low = 0, 0, 0
}

// sees reports whether windowed layers still hold what the token at pos will see.
func (s *State) sees(pos int) bool {
	if pos == 0 || s.kv == nil {
		return true
	}
	shape := s.kv.Shape()
	for l := range shape.Layers {
		cells := shape.Cells(l)
		if w := shape.Layers[l].Window; w > 0 && max(0, pos-w+1) < s.low || cells < s.ctx && max(0, pos-w+1) < s.high-cells {
			return false
		}
	}
	return true
}

// begin tells that n more positions are about to be written.
func (s *State) begin(n int) { s.high = max(s.high, s.pos+n) }

// commit tells that they were.
func (s *State) commit(n int) {
	if s.rec != nil {
		s.rec.Commit()
	}
	s.pos += n
}

// Free gives the memory back.
func (s *State) Free() {
	if s.kv != nil {
		s.kv.Free()
	}
	if s.rec != nil {
		s.rec.Free()
	}
	if s.index != nil {
		s.index.Free()
	}
}

// Reach is how many of the first n tokens of the sequence CopyPrefix can take from it: n, or fewer where a layer's window has
// lost what the token at n would see, or recurrent layers have no checkpoint there.
func (s *State) Reach(n int) int {
	if n < 0 || n > s.pos {
		panic(fmt.Sprintf("model: the first %d tokens of a sequence of %d", n, s.pos))
	}
	if s.rec != nil && n < s.pos {
		_, n, _ = s.saved.best(n)
	}
	if !s.sees(n) {
		return 0
	}
	return n
}

// CopyPrefix makes s, whatever it held, the first n tokens of another sequence of the model and of the same context and types,
// which keeps what it has; n is what Reach has answered. What follows has the bits that it would have there.
func (s *State) CopyPrefix(from *State, n int) {
	if s == from || from.Reach(n) != n || s.ctx != from.ctx {
		panic(fmt.Sprintf("model: the first %d tokens of a sequence of %d, a context of %d, into one of %d", n, from.pos, from.ctx, s.ctx))
	}
	if s.kv != nil {
		s.kv.CopyPrefix(from.kv, n)
	}
	if s.index != nil {
		s.index.CopyPrefix(from.index, n)
	}
	copy(s.ids, from.ids[:min(n, len(from.ids))])
	if s.rec != nil {
		slot := -1
		if n < from.pos {
			slot, _, _ = from.saved.best(n)
		}
		if n == 0 {
			s.rec.Clear()
		} else {
			s.rec.CopyFrom(from.rec, slot)
		}
		s.saved.cut(0)
	}
	s.pos, s.high, s.low = n, from.high, from.low
	if n == 0 {
		s.high, s.low = 0, 0
	}
}

// Trim gives back the memory of positions behind the sequence's last. It answers false where the backend cannot.
func (s *State) Trim() bool {
	ok := s.kv == nil || s.kv.Trim(s.pos)
	return (s.index == nil || s.index.Trim(s.pos)) && ok
}

// Committed is how much memory a sequence of ctx positions has touched once it held n of them, in whole pages: what Trim gives
// back behind its end. What does not grow with n is StateFloor.
func (m *Model) Committed(ctx, n int, k, v compute.KVType) int64 {
	const page = 4096
	sum := int64(0)
	run := func(bytes int64) { // which may begin anywhere in a page
		if bytes > 0 {
			sum += (bytes + 2*page - 2) / page * page
		}
	}
	shape := m.KVShape(ctx, k, v)
	for l, x := range shape.Layers {
		if shape.Cells(l) < ctx {
			continue
		}
		for range x.Heads {
			run(int64(n) * int64(k.RowBytes(x.KeyDim)))
			if !x.Latent {
				run(int64(n) * int64(v.RowBytes(x.ValDim)))
			}
		}
	}
	if m.index.Layers > 0 {
		x := m.indexShape(ctx, k)
		row := int64(x.Type.RowBytes(x.Dim))
		for range x.Layers {
			run(int64(n/x.Block) * row)
			run(int64(n-n/x.Block) * row)
		}
	}
	return sum
}

// StateFloor is what a sequence of ctx positions takes however short it is: layers that keep no more than a window, recurrent
// states without checkpoints, tokens' numbers.
func (m *Model) StateFloor(ctx int, k, v compute.KVType) int64 {
	sum := m.recurrent.Bytes() * m.recurrent.Copies(0)
	shape := m.KVShape(ctx, k, v)
	for l := range shape.Layers {
		if shape.Cells(l) < ctx {
			kb, vb := shape.Sizes(l)
			sum += kb + vb
		}
	}
	if m.engram != nil {
		sum += 4 * int64(ctx)
	}
	return sum
}
