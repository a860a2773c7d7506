package bench

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"terrace/engine"
)

func TestLookaheads(t *testing.T) {
	c := LookaheadConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", Threads: 2}, Lookahead: []int{0, 1, 2, engine.LookaheadAuto},
		Arenas: []engine.ExpertBudget{{Percent: 60}, {Percent: 25}, {Percent: 100}}, Decode: 6, Rounds: 3, Warm: 8, Label: "a label", Refine: true}
	r, err := Lookaheads(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.SameLogits || len(r.Arenas) != 3 || r.Machine.System == "" || r.Conditions.DecodeTokens != 6 {
		t.Fatalf("%+v", r)
	}
	for i, a := range r.Arenas {
		if i > 0 && a.Bytes <= r.Arenas[i-1].Bytes || len(a.Cells) != 7 || len(a.Hashes) != 3 || a.Hashes[0] == a.Hashes[1] || a.Total != 256 {
			t.Errorf("arena %d: %+v", i, a)
		}
		if want := []int{64, 153, 256}[i]; a.Slots != want {
			t.Errorf("arena %d: %d slots, want %d", i, a.Slots, want)
		}
		for k, x := range a.Cells {
			if x.Setting != []string{"0", "1", "2", "auto", "1 refined", "2 refined", "auto refined"}[k] || len(x.Runs) != 3 || x.Rate.Median <= 0 || x.OverOff.Median <= 0 {
				t.Errorf("arena %d, setting %s: %+v", i, x.Setting, x)
			}
			full := i == 2
			if full != (x.HitRate == 1) || full != (x.BytesRead == 0) {
				t.Errorf("arena %d, setting %s: hit rate %g, %g bytes a token", i, x.Setting, x.HitRate, x.BytesRead)
			}
			if guesses := !full && x.Setting != "0"; !strings.HasPrefix(x.Setting, "auto") && guesses != (x.Recall1 > 0.5) || (x.Setting == "0" || full) && x.Used != 0 || x.Used > 1 || x.Hidden.Max > 1 {
				t.Errorf("arena %d, setting %s: recall %g, used %g, hidden %+v", i, x.Setting, x.Recall1, x.Used, x.Hidden)
			}
			for n, run := range x.Runs {
				if run.Hash != a.Hashes[n] {
					t.Errorf("arena %d, setting %s, round %d: hash %s, want %s", i, x.Setting, n, run.Hash, a.Hashes[n])
				}
			}
		}
		if i < 2 && a.Cells[4].Recall1 <= a.Cells[1].Recall1 {
			t.Errorf("arena %d: recall %g refined, %g plain", i, a.Cells[4].Recall1, a.Cells[1].Recall1)
		}
		// Every block of a round began with the same experts: what nobody guessed for was needed of the disk alike.
		if off := a.Cells[0].Runs; i < 2 && (off[0].Stats.Touches != off[1].Stats.Touches || off[0].Stats.Misses == 0) {
			t.Errorf("arena %d: %d and %d touches, %d misses", i, off[0].Stats.Touches, off[1].Stats.Touches, off[0].Stats.Misses)
		}
	}
	var b bytes.Buffer
	if err := WriteSVG(&b, []Plot{r.Plot(), r.Plot(), r.Plot()}); err != nil {
		t.Fatal(err)
	}
	circles := 0
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := tok.(xml.StartElement); ok && s.Name.Local == "circle" {
			circles++
		}
	}
	if circles != 3*3*7 {
		t.Errorf("%d points drawn, want 63", circles)
	}
}

func TestLookaheadsRefusals(t *testing.T) {
	good := LookaheadConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf"}, Lookahead: []int{0}, Arenas: []engine.ExpertBudget{{Percent: 50}}, Decode: 2, Rounds: 1}
	for _, c := range []struct {
		want  string
		spoil func(*LookaheadConfig)
	}{
		{"0 rounds", func(c *LookaheadConfig) { c.Rounds = 0 }},
		{"each once", func(c *LookaheadConfig) { c.Lookahead = []int{1, 1} }},
		{"each once", func(c *LookaheadConfig) { c.Lookahead = []int{3} }},
		{"at 0 arenas", func(c *LookaheadConfig) { c.Arenas = nil }},
		{"the runs need 3", func(c *LookaheadConfig) { c.Engine.Context = 2 }},
		{"the smallest working set", func(c *LookaheadConfig) { c.Arenas = append(c.Arenas, engine.ExpertBudget{Percent: 1}) }},
	} {
		x := good
		c.spoil(&x)
		if _, err := Lookaheads(context.Background(), x); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q: %v", c.want, err)
		}
	}
}

func TestPlotStep(t *testing.T) {
	for most, want := range map[float64]float64{1: 0.2, 7: 2, 12: 2, 45: 10, 100: 20, 320: 100, 0.03: 0.005} {
		if got := plotStep(most); math.Abs(got-want) > 1e-9 {
			t.Errorf("up to %g: %g, want %g", most, got, want)
		}
	}
}

// TestTurn: each round has every setting once, and over n rounds each follows each other one equally often.
func TestTurn(t *testing.T) {
	for _, n := range []int{2, 4, 6} {
		follows := map[[2]int]int{}
		for round := range n {
			seen := map[int]bool{}
			for k := range n {
				at := turn(k, round, n)
				seen[at] = true
				if k > 0 {
					follows[[2]int{turn(k-1, round, n), at}]++
				}
			}
			if len(seen) != n {
				t.Errorf("%d settings, round %d: %v", n, round, seen)
			}
		}
		for p, times := range follows {
			if times != 1 {
				t.Errorf("%d settings: %d follows %d in %d rounds, want 1", n, p[1], p[0], times)
			}
		}
	}
}
