package prefetch

import (
	"context"
	"slices"
	"testing"
	"time"

	"terrace/router"
	"terrace/tiers"
)

// memCache is a real cache of the demo model's shape over a store that fills experts from their identity.
func memCache(t *testing.T, slots, depth int, delay time.Duration) *tiers.Cache {
	t.Helper()
	store, err := tiers.NewMem(tiers.Mem{Delay: delay, Fill: func(d *tiers.Desc, piece int, dst []byte) error {
		for i := range dst {
			dst[i] = byte(int(d.ID.Layer)*traceExperts + int(d.ID.Expert) + piece)
		}
		return nil
	}}, tiers.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	experts := make([][]tiers.Desc, traceLayers)
	for l := range experts {
		for e := range traceExperts {
			d := tiers.Desc{ID: tiers.ExpertID{Layer: uint16(l), Expert: uint16(e)}}
			for i := range d.Pieces {
				d.Pieces[i] = tiers.Piece{Offset: int64((l*traceExperts+e)*3+i) * 64, Length: 64}
			}
			experts[l] = append(experts[l], d)
		}
	}
	c, err := tiers.NewCache(tiers.Options{Store: store, Experts: experts, Slots: slots, TopK: traceTopK, Lookahead: depth, Guesses: traceTopK})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// replay walks the trace with plain gate-ahead over scores that rank three of the true four first from next door, two
// from two layers away, and returns the score.
func replay(t *testing.T, tokens [][][]int32, slots, depth int) Stats {
	t.Helper()
	c := memCache(t, slots, depth, 20*time.Microsecond)
	p := mustNew(t, Options{Cache: Over(c), Predictor: new(router.GateAhead), Layers: traceLayers, Experts: traceExperts, TopK: traceTopK, Depth: depth})
	rule := &router.Rule{Experts: traceExperts, K: traceTopK, Gating: router.Softmax, Normalize: true}
	sig := router.Signal{Scores: make([]float32, traceExperts), Rows: 1, Rule: rule}
	for _, truth := range tokens {
		for l := range traceLayers {
			p.Settle(l, truth[l], truth[l], nil)
			r, err := c.Begin(l, truth[l])
			if err != nil {
				t.Fatal(err)
			}
			for k := 1; k <= depth && l+k < traceLayers; k++ {
				clear(sig.Scores)
				for i, e := range truth[l+k] {
					if i < traceTopK-k {
						sig.Scores[e] = float32(9 - i)
					}
				}
				wrong := 0
				for e := 0; wrong < k; e++ { // the lowest numbers that are not of the true four
					if !slices.Contains(truth[l+k], int32(e)) {
						sig.Scores[e] = 2
						wrong++
					}
				}
				p.Hint(l, l+k, sig)
			}
			for {
				lease, ok, err := r.Next(context.Background(), true)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if v := lease.Views(); v[1][5] != byte(l*traceExperts+lease.Expert()+1) {
					t.Fatalf("layer %d, expert %d: byte %d of another expert", l, lease.Expert(), v[1][5])
				}
			}
			r.Close()
		}
	}
	s := p.Stats()
	if s.Issued != s.Used+s.Wasted+s.Cancelled+s.Dropped {
		t.Errorf("%+v does not balance", s)
	}
	if got, want := s.NeededResident+s.NeededInFlight+s.NeededAbsent, int64(len(tokens)*traceLayers*traceTopK); got != want {
		t.Errorf("%d experts needed, want %d", got, want)
	}
	cs := c.Stats()
	if cs.Touches != s.NeededResident+s.NeededInFlight+s.NeededAbsent || cs.Issued != s.Issued {
		t.Errorf("the cache counted %d touches and %d guesses issued, the pipeline %+v", cs.Touches, cs.Issued, s)
	}
	t.Logf("%d slots, lookahead %d: ready %.3f, %+v", slots, depth, s.Ready(), s)
	return s
}

// On a real cache, down to its smallest working set, more of the needed is there or on its way with lookahead.
func TestRealCache(t *testing.T) {
	tokens := readTrace(t, 50)
	for _, slots := range []int{tiers.MinSlots(traceTopK, 2, traceTopK), 64} {
		off, on := replay(t, tokens, slots, 0), replay(t, tokens, slots, 2)
		if on.Ready() < off.Ready()+0.2 {
			t.Errorf("%d slots: ready %.3f with lookahead 2, %.3f without", slots, on.Ready(), off.Ready())
		}
		if on.Recall1 != 0.75 || on.Recall2 != 0.5 {
			t.Errorf("recall %v and %v, want 0.75 and 0.5", on.Recall1, on.Recall2)
		}
		if off.Issued != 0 {
			t.Errorf("%d issued without lookahead", off.Issued)
		}
	}
}
