package model_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"terrace/compute/cpu"
	"terrace/model"
)

// TestGoldenSameBits: neither threads, nor the cut into batches, nor which experts are there shows in the logits of any
// fixture. The batches are as large as the model allows, so that windowed layers have no more room than they need.
func TestGoldenSameBits(t *testing.T) {
	for _, name := range fixtures {
		if (testing.Short() || raceEnabled) && name != "qwen3moe-kquants" && name != "gpt-oss" {
			continue
		}
		data := unzip(t, "golden", name, "model.drawn.gz")
		ids := readGolden(t, name).Long.Tokens[:48]
		if name == "gpt-oss" || name == "gemma4" || name == "gemma4-small" {
			ids = readGolden(t, name).Long.Tokens[:200] // several times round the ring
		}
		for _, exact := range []bool{false, true} {
			var want [][]float32
			for _, c := range []struct{ threads, cut, slots, ahead int }{{2, 200, 0, 0}, {1, 7, 0, 1}, {2, 1, 0, 2}, {1, 13, 3, 2}} {
				s := setup{cpu: cpu.Options{Threads: c.threads, Exact: exact}, rows: c.cut, ahead: c.ahead}
				if c.slots > 0 {
					s.source = func(m *model.Model, r *model.Resident) model.Source {
						return &starving{t: t, full: r, rng: rand.New(rand.NewPCG(1, 1)), slots: c.slots, ahead: c.ahead}
					}
				}
				got := newRig(t, data, s).feed(t, ids, c.cut)
				if want == nil {
					want = got
				}
				if r, j, same := sameBits(got, want); !same {
					t.Errorf("%s, exact %t, %+v: token %d, logit %d is %v, want the bits of %v", name, exact, c, r, j, got[r][j], want[r][j])
				}
			}
		}
	}
}

// TestGoldenTimeline: for every fixture, a prompt without logits but for the last, then going back and on again, gives the
// logits of one go; and a warm decode step allocates nothing.
func TestGoldenTimeline(t *testing.T) {
	ctx := context.Background()
	for _, name := range fixtures {
		if raceEnabled && name != "gpt-oss" {
			continue
		}
		data := unzip(t, "golden", name, "model.drawn.gz")
		ids := readGolden(t, name).Long.Tokens[:220]
		want := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}}).feed(t, ids, 512)
		r := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}, rows: 16, ahead: 2})
		out := make([]float32, r.Config().Vocab)
		to := func(end int) {
			t.Helper()
			for r.st.Pos() < end {
				b := model.Batch{Tokens: ids[r.st.Pos():min(end, r.st.Pos()+16)]}
				if r.st.Pos()+len(b.Tokens) == end {
					b.Logits, b.Out = model.LastLogits, out
				}
				if err := r.Forward(ctx, r.st, b, r.src); err != nil {
					t.Fatal(err)
				}
			}
			if _, j, same := sameBits([][]float32{out}, want[end-1:]); !same {
				t.Errorf("%s, %d tokens: logit %d is %v, want the bits of %v", name, end, j, out[j], want[end-1][j])
			}
		}
		to(130)
		for _, back := range []int{129, 120, 60, 1, 0} {
			at := r.st.Truncate(min(back, r.st.Pos()))
			if at > back || at != r.st.Pos() || at != 0 && at != back {
				t.Errorf("%s: back to %d tokens, there are %d", name, back, at)
			}
			to(max(at+1, 140))
		}
		to(150)
		one := []int32{7}
		n := testing.AllocsPerRun(20, func() {
			if err := r.Forward(ctx, r.st, model.Batch{Tokens: one, Logits: model.LastLogits, Out: out}, r.src); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 && !raceEnabled {
			t.Errorf("%s: %v allocations a token, want 0", name, n)
		}
	}
}
