package sample

import (
	"math/rand/v2"
	"testing"
)

// prefix is text without a loop: random tokens of a small vocabulary, so that short repeats occur.
func prefix(r *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(50))
	}
	return out
}

// TestLoopsFound: 20 seeded loops after as many texts, each told at the very token that makes it one.
func TestLoopsFound(t *testing.T) {
	periods := []int{1, 2, 3, 5, 7, 16, 31, 32, 33, 40, 64, 100, 127, 200, 256, 333, 512, 777, 1000, LoopPeriod}
	for seed, period := range periods {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		d := NewLoopDetector()
		before := prefix(r, r.IntN(3000))
		for i, id := range before {
			if d.Accept(id) {
				t.Fatalf("seed %d: a loop at token %d of a random text: %+v", seed, i, *d.Loop())
			}
		}
		cycle := make([]int32, period)
		for i := range cycle {
			cycle[i] = int32(100 + i%97 + i/97*r.IntN(200))
		}
		cycle[0] = 99 // the text before does not lead into it
		need, at := max(LoopTokens, LoopTurns*period), 0
		for i := range need + period {
			if d.Accept(cycle[i%period]) {
				if at != 0 {
					t.Fatalf("seed %d: told twice, at %d and %d", seed, at, i+1)
				}
				at = i + 1
			}
		}
		if at != need {
			t.Errorf("seed %d: a period of %d tokens is told after %d tokens, want %d", seed, period, at, need)
			continue
		}
		if l := *d.Loop(); l != (Loop{period, len(before), need + period}) {
			t.Errorf("seed %d: %+v, want period %d from %d on", seed, l, period, len(before))
		}
		for range 5 { // what follows it is no part of it
			d.Accept(5000)
		}
		if l := *d.Loop(); l.Tokens != need+period {
			t.Errorf("seed %d: %+v after its end", seed, l)
		}
	}
}

// TestLoopsNotFound: repetitions that end one token early, or that change a token a turn, are none.
func TestLoopsNotFound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 12))
	d := NewLoopDetector()
	stop := int32(1 << 20)
	for _, period := range []int{1, 2, 17, 32, 50, 300, LoopPeriod} {
		for i := range max(LoopTokens, LoopTurns*period) - 1 {
			if d.Accept(int32(period*2000 + i%period)) {
				t.Fatalf("period %d: a loop after %d tokens", period, i+1)
			}
		}
		stop++
		d.Accept(stop)
		for turn := range 40 {
			for i := range period {
				id := int32(period*2000 + i)
				if i == turn%period && period > 1 {
					id = int32(1<<21 + turn + r.IntN(1000)*100)
				} else if period == 1 {
					id = int32(1<<21 + turn%13)
				}
				if d.Accept(id) {
					t.Fatalf("period %d: a loop though each turn differs, turn %d: %+v", period, turn, *d.Loop())
				}
			}
		}
	}
	if d.Loop() != nil {
		t.Error(*d.Loop())
	}
	// A period longer than what is looked for is not found, whatever its length.
	d = NewLoopDetector()
	for i := range 12 * (LoopPeriod + 1) {
		if d.Accept(int32(i % (LoopPeriod + 1))) {
			t.Fatal(*d.Loop())
		}
	}
}

// TestLoopsAsDefined compares with the definition, read off the whole sequence at each token, over sequences rich in repeats.
func TestLoopsAsDefined(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 13))
		d := NewLoopDetector()
		var all []int32
		found := false
		for len(all) < 700 && !found {
			piece := prefix(r, 1+r.IntN(40))
			for range 1 + r.IntN(300/len(piece)+2) {
				for _, id := range piece {
					if found {
						break
					}
					all = append(all, id%3)
					got := d.Accept(id % 3)
					want := 0
					for p := 1; p*LoopTurns <= len(all) && want == 0; p++ {
						n := p
						for n < len(all) && all[len(all)-1-n+p] == all[len(all)-1-n] {
							n++
						}
						if n >= LoopTokens && n >= LoopTurns*p {
							want = p
						}
					}
					if got != (want > 0) || got && d.Loop().Period != want {
						t.Fatalf("seed %d, token %d: found %v (%+v), want period %d", seed, len(all), got, d.Loop(), want)
					}
					found = got
				}
			}
		}
	}
}

func TestLoopsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	d := NewLoopDetector()
	i := int32(0)
	if n := testing.AllocsPerRun(5000, func() { d.Accept(i % 700); i++ }); n != 0 {
		t.Errorf("%g allocations a token", n)
	}
}

func BenchmarkLoopDetector(b *testing.B) {
	d := NewLoopDetector()
	r := rand.New(rand.NewPCG(1, 1))
	text := prefix(r, 8192)
	for i := 0; b.Loop(); i++ {
		d.Accept(text[i%len(text)])
	}
}
