package bench

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/engine"
)

const tinyMoE = "../testdata/tiny-moe-Q4_K.gguf"

func open(t *testing.T, o engine.Options) (*engine.Engine, *engine.Session) {
	t.Helper()
	e, err := engine.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, s
}

// TestAnswers asks the first questions of a few sets; the model knows them all.
func TestAnswers(t *testing.T) {
	e, s := open(t, engine.Options{Path: tinyMoE, Context: 256, Lookahead: 2, ExpertRAM: engine.ExpertBudget{Percent: 25}})
	for _, set := range []string{"capitals", "opposites", "spell", "sums_unseen"} {
		qs, err := ReadQuestions("../testdata/tiny-moe/eval/" + set + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		qs = append(qs[:4:4], Question{Question: "What is the capital of France?", Expect: "Berlin"})
		r, err := Answers(context.Background(), e, s, qs, 64)
		if err != nil {
			t.Fatal(err)
		}
		if r.Asked != 5 || r.Correct != 4 || len(r.Wrong) != 1 || !strings.Contains(r.Wrong[0].Answer, "Paris") {
			t.Errorf("%s: %+v", set, r)
		}
	}
}

// TestPerplexity compares with a direct computation from Logits, and a batch's cut must not show.
func TestPerplexity(t *testing.T) {
	texts, err := ReadTexts("../testdata/tiny-moe/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	text := texts[1][:400]
	e, s := open(t, engine.Options{Path: tinyMoE, Context: 512, Batch: 64})
	r, err := Perplexity(context.Background(), e, s, []string{text}, false)
	if err != nil {
		t.Fatal(err)
	}
	ids := e.Tokenizer().Encode([]int32{0}, text, false, false)
	var pos []int32
	for i := range ids {
		pos = append(pos, int32(i))
	}
	l, err := Logits(context.Background(), e, s, LogitsConfig{Tokens: ids, Positions: pos})
	if err != nil {
		t.Fatal(err)
	}
	nll := 0.0
	for i, id := range ids[1:] {
		sum := 0.0
		for _, v := range l.Logits[i] {
			sum += math.Exp(float64(v))
		}
		nll -= float64(l.Logits[i][id]) - math.Log(sum)
	}
	nll /= float64(len(ids) - 1)
	if r.Tokens != len(ids)-1 || math.Abs(r.NLL-nll) > 1e-9 || math.Abs(r.PPL-math.Exp(nll)) > 1e-6 {
		t.Errorf("%+v, directly %v over %d", r, nll, len(ids)-1)
	}
	if r.PPL < 2 || r.PPL > 60 {
		t.Errorf("perplexity %v of a held-out text", r.PPL)
	}
	e2, s2 := open(t, engine.Options{Path: tinyMoE, Context: 512, Batch: 7})
	if r2, err := Perplexity(context.Background(), e2, s2, []string{text}, false); err != nil || r2.NLL != r.NLL {
		t.Errorf("batches of 7: %+v, %v; of 64: %+v", r2, err, r)
	}
}

// TestPerplexityWhole scores a text longer than the context: every token counts once, or only the first piece.
func TestPerplexityWhole(t *testing.T) {
	e, s := open(t, engine.Options{Path: tinyMoE, Context: 32, Batch: 16})
	text := "The quick brown fox jumps over the lazy dog. He went to the river and sat down by the old stone bridge, where nobody had been for years, and thought of home."
	n := len(e.Tokenizer().Encode(nil, text, false, false))
	if n <= 31 {
		t.Fatalf("%d tokens fit", n)
	}
	for _, c := range []struct {
		whole bool
		want  int
	}{{true, n}, {false, 31}} {
		if r, err := Perplexity(context.Background(), e, s, []string{text}, c.whole); err != nil || r.Tokens != c.want {
			t.Errorf("whole %v: %+v, %v; want %d tokens", c.whole, r, err, c.want)
		}
	}
}

func TestLogitsDecode(t *testing.T) {
	e, s := open(t, engine.Options{Path: tinyMoE, Context: 64})
	r, err := Logits(context.Background(), e, s, LogitsConfig{Tokens: []int32{1, 43}, Decode: 3})
	if err != nil {
		t.Fatal(err)
	}
	// Feeding the decoded tokens as a prompt gives the same logits.
	all := []int32{1, 43, r.Decode[0].Token, r.Decode[1].Token, r.Decode[2].Token}
	again, err := Logits(context.Background(), e, s, LogitsConfig{Tokens: all, Positions: []int32{1, 2, 4}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again.Logits[0], r.Logits[0]) || !slices.Equal(again.Logits[1], r.Decode[0].Logits) || !slices.Equal(again.Logits[2], r.Decode[2].Logits) {
		t.Error("decode steps and prompt positions differ")
	}
	if _, err := Logits(context.Background(), e, s, LogitsConfig{Tokens: all, Decode: 60}); err == nil || !strings.Contains(err.Error(), "64") {
		t.Errorf("past the context: %v", err)
	}
}

func TestPredictor(t *testing.T) {
	rs, err := Predictor(context.Background(), PredictorConfig{
		Engine: engine.Options{Path: tinyMoE, Context: 1024, Lookahead: 2, ExpertRAM: engine.ExpertBudget{Percent: 25}},
		Trace:  "../testdata/tiny-moe/routing.jsonl.gz", Tokens: 300,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rs) != 5 || rs[0].Predictor != "" || rs[1].Predictor != "gate-ahead" || rs[4].Predictor != "gate-ahead, refined" {
		t.Fatalf("%d reports: %+v", len(rs), rs)
	}
	if rs[3].Recall1 <= rs[1].Recall1 || rs[4].Recall2 != rs[2].Recall2 {
		t.Errorf("refined: %v and %v, plain %v and %v", rs[3].Recall1, rs[4].Recall2, rs[1].Recall1, rs[2].Recall2)
	}
	ready := func(r *PredictorReport) float64 { return r.Resident + r.InFlight }
	if rs[0].Recall1 != 0 || rs[1].Recall1 < 0.75 || rs[2].Recall2 < 0.65 || rs[2].Recall2 >= rs[2].Recall1 {
		t.Errorf("recall %v %v %v", rs[0].Recall1, rs[1].Recall1, rs[2].Recall2)
	}
	if ready(rs[2]) <= ready(rs[0]) {
		t.Errorf("resident or in flight: %v with guesses, %v without", ready(rs[2]), ready(rs[0]))
	}
	if rs[2].Agreement < 0.9 || rs[2].Agreement != rs[0].Agreement {
		t.Errorf("agreement with the trace: %v and %v", rs[2].Agreement, rs[0].Agreement)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ name, text, says string }{
		{"a.jsonl", "{\"text\": \"x\"}\n{\"txt\": 1}\n", "line 2"},
		{"b.jsonl", "nothing\n", "line 1"},
	} {
		if _, err := ReadTexts(write(c.name, c.text)); err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := ReadQuestions(write("q.jsonl", `{"question": "x"}`)); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("%v", err)
	}
}
