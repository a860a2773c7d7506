package model_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"terrace/compute"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/internal/tinymodel"
	"terrace/model"
	"terrace/router"
)

// starving hands out experts in random order from slots whose bytes are overwritten when they come back; at most slots
// of them are out at a time.
type starving struct {
	t     testing.TB
	full  *model.Resident
	rng   *rand.Rand
	slots int
	ahead int

	layers []int // of each Begin
	hints  []hint
	rows   [][]int32 // choices of each Begin
	open   int
	failAt int // fail the n-th Next, 0: never
	calls  int
	waits  int
	reuses int
}

type hint struct {
	at, target, rows int
	scores           []float32
}

func (s *starving) Lookahead(int) int { return s.ahead }

func (s *starving) Hint(at, target int, scores []float32, rows int) {
	s.hints = append(s.hints, hint{at, target, rows, slices.Clone(scores)})
}

var errRead = errors.New("read failed")

func (s *starving) Begin(ctx context.Context, layer int, experts, choices []int32, scores []float32) (model.Request, error) {
	if !slices.IsSorted(experts) || len(slices.Compact(slices.Clone(experts))) != len(experts) {
		s.t.Errorf("layer %d: experts %v are not distinct and rising", layer, experts)
	}
	if d := slices.Compact(slices.Sorted(slices.Values(choices))); !slices.Equal(d, experts) {
		s.t.Errorf("layer %d: experts %v, choices have %v", layer, experts, d)
	}
	if s.open != 0 {
		s.t.Errorf("layer %d begins with %d requests open", layer, s.open)
	}
	s.open++
	s.layers = append(s.layers, layer)
	s.rows = append(s.rows, slices.Clone(choices))
	inner, err := s.full.Begin(ctx, layer, experts, choices, scores)
	if err != nil {
		return nil, err
	}
	q := &starvingRequest{s: s}
	for range experts {
		id, e, _, _ := inner.Next(ctx, true)
		q.want = append(q.want, id)
		q.from = append(q.from, e)
	}
	s.rng.Shuffle(len(q.want), func(i, j int) {
		q.want[i], q.want[j] = q.want[j], q.want[i]
		q.from[i], q.from[j] = q.from[j], q.from[i]
	})
	return q, nil
}

type starvingRequest struct {
	s    *starving
	want []int32
	from []*compute.Expert
	out  []*compute.Expert
	done bool
}

func (q *starvingRequest) Next(ctx context.Context, wait bool) (int32, *compute.Expert, bool, error) {
	s := q.s
	if q.done || len(q.want) == 0 {
		s.t.Error("Next on a request that is over")
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, false, err
	}
	if len(q.out) == s.slots || !wait && s.rng.IntN(3) == 0 {
		if wait {
			s.t.Error("Next waits for a slot, and all are out")
		}
		return 0, nil, false, nil
	}
	if s.calls++; s.calls == s.failAt {
		return 0, nil, false, errRead
	}
	if wait {
		s.waits++
	}
	id, e := q.want[0], q.from[0]
	q.want, q.from = q.want[1:], q.from[1:]
	c := *e
	c.Gate.Data, c.Up.Data, c.Down.Data = slices.Clone(e.Gate.Data), slices.Clone(e.Up.Data), slices.Clone(e.Down.Data)
	q.out = append(q.out, &c)
	return id, &c, true, nil
}

func (q *starvingRequest) Recycle() {
	q.s.reuses += len(q.out)
	for _, e := range q.out {
		for _, b := range [][]byte{e.Gate.Data, e.Up.Data, e.Down.Data} {
			for i := range b {
				b[i] = 0xff
			}
		}
	}
	q.out = nil
}

func (q *starvingRequest) Done() {
	if q.done {
		q.s.t.Error("Done twice")
	}
	q.done = true
	q.s.open--
	q.Recycle()
}

// tiny is a model with quantised experts, a few layers deep.
func tiny(t testing.TB, o tinymodel.Options) []byte {
	t.Helper()
	f, err := tinymodel.File(o)
	if err != nil {
		t.Fatal(err)
	}
	return encode(t, f)
}

var tinyOptions = tinymodel.Options{Layers: 4, Hidden: 64, ExpertFFN: 64, TopK: 3, Gate: gguf.Q4_0, Up: gguf.Q8_0, Down: gguf.Q5_1, Attn: gguf.Q8_0, Embd: gguf.F16}

func tokens(n int) []int32 {
	r := rand.New(rand.NewPCG(5, 6))
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(r.IntN(288))
	}
	return x
}

// TestSameBits: logits do not depend on threads, batches, the order of arrival, the number of slots or the lookahead.
func TestSameBits(t *testing.T) {
	data := tiny(t, tinyOptions)
	ids := tokens(48)
	for _, exact := range []bool{false, true} {
		var want [][]float32
		for i, c := range []struct{ threads, cut, slots, ahead int }{
			{1, 48, 0, 0}, {1, 7, 0, 2}, {2, 48, 0, 1}, {2, 1, 0, 0}, {2, 7, 3, 2}, {2, 48, 1, 0}, {3, 48, 4, 2}, {1, 1, 3, 2},
		} {
			s := setup{cpu: cpu.Options{Threads: c.threads, Exact: exact}, ahead: c.ahead}
			var st *starving
			if c.slots > 0 {
				s.source = func(m *model.Model, r *model.Resident) model.Source {
					st = &starving{t: t, full: r, rng: rand.New(rand.NewPCG(uint64(i), 1)), slots: c.slots, ahead: c.ahead}
					return st
				}
			}
			got := newRig(t, data, s).feed(t, ids, c.cut)
			if want == nil {
				want = got
			}
			if r, j, same := sameBits(got, want); !same {
				t.Errorf("exact %t, %+v: token %d, logit %d is %v, want the bits of %v", exact, c, r, j, got[r][j], want[r][j])
			}
			if st != nil {
				if st.open != 0 || st.reuses == 0 {
					t.Errorf("%+v: %d requests open, %d experts given back", c, st.open, st.reuses)
				}
				if n := len(st.layers); n != 4*((48+c.cut-1)/c.cut) {
					t.Errorf("%+v: %d layers asked for, want each layer once a batch", c, n)
				}
			}
		}
	}
}

// TestHints: guesses come for the right layers before each Begin, and a hint is what the target's router would say.
func TestHints(t *testing.T) {
	data := tiny(t, tinyOptions)
	var st *starving
	r := newRig(t, data, setup{cpu: cpu.Options{Threads: 1}, source: func(m *model.Model, res *model.Resident) model.Source {
		st = &starving{t: t, full: res, rng: rand.New(rand.NewPCG(1, 1)), slots: 8, ahead: 2}
		return st
	}})
	const rows = 20
	r.feed(t, tokens(rows), rows)
	var got []string
	for _, h := range st.hints {
		got = append(got, fmt.Sprintf("%d-%d", h.at, h.target))
		if h.rows != rows || len(h.scores) != rows*8 {
			t.Errorf("hint %d-%d: %d rows, %d scores", h.at, h.target, h.rows, len(h.scores))
		}
	}
	if want := []string{"0-1", "0-2", "1-2", "1-3", "2-3"}; !slices.Equal(got, want) {
		t.Fatalf("hints %v, want %v", got, want)
	}
	// A guess must know much more about the target's choice than chance, which finds 3/8 of it.
	found, all := 0, 0
	for _, h := range st.hints {
		rule := r.Rule(h.target)
		var g router.GateAhead
		for i := range rows {
			s := router.Signal{Scores: h.scores, Rows: rows, Rule: rule}
			for _, id := range g.Predict(make([]int32, 3), h.at, h.target, s.Row(i)) {
				all++
				if slices.Contains(st.rows[h.target][i*3:i*3+3], id) {
					found++
				}
			}
		}
	}
	t.Logf("gate-ahead finds %d of %d", found, all)
	if 10*found < 5*all {
		t.Errorf("gate-ahead finds %d of %d, no better than chance", found, all)
	}
}

// TestFailedRead: an error leaves the state where it was and the request closed, and the next try gives the same logits.
func TestFailedRead(t *testing.T) {
	data := tiny(t, tinyOptions)
	ids := tokens(12)
	want := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}}).feed(t, ids, 12)
	var st *starving
	r := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}, source: func(m *model.Model, res *model.Resident) model.Source {
		st = &starving{t: t, full: res, rng: rand.New(rand.NewPCG(2, 1)), slots: 2}
		return st
	}})
	r.feed(t, ids[:5], 5)
	for _, n := range []int{1, 2, 9, 15} {
		st.failAt = st.calls + n
		err := r.Forward(context.Background(), r.st, model.Batch{Tokens: ids[5:]}, r.src)
		if !errors.Is(err, errRead) {
			t.Fatalf("error %v, want the failed read", err)
		}
		if r.st.Pos() != 5 || st.open != 0 {
			t.Fatalf("after a failed read: position %d, %d requests open", r.st.Pos(), st.open)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Forward(ctx, r.st, model.Batch{Tokens: ids[5:]}, r.src); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	got := r.feed(t, ids[5:], 7)
	if i, j, same := sameBits(got, want[5:]); !same {
		t.Errorf("after failed reads token %d, logit %d is %v, want %v", i, j, got[i][j], want[5+i][j])
	}
	// Going back and coming again gives the same, too.
	r.st.Truncate(3)
	got = r.feed(t, ids[3:], 4)
	if i, j, same := sameBits(got, want[3:]); !same {
		t.Errorf("after Truncate token %d, logit %d is %v, want %v", i, j, got[i][j], want[3+i][j])
	}
}

// TestLogitsModes: the last row alone and none at all change nothing.
func TestLogitsModes(t *testing.T) {
	data := tiny(t, tinyOptions)
	ids := tokens(20)
	want := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}}).feed(t, ids, 20)
	r := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}})
	if err := r.Forward(context.Background(), r.st, model.Batch{Tokens: ids[:11]}, r.src); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, r.Config().Vocab)
	if err := r.Forward(context.Background(), r.st, model.Batch{Tokens: ids[11:], Logits: model.LastLogits, Out: out}, r.src); err != nil {
		t.Fatal(err)
	}
	if _, j, same := sameBits([][]float32{out}, want[19:]); !same {
		t.Errorf("logit %d is %v, want %v", j, out[j], want[19][j])
	}
}

// TestLastLayer: what a prompt's last layer would compute for rows without logits is left out, and nothing is guessed or
// asked for it.
func TestLastLayer(t *testing.T) {
	const rows = 20
	for _, mode := range []model.LogitsMode{model.NoLogits, model.LastLogits, model.AllLogits} {
		var st *starving
		r := newRig(t, tiny(t, tinyOptions), setup{cpu: cpu.Options{Threads: 1}, source: func(m *model.Model, res *model.Resident) model.Source {
			st = &starving{t: t, full: res, rng: rand.New(rand.NewPCG(1, 1)), slots: 8, ahead: 2}
			return st
		}})
		want := [...]int{0, 1, rows}[mode]
		out := make([]float32, want*r.Config().Vocab)
		if err := r.Forward(context.Background(), r.st, model.Batch{Tokens: tokens(rows), Logits: mode, Out: out}, r.src); err != nil {
			t.Fatal(err)
		}
		last := r.Config().Layers - 1
		got := 0
		if len(st.rows) > last {
			got = len(st.rows[last]) / r.Config().TopK
		}
		if got != want {
			t.Errorf("logits of %d rows: the last layer routed %d", want, got)
		}
		hinted := 0
		for _, h := range st.hints {
			if h.target == last {
				hinted++
				if h.rows != want || len(h.scores) != want*r.Config().Experts {
					t.Errorf("logits of %d rows: a hint about the last layer has %d rows and %d scores", want, h.rows, len(h.scores))
				}
			}
		}
		if hinted != [...]int{0, 2, 2}[mode] {
			t.Errorf("logits of %d rows: %d hints about the last layer", want, hinted)
		}
	}
}

func TestDecodeAllocatesNothing(t *testing.T) {
	for _, threads := range []int{1, 2} {
		r := newRig(t, tiny(t, tinyOptions), setup{cpu: cpu.Options{Threads: threads}, ahead: 2})
		out := make([]float32, r.Config().Vocab)
		one := []int32{7}
		ctx := context.Background()
		n := testing.AllocsPerRun(50, func() {
			if err := r.Forward(ctx, r.st, model.Batch{Tokens: one, Logits: model.LastLogits, Out: out}, r.src); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 && !raceEnabled {
			t.Errorf("%d threads: %v allocations a token, want 0", threads, n)
		}
	}
}

func TestForwardRefuses(t *testing.T) {
	r := newRig(t, tiny(t, tinyOptions), setup{cpu: cpu.Options{Threads: 1}, rows: 8, context: 10})
	ctx := context.Background()
	r.feed(t, tokens(6), 6)
	for _, c := range []struct {
		ids  []int32
		want string
	}{
		{nil, "model: an empty batch, want 1 to 8 tokens"},
		{tokens(9), "model: a batch of 9 tokens, want at most 8"},
		{tokens(5), "model: 5 tokens after the 6 in a context of 10: the context is full"},
		{[]int32{1, 288}, "model: token 1 of the batch is 288, outside the vocabulary of 288"},
		{[]int32{-1}, "model: token 0 of the batch is -1, outside the vocabulary of 288"},
	} {
		err := r.Forward(ctx, r.st, model.Batch{Tokens: c.ids}, r.src)
		if err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
		if len(c.ids) == 5 && !errors.Is(err, model.ErrContextFull) {
			t.Errorf("error %v is not ErrContextFull", err)
		}
	}
	r.feed(t, tokens(4), 4)
	if _, err := r.NewState(0, compute.KVF16, compute.KVF16, 0); err == nil {
		t.Error("a context of 0 tokens was taken")
	}
}
