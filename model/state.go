package model

import (
	"fmt"

	"terrace/compute"
)

// State is one sequence: its KV cache and how far it has come. Where a Forward fails, the state stands where it stood.
type State struct {
	kv  compute.KV
	pos int
	ctx int
}

// NewState makes an empty sequence with room for ctx positions, keys and values stored as k and v. It fails when memory is
// refused. Free gives the memory back.
func (m *Model) NewState(ctx int, k, v compute.KVType) (*State, error) {
	if m.backend == nil {
		panic("model: NewState before Bind")
	}
	if ctx < 1 || ctx > maxContext {
		return nil, fmt.Errorf("%s: a context of %d tokens, want 1 to %d", m.path, ctx, maxContext)
	}
	kv, err := m.backend.NewKV(m.KVShape(ctx, k, v))
	if err != nil {
		return nil, err
	}
	return &State{kv: kv, ctx: ctx}, nil
}

// Pos is the number of tokens the sequence holds.
func (s *State) Pos() int { return s.pos }

// Context is the number of tokens it has room for.
func (s *State) Context() int { return s.ctx }

// Truncate goes back to the first pos tokens.
func (s *State) Truncate(pos int) {
	if pos < 0 || pos > s.pos {
		panic(fmt.Sprintf("model: Truncate to %d of a sequence of %d tokens", pos, s.pos))
	}
	s.pos = pos
}

// Free gives the cache's memory back.
func (s *State) Free() { s.kv.Free() }
