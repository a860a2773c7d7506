package model_test

import (
	"encoding/json"
	"testing"

	"terrace/model"
)

// TestRopeGolden compares contexts extended by options with what llama.cpp computes with the flags of the same names.
func TestRopeGolden(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	var cases []struct {
		Fixture string
		Options struct {
			Scaling                             string
			Scale, Base, Attn, Slow, Fast, Orig float64
			Ext                                 *float64
		}
		Logits []float32 `json:"last_logits"`
	}
	if err := json.Unmarshal(unzip(t, "golden", "rope.json.gz"), &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) != 21 {
		t.Fatalf("rope.json was misread: %d cases", len(cases))
	}
	for _, c := range cases {
		o := c.Options
		s := exact
		s.rope = model.RopeOptions{Scaling: o.Scaling, FreqScale: o.Scale, FreqBase: o.Base, OrigContext: int(o.Orig), ExtFactor: o.Ext, AttnFactor: o.Attn, BetaSlow: o.Slow, BetaFast: o.Fast}
		g := readGolden(t, c.Fixture)
		limit := 1e-3 * g.Std
		if c.Fixture == "deepseek2-lite" {
			limit *= 2
		}
		got := newRig(t, unzip(t, "golden", c.Fixture, "model.drawn.gz"), s).feed(t, g.Long.Tokens, 512)
		if d := farthest(got[299], c.Logits); !(d <= limit) {
			t.Errorf("%s, %+v: logits differ by %.3g, limit %.3g", c.Fixture, o, d, limit)
		} else {
			t.Logf("%s, %+v: logits differ by %.3g", c.Fixture, o, d)
		}
	}
}
