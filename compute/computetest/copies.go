package computetest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"terrace/compute"
)

// copies moves what caches hold from one to another of a different size, as bytes: they must come back as they went in, from the
// places that their ranges name, and touch nothing beside them.
func (s Suite) copies(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for k := range compute.KVType(compute.KVTypes) {
		shape := compute.KVShape{K: k, V: (k + 1) % compute.KVTypes, Slack: 20, Context: 300, Layers: []compute.KVLayer{
			{Heads: 2, KeyDim: 64, ValDim: 32}, {Heads: 1, KeyDim: 96, ValDim: 64, Latent: true}, {Heads: 3, KeyDim: 32, ValDim: 32, Window: 50},
		}}
		kv, err := s.Backend.NewKV(shape)
		if err != nil {
			t.Fatal(err)
		}
		want := map[compute.KVRange][]byte{} // of each head's whole run
		for l, x := range shape.Layers {
			for h := range x.Heads {
				for _, v := range []bool{false, true} {
					if v && x.Latent {
						continue
					}
					all := compute.KVRange{Layer: l, Head: h, Values: v, Cells: shape.Cells(l)}
					want[all] = noise(shape.RangeBytes(all))
					kv.CopyIn(all, want[all])
				}
			}
		}
		for all, b := range want {
			row := len(b) / all.Cells
			part := compute.KVRange{Layer: all.Layer, Head: all.Head, Values: all.Values, Cell: 17, Cells: 40}
			mine := noise(40 * row)
			kv.CopyIn(part, mine)
			copy(b[17*row:], mine)
		}
		for all, b := range want {
			got := make([]byte, len(b))
			kv.CopyOut(got, all)
			if !bytes.Equal(got, b) {
				t.Errorf("keys %s, %+v: other bytes came back", k, all)
			}
		}
		panics(t, "a range of other bytes", func() { kv.CopyOut(make([]byte, 3), compute.KVRange{Cells: 1}) })
		panics(t, "values of a latent layer", func() { kv.CopyOut(nil, compute.KVRange{Layer: 1, Values: true}) })
		panics(t, "cells beyond the last", func() {
			kv.CopyIn(compute.KVRange{Cell: 300, Cells: 1}, make([]byte, shape.RangeBytes(compute.KVRange{Cells: 1})))
		})
		kv.Free()
	}

	is := compute.IndexShape{Layers: 3, Dim: 24, Block: 8, Context: 100, Type: compute.KVF16}
	index, err := s.Backend.NewIndex(is)
	if err != nil {
		t.Fatal(err)
	}
	defer index.Free()
	want := map[compute.IndexRange][]byte{}
	for l := range is.Layers {
		for _, blocks := range []bool{true, false} {
			n := is.Blocks()
			if !blocks {
				n *= is.Block - 1
			}
			all := compute.IndexRange{Layer: l, Blocks: blocks, N: n}
			want[all] = noise(is.RangeBytes(all))
			index.CopyIn(all, want[all])
		}
	}
	for all, b := range want {
		part := compute.IndexRange{Layer: all.Layer, Blocks: all.Blocks, First: 3, N: 7}
		got := make([]byte, is.RangeBytes(part))
		index.CopyOut(got, part)
		row := len(got) / 7
		if !bytes.Equal(got, b[3*row:10*row]) {
			t.Errorf("%+v: other bytes came back", part)
		}
	}
	for pos := range 40 {
		blocks, others := is.Before(pos)
		b1, o1 := is.Before(pos + 1)
		if whole := pos%8 == 7; blocks+others != pos || (b1 > blocks) != whole || (o1 > others) == whole {
			t.Errorf("%d block keys and %d others before position %d", blocks, others, pos)
		}
	}

	a, b := s.state(t, compute.RecurrentLayer{Heads: 2, KeyDim: 8, ValDim: 4}, 1), s.state(t, compute.RecurrentLayer{Heads: 2, KeyDim: 8, ValDim: 4}, 0)
	state := noise(int(a.Shape().Bytes()))
	a.CopyIn(state)
	a.Save(0)
	got := make([]byte, len(state))
	a.CopyOut(got)
	b.CopyIn(got)
	a.Clear()
	a.CopyOut(got)
	if !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("a cleared state is not zero")
	}
	a.Restore(0)
	for _, x := range []compute.Recurrent{a, b} {
		x.CopyOut(got)
		if !bytes.Equal(got, state) {
			t.Error("other bytes of a recurrent state came back")
		}
	}
	panics(t, "a state of other bytes", func() { a.CopyIn(state[1:]) })
}

// panics fails where f does not panic.
func panics(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}
