package model_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"terrace/compute/cpu"
	"terrace/model"
)

// stream is a sequence of a test, and the logits that it got alone at each position.
type stream struct {
	st   *model.State
	ids  []int32
	want [][]float32
	out  []float32 // of the pass at work
	mode model.LogitsMode
}

// TestSameBitsBeside: every fixture gives each sequence the logits that it gets alone, whoever runs beside it: decode steps
// beside pieces of prompts, with logits of all rows, of the last or of none, the last layer narrowed or not.
func TestSameBitsBeside(t *testing.T) {
	ctx := context.Background()
	for _, name := range fixtures {
		if (testing.Short() || raceEnabled) && name != "qwen4exp" && name != "gpt-oss" {
			continue
		}
		data := unzip(t, "golden", name, "model.drawn.gz")
		long := readGolden(t, name).Long.Tokens
		var ids [][]int32
		for i := range 4 {
			x := slices.Clone(long[i*17 : i*17+150+9*i])
			if i == 3 {
				copy(x, ids[0][:60]) // a beginning that two share
			}
			ids = append(ids, x)
		}
		var wants [][][]float32
		for _, x := range ids {
			wants = append(wants, newRig(t, data, setup{cpu: cpu.Options{Threads: 1}, rows: 200}).feed(t, x, 200))
		}
		for seed, c := range []struct{ threads, slots, ahead, most int }{{2, 0, 2, 24}, {1, 3, 1, 5}} {
			rng := rand.New(rand.NewPCG(uint64(seed), 7))
			s := setup{cpu: cpu.Options{Threads: c.threads}, rows: 3*c.most + 9, ahead: c.ahead}
			if c.slots > 0 {
				s.source = func(m *model.Model, r *model.Resident) model.Source {
					return &starving{t: t, full: r, rng: rng, slots: c.slots, ahead: c.ahead}
				}
			}
			r := newRig(t, data, s)
			vocab := r.Config().Vocab
			var all []*stream
			for i := range ids {
				st, err := r.NewState(320, s.k, s.v, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer st.Free()
				all = append(all, &stream{st: st, ids: ids[i], want: wants[i]})
			}
			together := 0
			for {
				var seqs []model.Seq
				var who []*stream
				for _, i := range rng.Perm(len(all)) {
					x := all[i]
					left := len(x.ids) - x.st.Pos()
					if left == 0 || rng.IntN(5) == 0 {
						continue
					}
					n := 1
					if rng.IntN(2) == 0 && len(seqs) < 3 {
						n = min(left, 1+rng.IntN(c.most))
					}
					x.mode = model.LogitsMode(rng.IntN(3))
					b := model.Batch{Tokens: x.ids[x.st.Pos() : x.st.Pos()+n], Logits: x.mode}
					switch x.mode {
					case model.LastLogits:
						b.Out = make([]float32, vocab)
					case model.AllLogits:
						b.Out = make([]float32, n*vocab)
					}
					x.out = b.Out
					seqs, who = append(seqs, model.Seq{State: x.st, Batch: b}), append(who, x)
				}
				if len(seqs) == 0 {
					if slices.IndexFunc(all, func(x *stream) bool { return x.st.Pos() < len(x.ids) }) < 0 {
						break
					}
					continue
				}
				if len(seqs) > 1 {
					together++
				}
				if err := r.ForwardAll(ctx, seqs, r.src); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, x := range who {
					rows := len(x.out) / vocab
					for i := range rows {
						p := x.st.Pos() - rows + i
						if _, j, same := sameBits([][]float32{x.out[i*vocab : (i+1)*vocab]}, x.want[p:]); !same {
							t.Fatalf("%s, %+v: position %d, logit %d is %v beside others, %v alone", name, c, p, j, x.out[i*vocab+j], x.want[p][j])
						}
					}
				}
			}
			if together < 10 {
				t.Errorf("%s: only %d passes of several sequences", name, together)
			}
		}
	}
}

// TestBatchFails: a pass that fails leaves all its sequences where they stood, recurrent ones too, and the next gives the
// logits that were due.
func TestBatchFails(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"qwen3next", "gpt-oss"} {
		data := unzip(t, "golden", name, "model.drawn.gz")
		s := setup{cpu: cpu.Options{Threads: 2}, rows: 32}
		a, b := tokens(20), tokens(40)[20:]
		wantA, wantB := newRig(t, data, s).feed(t, a, 20), newRig(t, data, s).feed(t, b, 20)
		var src *starving
		s.source = func(m *model.Model, res *model.Resident) model.Source {
			src = &starving{t: t, full: res, rng: rand.New(rand.NewPCG(2, 1)), slots: 2}
			return src
		}
		r := newRig(t, data, s)
		other, err := r.NewState(64, s.k, s.v, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Free()
		r.feed(t, a[:6], 6)
		vocab := r.Config().Vocab
		outA, outB := make([]float32, vocab), make([]float32, 20*vocab)
		pass := func() error {
			return r.ForwardAll(ctx, []model.Seq{
				{State: r.st, Batch: model.Batch{Tokens: a[6:7], Logits: model.LastLogits, Out: outA}},
				{State: other, Batch: model.Batch{Tokens: b, Logits: model.AllLogits, Out: outB}},
			}, r.src)
		}
		for _, n := range []int{1, 4, 9} {
			src.failAt = src.calls + n
			if err := pass(); !errors.Is(err, errRead) || r.st.Pos() != 6 || other.Pos() != 0 {
				t.Fatalf("%s: error %v, positions %d and %d", name, err, r.st.Pos(), other.Pos())
			}
		}
		if err := pass(); err != nil {
			t.Fatal(err)
		}
		if _, j, same := sameBits([][]float32{outA}, wantA[6:]); !same {
			t.Errorf("%s: the first sequence's logit %d differs", name, j)
		}
		for i := range b {
			if _, j, same := sameBits([][]float32{outB[i*vocab : (i+1)*vocab]}, wantB[i:]); !same {
				t.Fatalf("%s: token %d of the second sequence, logit %d differs", name, i, j)
			}
		}
	}
}

// TestBatchAllocatesNothing: decoding several sequences in one pass allocates nothing once warm.
func TestBatchAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not those of a build without the race detector")
	}
	ctx := context.Background()
	for _, name := range []string{"qwen4exp", "gemma4", "nemotron_h_moe", "deepseek2-lite"} {
		r := newRig(t, unzip(t, "golden", name, "model.drawn.gz"), setup{cpu: cpu.Options{Threads: 2}, ahead: 2})
		var seqs []model.Seq
		for i := range 3 {
			st, err := r.NewState(200, 0, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Free()
			seqs = append(seqs, model.Seq{State: st, Batch: model.Batch{Tokens: []int32{int32(7 + i)}, Logits: model.LastLogits, Out: make([]float32, r.Config().Vocab)}})
		}
		for range 10 {
			if err := r.ForwardAll(ctx, seqs, r.src); err != nil {
				t.Fatal(err)
			}
		}
		n := testing.AllocsPerRun(40, func() {
			if err := r.ForwardAll(ctx, seqs, r.src); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations a pass, want 0", name, n)
		}
	}
}
