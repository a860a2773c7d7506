package bench

import (
	"context"
	"os"
	"strings"
	"testing"

	"terrace/engine"
)

func TestCalibrate(t *testing.T) {
	texts, err := ReadTexts("../testdata/tiny-moe/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := CalibrateConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", Threads: 2}, Dir: dir, Texts: texts, Tokens: 6000}
	r, err := Calibrate(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	g, f := r.Rows[0], r.Rows[1]
	if !r.Saved || r.Source != "texts" || r.FitTokens+r.Tokens > 6000 || r.FitTokens < 4000 || f.Ahead2[0] < g.Ahead2[0]+0.02 || g.Ahead1[0] < 0.7 {
		t.Errorf("%+v", r)
	}
	if st, err := os.Stat(r.Path); err != nil || st.Size() != r.Bytes {
		t.Errorf("%v: %v", r.Path, err)
	}
	// The engine takes it.
	rep, err := Lookaheads(context.Background(), LookaheadConfig{Engine: engine.Options{Path: c.Engine.Path, Threads: 2, PredictorDir: dir}, Lookahead: []int{0, 2}, Arenas: []engine.ExpertBudget{{Percent: 25}}, Decode: 4, Rounds: 1})
	if err != nil || rep.Predictor != "fitted" {
		t.Errorf("%v, %+v", err, rep)
	}
}

// TestCalibrateAlone: without texts the model writes its own.
func TestCalibrateAlone(t *testing.T) {
	var said []string
	c := CalibrateConfig{Engine: engine.Options{Path: "../testdata/tiny-moe-Q4_K.gguf", Threads: 2}, Dir: t.TempDir(), Tokens: 600, Seed: 1, Progress: func(s string) { said = append(said, s) }}
	r, err := Calibrate(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Source != "written by the model" || r.FitTokens+r.Tokens < 600 || len(said) == 0 || r.Saved != (r.Path != "") {
		t.Errorf("%+v, %q", r, said)
	}
	c.Texts = []string{"a"}
	if _, err := Calibrate(context.Background(), c); err == nil || !strings.Contains(err.Error(), "give more texts") {
		t.Errorf("one short text: %v", err)
	}
}
