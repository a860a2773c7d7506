package model_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"terrace/compute/cpu"
	"terrace/model"
)

// recurrentFixtures are one of each kind of recurrent layer.
var recurrentFixtures = []string{"qwen3next", "lfm2moe", "nemotron_h_moe"}

// TestRecurrentFailedRead: a Forward that fails in the middle of its layers leaves recurrent states where they stood.
func TestRecurrentFailedRead(t *testing.T) {
	ids := tokens(20)
	for _, name := range recurrentFixtures {
		data := unzip(t, "golden", name, "model.drawn.gz")
		s := setup{cpu: cpu.Options{Threads: 2}}
		want := newRig(t, data, s).feed(t, ids, 20)
		var st *starving
		s.source = func(m *model.Model, res *model.Resident) model.Source {
			st = &starving{t: t, full: res, rng: rand.New(rand.NewPCG(2, 1)), slots: 2}
			return st
		}
		r := newRig(t, data, s)
		r.feed(t, ids[:6], 4)
		for _, n := range []int{1, 5, 8, 11} {
			for _, rows := range []int{1, 14} {
				if rows == 1 && n > 6 {
					continue // a token has fewer reads than that
				}
				st.failAt = st.calls + n
				err := r.Forward(context.Background(), r.st, model.Batch{Tokens: ids[6 : 6+rows]}, r.src)
				if !errors.Is(err, errRead) || r.st.Pos() != 6 {
					t.Fatalf("%s: error %v at position %d", name, err, r.st.Pos())
				}
			}
		}
		got := r.feed(t, ids[6:], 5)
		if i, j, same := sameBits(got, want[6:]); !same {
			t.Errorf("%s: after failed reads token %d, logit %d is %v, want %v", name, i, j, got[i][j], want[6+i][j])
		}
	}
}

// TestRecurrentCheckpoints: a hybrid goes back to the last checkpoint at or before where it is asked to, and goes on from there
// with the same bits.
func TestRecurrentCheckpoints(t *testing.T) {
	ids := tokens(30)
	for _, name := range recurrentFixtures {
		data := unzip(t, "golden", name, "model.drawn.gz")
		want := newRig(t, data, setup{cpu: cpu.Options{Threads: 1}}).feed(t, ids, 30)
		r := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}, saves: 2})
		r.st.Save() // nothing yet
		r.feed(t, ids[:10], 10)
		r.st.Save()
		r.feed(t, ids[10:20], 7)
		r.st.Save()
		r.st.Save() // once is enough
		r.feed(t, ids[20:25], 1)
		for _, c := range []struct{ to, at int }{{25, 25}, {22, 20}, {19, 10}, {25, 10}, {9, 0}, {30, 0}} {
			if p := r.st.Pos(); p < c.to {
				r.feed(t, ids[p:c.to], 30)
			}
			if c.to == 25 && c.at == 10 {
				c.to = 24 // the checkpoint at 20 went with the way back to 10
			}
			if c.to == 30 {
				c.to = 29 // and that at 10 with the way back to 0
			}
			at := r.st.Truncate(c.to)
			if at != c.at || r.st.Pos() != at {
				t.Fatalf("%s: back to %d came to %d and says %d, want %d", name, c.to, at, r.st.Pos(), c.at)
			}
			got := r.feed(t, ids[at:30], 30)
			if i, j, same := sameBits(got, want[at:]); !same {
				t.Fatalf("%s: from %d on token %d, logit %d is %v, want %v", name, at, i, j, got[i][j], want[at+i][j])
			}
		}
		if m := r.Model; m.CheckpointBytes() == 0 {
			t.Errorf("%s: checkpoints of no bytes", name)
		}
	}
}

// TestRecurrentDecodeAllocatesNothing is TestDecodeAllocatesNothing for each kind of recurrent layer.
func TestRecurrentDecodeAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not those of a build without the race detector")
	}
	for _, name := range recurrentFixtures {
		for _, threads := range []int{1, 2} {
			r := newRig(t, unzip(t, "golden", name, "model.drawn.gz"), setup{cpu: cpu.Options{Threads: threads}, ahead: 2, saves: 2})
			out := make([]float32, r.Config().Vocab)
			one, ctx := []int32{7}, context.Background()
			n := testing.AllocsPerRun(50, func() {
				if err := r.Forward(ctx, r.st, model.Batch{Tokens: one, Logits: model.LastLogits, Out: out}, r.src); err != nil {
					t.Fatal(err)
				}
				r.st.Save()
			})
			if n != 0 {
				t.Errorf("%s, %d threads: %v allocations a token, want 0", name, threads, n)
			}
		}
	}
}
