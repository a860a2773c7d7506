package plan

import (
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	c := func(name string, bits, decode float64, fits bool, kld float64) Candidate {
		x := Candidate{Name: name, Bits: bits, Row: Row{Fits: fits, Decode: decode, Least: int64(bits * 1000)}}
		if kld > 0 {
			x.Measured = &Divergence{KLD: kld}
		}
		return x
	}
	for name, x := range map[string]struct {
		cs   []Candidate
		take int
		why  string
	}{
		"quality before speed": {[]Candidate{c("a", 3.6, 50, true, 0), c("b", 4.8, 6, true, 0), c("c", 8.5, 4, true, 0)}, 1, "the most bits a weight, 4.80, of the 2"},
		"never the low one":    {[]Candidate{c("a", 2.1, 90, true, 0), c("b", 3.5, 5, true, 0)}, 1, "3.50"},
		"all slow":             {[]Candidate{c("a", 2.1, 9, true, 0), c("b", 4, 2, true, 0), c("c", 6, 1, true, 0)}, 1, "none reaches 5 tokens/s"},
		"only low":             {[]Candidate{c("a", 2.1, 90, true, 0), c("b", 3.4, 50, true, 0), c("c", 5, 50, false, 0)}, -1, "loop; b has the most bits, 3.40"},
		"none fits":            {[]Candidate{c("a", 4, 0, false, 0), c("b", 3, 0, false, 0)}, -1, "3000 bytes, for b"},
		"measured":             {[]Candidate{c("a", 4.5, 50, true, 0.02), c("b", 4.8, 50, true, 0.03), c("c", 2, 50, true, 0.001)}, 0, "least measured divergence of the 2"},
		"measured in part":     {[]Candidate{c("a", 4.5, 50, true, 0.02), c("b", 4.8, 50, true, 0)}, 1, "the most bits"},
		"nothing":              {nil, -1, "nothing to choose"},
	} {
		if take, why := Choose(x.cs, 5); take != x.take || !strings.Contains(why, x.why) {
			t.Errorf("%s: %d, %s; want %d, %q", name, take, why, x.take, x.why)
		}
	}
}

// TestDivergences: a measurement stands for the same model in the same types only, and each names its source.
func TestDivergences(t *testing.T) {
	s := Shape{Model: "tiny-moe", Types: "Q4_K", ExpertParams: 16, ExpertTotal: 9}
	if d := s.Measured(); d == nil || d.KLD <= 0 || d.Top1 <= 0.5 {
		t.Errorf("%+v", d)
	}
	for _, x := range []Shape{{Model: "tiny-moe", Types: "Q4_K", ExpertParams: 16, ExpertTotal: 10}, {Model: "tiny-moe", Types: "Q5_K", ExpertParams: 16, ExpertTotal: 9}, {Types: "Q4_K", ExpertParams: 16, ExpertTotal: 9}} {
		if d := x.Measured(); d != nil {
			t.Errorf("%+v has %+v", x, d)
		}
	}
	for _, d := range divergences() {
		if d.Source == "" || d.Against == "" || d.Model == "" || !(d.KLD > 0) || !(d.Bits > 0) {
			t.Errorf("%+v", d)
		}
	}
}
