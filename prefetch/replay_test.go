package prefetch

import (
	"io"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"terrace/router"
	"terrace/tiers"
)

const (
	traceLayers, traceExperts, traceTopK = 8, 32, 4
)

// readTrace gives the choices of the first n tokens of the demo model's routing trace, by token and layer.
func readTrace(t testing.TB, n int) [][][]int32 {
	t.Helper()
	r, err := router.OpenTrace("../testdata/tiny-moe/routing.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var tokens [][][]int32
	for len(tokens) < n {
		var l router.TraceLine
		if err := r.Next(&l); err == io.EOF {
			t.Fatalf("the trace ends after %d tokens, want %d", len(tokens), n)
		} else if err != nil {
			t.Fatal(err)
		}
		if len(l.Experts) != traceLayers || len(l.Experts[0]) != traceTopK {
			t.Fatalf("the trace has %d layers of %d", len(l.Experts), len(l.Experts[0]))
		}
		tokens = append(tokens, l.Experts)
	}
	return tokens
}

// overlap is how many of a's experts are among b's.
func overlap(a, b []int32) (n int64) {
	for _, e := range a {
		if slices.Contains(b, e) {
			n++
		}
	}
	return n
}

// Guessers: the truth, every expert's right-hand neighbour, and four at random.
func oracle(truth [][]int32, layer int) []int32 { return truth[layer] }

func shifted(truth [][]int32, layer int) []int32 {
	out := make([]int32, traceTopK)
	for i, e := range truth[layer] {
		out[i] = (e + 1) % traceExperts
	}
	return out
}

// Each token meets an empty cache, so that every guess is issued and every count follows from how guesses and choices
// overlap.
func TestReplay(t *testing.T) {
	tokens := readTrace(t, 400)
	random := make([][][]int32, len(tokens))
	rnd := rand.New(rand.NewSource(7))
	for i := range random {
		for range traceLayers {
			var g []int32
			for _, e := range rnd.Perm(traceExperts)[:traceTopK] {
				g = append(g, int32(e))
			}
			random[i] = append(random[i], g)
		}
	}
	type guesser func(token, layer int) []int32
	fromOracle := func(i, l int) []int32 { return oracle(tokens[i], l) }
	fromShifted := func(i, l int) []int32 { return shifted(tokens[i], l) }
	fromRandom := func(i, l int) []int32 { return random[i][l] }

	for _, c := range []struct {
		name  string
		depth int
		near  guesser
		far   guesser
		read  bool // reads are done before the next hint; otherwise none starts
	}{
		{"oracle, in time", 1, fromOracle, nil, true},
		{"oracle, never read", 1, fromOracle, nil, false},
		{"neighbours, in time", 1, fromShifted, nil, true},
		{"neighbours, never read", 1, fromShifted, nil, false},
		{"random, in time", 1, fromRandom, nil, true},
		{"neighbours, then oracle, in time", 2, fromOracle, fromShifted, true},
		{"neighbours, then oracle, never read", 2, fromOracle, fromShifted, false},
		{"oracle, then random, in time", 2, fromRandom, fromOracle, true},
		{"oracle, then random, never read", 2, fromRandom, fromOracle, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(0)
			token := 0
			pr := &told{say: func(k, target, _ int) []int32 { return []guesser{c.near, c.far}[k-1](token, target) }}
			p := mustNew(t, Options{Cache: f, Predictor: pr, Layers: traceLayers, Experts: traceExperts, TopK: traceTopK, Depth: c.depth})
			sig := signal(traceExperts, traceTopK, 1)
			var want Stats
			var hits, pairs [2]int64
			for token = range tokens {
				clear(f.held)
				f.order = f.order[:0]
				for l := range traceLayers {
					truth := tokens[token][l]
					p.Settle(l, truth, truth, nil)
					f.demand(l, truth)
					for k := 1; k <= c.depth && l+k < traceLayers; k++ {
						p.Hint(l, l+k, sig)
						if c.read {
							f.readAll()
						}
					}

					// The reckoning: what was guessed and stays is all of it if reads are quick, the last list otherwise.
					var near, all []int32
					if l >= 1 {
						near = c.near(token, l)
						all = append(all, near...)
						hits[0] += overlap(truth, near)
						pairs[0] += traceTopK
					}
					if l >= 2 && c.depth == 2 {
						far := c.far(token, l)
						hits[1] += overlap(truth, far)
						pairs[1] += traceTopK
						for _, e := range far {
							if !slices.Contains(near, e) {
								all = append(all, e)
							}
						}
					}
					right, kept := overlap(all, truth), all
					if !c.read {
						kept = near
						right = overlap(near, truth)
					}
					want.Issued += int64(len(all))
					want.Used += right
					if c.read {
						want.Wasted += int64(len(kept)) - right
						want.NeededResident += right
					} else {
						want.Late += right
						want.Cancelled += int64(len(all)) - right
						want.NeededInFlight += right
					}
					want.NeededAbsent += traceTopK - right
				}
			}
			want.Recall1 = float64(hits[0]) / float64(pairs[0])
			if c.depth == 2 {
				want.Recall2 = float64(hits[1]) / float64(pairs[1])
			}
			same(t, p.Stats(), want)
			if n := int64(400 * 7 * 4); c.depth == 1 && want.Issued != n {
				t.Errorf("%d issued, want %d", want.Issued, n)
			}
			if c.name == "oracle, in time" && (want.Used != 11200 || want.Recall1 != 1 || want.NeededAbsent != 1600) {
				t.Errorf("the reckoning itself is wrong: %+v", want)
			}
		})
	}
}

// Random walks with random hints, batches, reads and losses on a small cache: the books balance, and no more guesses
// are protected than Depth*Cap, or one layer's more between hints and settling.
func TestBooksBalance(t *testing.T) {
	tokens := readTrace(t, 60)
	rapid.Check(t, func(t *rapid.T) {
		rnd := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		depth := rapid.IntRange(1, 2).Draw(t, "depth")
		guesses := rapid.IntRange(1, 8).Draw(t, "guesses")
		limit := guesses + rapid.IntRange(0, 8).Draw(t, "cap")
		f := newFake(rapid.IntRange(0, 60).Draw(t, "slots"))
		pr := &told{say: func(int, int, int) []int32 {
			g := make([]int32, 8)
			for i, e := range rnd.Perm(traceExperts)[:len(g)] {
				g[i] = int32(e)
			}
			return g
		}}
		p, err := New(Options{Cache: f, Predictor: pr, Layers: traceLayers, Experts: traceExperts, TopK: traceTopK, Depth: depth, Guesses: guesses, Cap: limit})
		if err != nil {
			t.Fatal(err)
		}
		var touched int64
		balance := func() {
			s := p.Stats()
			open := int64(0)
			for l := range p.layers {
				open += int64(len(p.layers[l].open))
				if n := len(p.layers[l].list); n > limit {
					t.Fatalf("%d guesses listed for layer %d, at most %d", n, l, limit)
				}
			}
			if s.Issued != s.Used+s.Wasted+s.Cancelled+s.Dropped+open {
				t.Fatalf("%d open and %+v do not balance", open, s)
			}
			if s.NeededResident+s.NeededInFlight+s.NeededAbsent != touched || s.Late > s.Used || s.Revived > s.Wasted {
				t.Fatalf("%d touches and %+v do not fit", touched, s)
			}
		}
		for token := 0; token+4 < len(tokens); token += 4 {
			rows := 1 + rnd.Intn(4)
			sig := signal(traceExperts, traceTopK, rows)
			last := traceLayers
			if rnd.Intn(8) == 0 {
				last = rnd.Intn(traceLayers)
			}
			hints := func(l, atMost int) {
				for k := 1; k <= 2 && l+k < traceLayers; k++ {
					if rnd.Intn(6) == 0 {
						continue
					}
					pr.votes = pr.say(0, 0, 0)
					p.Hint(l, l+k, sig)
					f.start(rnd.Intn(4))
					if rnd.Intn(2) == 0 {
						f.finish()
						p.Issue(l)
					}
					if n := f.guards(); n > atMost {
						t.Fatalf("%d guesses protected, at most %d", n, atMost)
					}
				}
			}
			for l := range last {
				early := rnd.Intn(5) == 0
				if early {
					hints(l, (depth+1)*limit)
				}
				if len(f.order) > 0 && rnd.Intn(4) == 0 {
					k := f.order[rnd.Intn(len(f.order))]
					f.evict(k.layer, k.expert)
				}
				var all, needed []int32
				for i := range rows {
					all = append(all, tokens[token+i][l]...)
				}
				for _, e := range all {
					if !slices.Contains(needed, e) {
						needed = append(needed, e)
					}
				}
				touched += int64(len(needed))
				p.Settle(l, needed, all, nil)
				f.demand(l, needed)
				if !early {
					hints(l, depth*limit)
				}
				balance()
			}
			if last < traceLayers {
				p.Reset()
				balance()
			}
		}
		p.Reset()
		s := p.Stats()
		if s.Issued != s.Used+s.Wasted+s.Cancelled+s.Dropped {
			t.Fatalf("at the end %+v does not balance", s)
		}
		if f.slots == 0 && s.Refused != 0 {
			t.Fatalf("%d guesses refused by a cache without a bound", s.Refused)
		}
	})
}

// Reads run in another goroutine and somebody looks at the score meanwhile.
func TestConcurrentReads(t *testing.T) {
	tokens := readTrace(t, 100)
	f := newFake(64)
	p := mustNew(t, Options{Cache: f, Predictor: new(router.GateAhead), Layers: traceLayers, Experts: traceExperts, TopK: traceTopK, Depth: 2})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, work := range []func(){func() { f.start(1); f.finish() }, func() { p.Stats() }} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					work()
				}
			}
		}()
	}
	rule := &router.Rule{Experts: traceExperts, K: traceTopK, Gating: router.Softmax}
	for _, truth := range tokens {
		for l := range traceLayers {
			for k := 1; k <= 2 && l+k < traceLayers; k++ {
				// Scores that rank the true experts of the target layer first at distance 1, its neighbours' at 2.
				sig := router.Signal{Scores: make([]float32, traceExperts), Rows: 1, Rule: rule}
				for i, e := range truth[l+k] {
					sig.Scores[(int(e)+k-1)%traceExperts] = float32(9 - i)
				}
				p.Hint(l, l+k, sig)
			}
			p.Settle(l, truth[l], truth[l], nil)
			f.demand(l, truth[l])
		}
	}
	close(stop)
	wg.Wait()
	s := p.Stats()
	if s.Recall1 != 1 || s.Issued == 0 || s.Issued != s.Used+s.Wasted+s.Cancelled+s.Dropped {
		t.Errorf("%+v", s)
	}
}

// still is a cache in which everything is on its way for ever.
type still struct{}

func (still) Prefetch(layer int, experts []int32) int                  { return len(experts) }
func (still) PrefetchOver(layer int, expert int32, chance float32) int { return 1 }
func (still) Withdraw(layer int, expert int32)                         {}
func (still) Settle(layer int, truth []int32)                          {}
func (still) State(layer int, expert int32) tiers.State                { return tiers.InFlight }

func TestAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("allocation counts mean nothing under the race detector")
	}
	rule := &router.Rule{Experts: traceExperts, K: traceTopK, Gating: router.Softmax}
	for _, rows := range []int{1, 17} {
		p := mustNew(t, Options{Cache: still{}, Predictor: new(router.GateAhead), Layers: traceLayers, Experts: traceExperts, TopK: traceTopK, Depth: 2, Cap: 12})
		sig := router.Signal{Scores: make([]float32, rows*traceExperts), Rows: rows, Rule: rule}
		choice := make([]int32, rows*traceTopK)
		for i := range choice {
			choice[i] = int32(i % traceTopK * 5)
		}
		token := 0
		step := func() {
			token++
			for i := range sig.Scores {
				sig.Scores[i] = float32((i*token + i*i) % 101)
			}
			for l := range traceLayers {
				for k := 1; k <= 2 && l+k < traceLayers; k++ {
					p.Hint(l, l+k, sig)
				}
				p.Settle(l, choice[:traceTopK], choice, nil)
			}
			p.Stats()
		}
		step()
		if n := testing.AllocsPerRun(30, step); n != 0 {
			t.Errorf("%d rows: %v allocations a token", rows, n)
		}
	}
}

// BenchmarkToken is what guessing costs a token of a model of 48 layers, 128 experts and top 8, two layers ahead.
func BenchmarkToken(b *testing.B) {
	rule := &router.Rule{Experts: 128, K: 8, Gating: router.Softmax}
	p := mustNew(b, Options{Cache: still{}, Predictor: new(router.GateAhead), Layers: 48, Experts: 128, TopK: 8, Depth: 2})
	sig := router.Signal{Scores: make([]float32, 128), Rows: 1, Rule: rule}
	for i := range sig.Scores {
		sig.Scores[i] = float32(i * 37 % 128)
	}
	choice := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	for b.Loop() {
		for l := range 48 {
			for k := 1; k <= 2 && l+k < 48; k++ {
				p.Hint(l, l+k, sig)
			}
			p.Settle(l, choice, choice, nil)
		}
	}
}
