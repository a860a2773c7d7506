package prefetch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"terrace/router"
)

// same compares the counted part of two scores.
func same(t *testing.T, got, want Stats) {
	t.Helper()
	want.Depth = got.Depth
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Stats{})); d != "" {
		t.Errorf("score (- want, + got):\n%s", d)
	}
}

func mustNew(t testing.TB, o Options) *Pipeline {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// One layer, guesses 1, 2 and 3, choice 1, 2 and 9: what becomes of each guess depends on how far its read has come.
func TestFateOfAGuess(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(*fake)
		want Stats
	}{
		{"nothing started", func(*fake) {}, Stats{Issued: 3, Used: 2, Late: 2, Cancelled: 1, NeededInFlight: 2, NeededAbsent: 1}},
		{"all started", func(f *fake) { f.start(3) }, Stats{Issued: 3, Used: 2, Late: 2, Wasted: 1, NeededInFlight: 2, NeededAbsent: 1}},
		{"all read", func(f *fake) { f.readAll() }, Stats{Issued: 3, Used: 2, Wasted: 1, NeededResident: 2, NeededAbsent: 1}},
		{"first read, second started", func(f *fake) { f.start(1); f.finish(); f.start(1) },
			Stats{Issued: 3, Used: 2, Late: 1, Cancelled: 1, NeededResident: 1, NeededInFlight: 1, NeededAbsent: 1}},
		{"right one lost", func(f *fake) { f.readAll(); f.evict(1, 2) }, Stats{Issued: 3, Used: 1, Wasted: 1, Dropped: 1, NeededResident: 1, NeededAbsent: 2}},
		{"wrong one lost", func(f *fake) { f.readAll(); f.evict(1, 3) }, Stats{Issued: 3, Used: 2, Dropped: 1, NeededResident: 2, NeededAbsent: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(0)
			pr := &told{say: func(int, int, int) []int32 { return []int32{1, 2, 3} }}
			p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 2, Experts: 10, TopK: 3, Depth: 1})
			p.Hint(0, 1, signal(10, 3, 1))
			c.work(f)
			p.Settle(1, []int32{1, 9, 2}, []int32{1, 9, 2}, nil)
			c.want.Recall1 = 2. / 3
			same(t, p.Stats(), c.want)
			if got := p.Stats().Ready(); got != float64(c.want.NeededResident+c.want.NeededInFlight)/3 {
				t.Errorf("ready %v", got)
			}
		})
	}
}

// What is there already is not issued, and neither used nor wasted; it is protected all the same.
func TestResidentGuess(t *testing.T) {
	f := newFake(0)
	f.demand(1, []int32{1, 3})
	p := mustNew(t, Options{Cache: f, Predictor: &told{say: func(int, int, int) []int32 { return []int32{1, 2, 3} }}, Layers: 2, Experts: 10, TopK: 3, Depth: 1})
	p.Hint(0, 1, signal(10, 3, 1))
	if !f.held[key{1, 1}].guarded || !f.held[key{1, 3}].guarded {
		t.Error("a resident guess is not protected")
	}
	p.Settle(1, []int32{1, 2, 4}, []int32{1, 2, 4}, nil)
	same(t, p.Stats(), Stats{Issued: 1, Used: 1, Late: 1, Recall1: 2. / 3, NeededResident: 1, NeededInFlight: 1, NeededAbsent: 1})
	if f.held[key{1, 3}].guarded {
		t.Error("a wrong guess stays protected after its layer")
	}
}

// A wasted read that stays in memory may serve a later token once; one that left the cache may not.
func TestRevived(t *testing.T) {
	guess := []int32{1, 2}
	f := newFake(0)
	p := mustNew(t, Options{Cache: f, Predictor: &told{say: func(int, int, int) []int32 { return guess }}, Layers: 2, Experts: 10, TopK: 2, Depth: 1})
	token := func(choice ...int32) {
		p.Hint(0, 1, signal(10, 2, 1))
		f.readAll()
		p.Settle(1, choice, choice, nil)
		f.demand(1, choice)
	}
	token(8, 9) // 1 and 2 wasted
	guess = []int32{5, 6}
	token(1, 8) // 1 revived; 5 and 6 wasted
	token(1, 5) // 1 is an ordinary resident now, 5 revived, 6 still idle
	f.evict(1, 2)
	f.evict(1, 6)
	token(2, 5) // 2 was lost: nothing to revive; 6 is issued again and wasted again
	same(t, p.Stats(), Stats{Issued: 5, Wasted: 5, Revived: 2, Recall1: 2. / 8, NeededResident: 5, NeededAbsent: 3})
}

// The guess from two layers away is refined by the one from next door: 1 is confirmed, 2 and 3 are taken back, 4 added.
func TestRefine(t *testing.T) {
	for _, c := range []struct {
		name    string
		started int
		choice  []int32
		want    Stats
	}{
		{"unstarted", 0, []int32{1, 4, 5}, Stats{Issued: 5, Used: 3, Late: 3, Cancelled: 2, Recall1: 1, Recall2: 1. / 3, NeededInFlight: 3}},
		{"one started: it is wasted", 2, []int32{1, 4, 5}, Stats{Issued: 5, Used: 3, Late: 3, Cancelled: 1, Wasted: 1, Recall1: 1, Recall2: 1. / 3, NeededInFlight: 3}},
		{"one started: it was right", 2, []int32{1, 2, 5}, Stats{Issued: 5, Used: 3, Late: 3, Cancelled: 2, Recall1: 2. / 3, Recall2: 2. / 3, NeededInFlight: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(0)
			f.logging = true
			pr := &told{noting: true, say: func(k, _, _ int) []int32 { return [][]int32{{5, 1, 4}, {1, 2, 3}}[k-1] }}
			p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 3, Experts: 10, TopK: 3, Depth: 2})
			p.Hint(0, 2, signal(10, 3, 1))
			f.start(c.started)
			p.Hint(1, 2, signal(10, 3, 1))
			want := "2/1 2/2 2/3 -2/2 -2/3 2/5 2/4"
			if c.started == 2 {
				want = "2/1 2/2 2/3 -2/3 2/5 2/4"
			}
			if got := strings.Join(f.log, " "); got != want {
				t.Errorf("the cache saw %q, want %q", got, want)
			}
			if d := cmp.Diff([][]int32{{5, 1, 4}, {1, 2, 3}}, [][]int32{p.Guesses(2, 1), p.Guesses(2, 2)}); d != "" {
				t.Error(d)
			}
			p.Settle(2, c.choice, c.choice, nil)
			same(t, p.Stats(), c.want)
			if p.Guesses(2, 1) != nil || p.Guesses(2, 2) != nil {
				t.Error("guesses outlive their layer")
			}
			if len(pr.observed) != 1 {
				t.Errorf("observed %q", pr.observed)
			}
		})
	}
}

// A resident guess that is not repeated loses its protection at once, although nothing was issued for it.
func TestRefineResident(t *testing.T) {
	f := newFake(0)
	f.demand(2, []int32{3})
	pr := &told{say: func(k, _, _ int) []int32 { return [][]int32{{1, 2}, {1, 3}}[k-1] }}
	p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 3, Experts: 10, TopK: 2, Depth: 2})
	p.Hint(0, 2, signal(10, 2, 1))
	if !f.held[key{2, 3}].guarded {
		t.Error("a resident guess is not protected")
	}
	p.Hint(1, 2, signal(10, 2, 1))
	if f.held[key{2, 3}].guarded || !f.held[key{2, 1}].guarded {
		t.Error("the protection did not follow the guesses")
	}
	same(t, p.Stats(), Stats{Issued: 2})
}

// A farther hint that comes late does not undo a nearer one, but is compared with the truth.
func TestFartherHintLate(t *testing.T) {
	f := newFake(0)
	pr := &told{say: func(k, _, _ int) []int32 { return [][]int32{{1, 2}, {3, 4}}[k-1] }}
	p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 3, Experts: 10, TopK: 2, Depth: 2})
	p.Hint(1, 2, signal(10, 2, 1))
	p.Hint(0, 2, signal(10, 2, 1))
	p.Settle(2, []int32{1, 4}, []int32{1, 4}, nil)
	same(t, p.Stats(), Stats{Issued: 2, Used: 1, Late: 1, Cancelled: 1, Recall1: 0.5, Recall2: 0.5, NeededInFlight: 1, NeededAbsent: 1})
}

// With room for three guesses the nearer layer has them, whatever is asked for the farther one, and what comes free
// goes to the nearer layer first.
func TestNearestFirst(t *testing.T) {
	f := newFake(3)
	f.logging = true
	pr := &told{say: func(k, target, _ int) []int32 { return []int32{int32(target), int32(target) + 4} }}
	p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 4, Experts: 10, TopK: 2, Depth: 2})
	sig := signal(10, 2, 1)
	f.demand(0, []int32{7, 8}) // two slots are taken by unguarded residents; both are fair game, the third is free
	f.held[key{0, 7}].guarded = true
	f.held[key{0, 8}].guarded = true // as if leased
	p.Hint(0, 1, sig)                // one of two
	p.Hint(0, 2, sig)                // none
	if got := strings.Join(f.log, " "); got != "1/1" {
		t.Fatalf("the cache saw %q", got)
	}
	f.held[key{0, 7}].guarded = false
	p.Hint(0, 2, sig)
	if got := strings.Join(f.log, " "); got != "1/1 1/5" {
		t.Fatalf("the cache saw %q", got)
	}
	f.held[key{0, 8}].guarded = false
	p.Issue(0)
	if got := strings.Join(f.log, " "); got != "1/1 1/5 2/2" {
		t.Fatalf("the cache saw %q", got)
	}
	if s := p.Stats(); s.Issued != 3 || s.Refused != 3 {
		t.Errorf("issued %d, refused %d, want 3 and 3: 1/5, 2/2 and 2/6 found no slot at first", s.Issued, s.Refused)
	}
}

// In prefill the cap cuts the list of votes, and the recall is each row's own.
func TestRows(t *testing.T) {
	f := newFake(0)
	f.logging = true
	rows := [][]int32{{1, 2}, {2, 3}, {2, 4}, {1, 5}}
	pr := &told{votes: []int32{2, 1, 3, 4, 5}, say: func(_, _, row int) []int32 { return rows[row] }, noting: true}
	p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: 2, Experts: 10, TopK: 2, Depth: 1, Cap: 3})
	p.Hint(0, 1, signal(10, 2, 4))
	if got := strings.Join(f.log, " "); got != "1/2 1/1 1/3" {
		t.Errorf("the cache saw %q", got)
	}
	f.readAll()
	// Row by row 1, 2, 0 and 1 of 2 are found, although the votes hold all but one of the needed.
	p.Settle(1, []int32{1, 9, 2, 4, 3}, []int32{1, 9, 4, 2, 3, 1, 1, 2}, nil)
	same(t, p.Stats(), Stats{Issued: 3, Used: 3, Recall1: (1 + 1 + 0 + 1) / 8., NeededResident: 3, NeededAbsent: 2})
	if d := cmp.Diff([]string{"1 [1 9 4 2 3 1 1 2]"}, pr.observed); d != "" {
		t.Error(d)
	}
	// A layer that keeps the last row only cannot be compared, and says so.
	p.Hint(0, 1, signal(10, 2, 4))
	p.Settle(1, []int32{1, 2}, []int32{1, 2}, nil)
	if s := p.Stats(); s.Unscored != 4 || s.Recall1 != 3./8 {
		t.Errorf("unscored %d, recall %v", s.Unscored, s.Recall1)
	}
	// A row with fewer guesses than TopK counts what it has.
	rows[0] = []int32{1}
	p.Hint(0, 1, signal(10, 2, 1))
	if d := cmp.Diff([]int32{1, -1}, p.Guesses(1, 1)); d != "" {
		t.Error(d)
	}
	p.Settle(1, []int32{1, 2}, []int32{1, 2}, nil)
	if s := p.Stats(); s.Recall1 != 4./10 {
		t.Errorf("recall %v", s.Recall1)
	}
}

func TestDepthZero(t *testing.T) {
	f := newFake(0)
	f.demand(1, []int32{1})
	p := mustNew(t, Options{Cache: f, Layers: 2, Experts: 10, TopK: 2})
	p.Hint(0, 1, signal(10, 2, 1))
	p.Settle(1, []int32{1, 2}, []int32{1, 2}, nil)
	p.Reset()
	same(t, p.Stats(), Stats{NeededResident: 1, NeededAbsent: 1, DisabledReason: "lookahead 0"})
	if p.Guesses(1, 1) != nil {
		t.Error("guesses without lookahead")
	}
	b, err := json.Marshal(mustNew(t, Options{Cache: f, Layers: 2, Experts: 10, TopK: 2, DisabledReason: "all experts resident"}).Stats())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"depth":0`, `"issued":0`, `"used":0`, `"late":0`, `"wasted":0`, `"recall_1":0`, `"recall_2":0`, `"disabled_reason":"all experts resident"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %s", b, want)
		}
	}
}

// Depth 1 takes no hint from two layers away.
func TestDepthOne(t *testing.T) {
	f := newFake(0)
	p := mustNew(t, Options{Cache: f, Predictor: &told{say: func(int, int, int) []int32 { return []int32{1, 2} }}, Layers: 3, Experts: 10, TopK: 2, Depth: 1})
	p.Hint(0, 2, signal(10, 2, 1))
	p.Settle(2, []int32{1, 2}, []int32{1, 2}, nil)
	same(t, p.Stats(), Stats{NeededAbsent: 2})
}

func TestReset(t *testing.T) {
	f := newFake(0)
	p := mustNew(t, Options{Cache: f, Predictor: &told{say: func(k, _, _ int) []int32 { return []int32{1, int32(k) + 1} }}, Layers: 3, Experts: 10, TopK: 2, Depth: 2})
	p.Hint(0, 1, signal(10, 2, 1)) // 1/1 1/2
	p.Hint(0, 2, signal(10, 2, 1)) // 2/1 2/3
	f.start(2)
	old := p.Stats()
	p.Reset()
	same(t, p.Stats(), Stats{Issued: 4, Wasted: 2, Cancelled: 2})
	same(t, p.Stats().Since(old), Stats{Wasted: 2, Cancelled: 2})
	for k, s := range f.held {
		if s.guarded {
			t.Errorf("%v is still protected", k)
		}
	}
	p.Settle(1, []int32{1, 5}, []int32{1, 5}, nil) // no recall from hints of the walk given up; the read of 1/1 is of use after all
	same(t, p.Stats(), Stats{Issued: 4, Wasted: 2, Cancelled: 2, Revived: 1, NeededInFlight: 1, NeededAbsent: 1})
}

func TestOptions(t *testing.T) {
	good := Options{Cache: newFake(0), Predictor: new(router.GateAhead), Layers: 8, Experts: 32, TopK: 4, Depth: 2}
	mustNew(t, good)
	for want, change := range map[string]func(*Options){
		"no cache":                           func(o *Options) { o.Cache = nil },
		"layer count 0":                      func(o *Options) { o.Layers = 0 },
		"33 experts a token, outside 1..32":  func(o *Options) { o.TopK = 33 },
		"lookahead 3 is outside 0..2":        func(o *Options) { o.Depth = 3 },
		"lookahead -1 is outside 0..2":       func(o *Options) { o.Depth = -1 },
		"lookahead 2 and no predictor":       func(o *Options) { o.Predictor = nil },
		"40 guesses a layer, outside 1..32":  func(o *Options) { o.Guesses = 40 },
		"cap of 3 guesses a layer, outside ": func(o *Options) { o.Cap = 3 },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestBrokenContractsPanic(t *testing.T) {
	for name, f := range map[string]func(*Pipeline){
		"hint behind":      func(p *Pipeline) { p.Hint(1, 1, signal(10, 2, 1)) },
		"hint outside":     func(p *Pipeline) { p.Hint(1, 2, signal(10, 2, 1)) },
		"other experts":    func(p *Pipeline) { p.Hint(0, 1, signal(9, 2, 1)) },
		"ragged rows":      func(p *Pipeline) { p.Settle(1, []int32{1}, []int32{1, 2, 3}, nil) },
		"settled outside":  func(p *Pipeline) { p.Settle(2, []int32{1}, []int32{1, 2}, nil) },
		"needed twice":     func(p *Pipeline) { p.Settle(1, []int32{1, 1}, []int32{1, 2}, nil) },
		"guesses too deep": func(p *Pipeline) { p.Guesses(1, 3) },
	} {
		p := mustNew(t, Options{Cache: newFake(0), Predictor: new(router.GateAhead), Layers: 2, Experts: 10, TopK: 2, Depth: 1})
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(p)
		}()
	}
}
