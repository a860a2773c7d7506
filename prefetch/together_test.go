package prefetch

import (
	"slices"
	"testing"

	"terrace/router"
)

// margins is told with margins of its own, by expert.
type margins struct {
	told
	of map[int32]float32
}

func (p *margins) Margins(dst []float32, ids []int32, at, target int, s router.Signal) {
	for i, e := range ids {
		dst[i] = p.of[e]
	}
}

// TestTogether: of several sequences' guesses those are read first that any of them likely wants, not more than the cap, none
// that is not worth it; and chances are learnt of each row's own choice.
func TestTogether(t *testing.T) {
	f := newFake(0)
	f.logging = true
	say := [][]int32{{1, 2, 3}, {4, 2, 5}, {6, 2, 7}}
	pred := &margins{told: told{say: func(_, _, row int) []int32 { return say[row] }}, of: map[int32]float32{1: 3, 2: 0.5, 3: -4, 4: 3.5, 5: -4, 6: 2.5, 7: -4}}
	p, err := New(Options{Cache: f, Predictor: pred, Layers: 3, Experts: 10, TopK: 2, Depth: 1, Guesses: 3, Cap: 4, Auto: true})
	if err != nil {
		t.Fatal(err)
	}
	p.ctl.best, p.ctl.depth = 1, 1
	p.Hint(0, 1, signal(10, 2, 3))
	// Three rows each give 2 a middling chance: together they make it likely. 4, 1 and 6 are near certain for one row.
	if len(f.log) != 4 || !slices.Contains(f.log, "1/2") || !slices.Contains(f.log, "1/4") {
		t.Errorf("reads %v", f.log)
	}
	chance := func(m float32) float32 { return p.price.chance[0].Of(m) }
	a := &p.layers[1]
	if i := slices.Index(a.list, 4); i < 0 || a.worth[i] != 1-(1-chance(3.5)) && a.worth[i] < 0.9*chance(3.5) {
		t.Errorf("list %v with chances %v", a.list, a.worth)
	}
	if i := slices.Index(a.list, 2); i < 0 || a.worth[i] <= chance(0.5) {
		t.Errorf("three rows give expert 2 the chance %v, one %v", a.worth, chance(0.5))
	}
	if !slices.IsSortedFunc(a.worth, func(x, y float32) int { return int(max(-1, min(1, 1e6*(y-x)))) }) {
		t.Errorf("chances %v do not fall", a.worth)
	}
	for i, x := range p.joint {
		if x != 1 {
			t.Errorf("expert %d is left with %v", i, x)
		}
	}
	before := chance(0.5)
	f.readAll()
	p.Settle(1, []int32{1, 2, 4, 6, 8}, []int32{1, 8, 4, 8, 6, 2}, nil) // the last row alone wanted 2
	if after := chance(0.5); after == before {
		t.Error("nothing was learnt of rows that guessed wrong")
	}
	if p.n.used != 4 || p.n.wasted != 0 {
		t.Errorf("%d guesses used, %d wasted", p.n.used, p.n.wasted)
	}
	if raceOn {
		return
	}
	o := p.o
	o.Cache = still{}
	if p, err = New(o); err != nil {
		t.Fatal(err)
	}
	sig, needed, rows := signal(10, 2, 3), []int32{1, 2, 4}, []int32{1, 2, 4, 2, 1, 2}
	if n := testing.AllocsPerRun(50, func() {
		p.Hint(0, 1, sig)
		p.Settle(1, needed, rows, nil)
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}
