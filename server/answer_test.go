package server

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"terrace/engine"
	"terrace/sample"
)

// feed gives text to an answer in random pieces, and returns what it let out, as the stream would have it.
func feed(p *params, own []string, text string, r *rand.Rand) (out []string, a *answer) {
	a = &answer{job: &job{p: p, stops: own}, column: -1}
	runes := []rune(text)
	for len(runes) > 0 {
		n := 1 + r.IntN(min(5, len(runes)))
		piece, more := a.advance(string(runes[:n]))
		out = append(out, piece)
		if !more {
			return out, a
		}
		runes = runes[n:]
	}
	a.end(engine.JobResult{End: -1})
	return append(out, a.text.String()[len(strings.Join(out, "")):]), a
}

// Whatever the pieces are, the text ends before the stop string that is complete first, and nothing of it was let out before.
func TestStopStrings(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "b", "ä", "\n", "🙂"}
	random := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	words := 0
	for range 20000 {
		text := random(r.IntN(20))
		p := &params{}
		var own []string
		for range r.IntN(3) {
			p.stop = append(p.stop, random(1+r.IntN(4)))
		}
		for range r.IntN(2) {
			own = append(own, random(1+r.IntN(4)))
		}
		want, cut, end := text, -1, 0
		for _, s := range append(append([]string{}, p.stop...), own...) {
			if i := strings.Index(text, s); i >= 0 && (cut < 0 || i+len(s) < end || i+len(s) == end && i < cut) {
				cut, end = i, i+len(s)
			}
		}
		if cut >= 0 {
			want = text[:cut]
			words++
		}
		out, a := feed(p, own, text, r)
		if got := strings.Join(out, ""); got != want || got != a.text.String() {
			t.Fatalf("text %q, stops %q and %q: got %q of %q, want %q", text, p.stop, own, got, out, want)
		}
		if (a.reason != "") != (cut >= 0) || (a.reason == "word") != (a.word != "") || a.word != "" && !strings.HasPrefix(text[cut:], a.word) {
			t.Fatalf("text %q, stops %q and %q: ends by %q, %q", text, p.stop, own, a.reason, a.word)
		}
		if a.newline.Load() != strings.Contains(want, "\n") {
			t.Fatalf("text %q: newline %v", want, a.newline.Load())
		}
	}
	if words < 1000 {
		t.Fatalf("only %d texts had a stop string", words)
	}
}

func TestIndent(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		indent     int
		text, want string
		stops      bool
	}{
		{2, "x = 1\n  y\n  z\nend", "x = 1\n  y\n  z\n", true},
		{2, "x = 1\n\n   y\n \t\n  z", "x = 1\n\n   y\n \t\n  z", false},
		{1, "a\nb", "a\n", true},
		{0, "a\nb", "a\nb", false},
		{2, "a\n b", "a\n", true},
		{2, "no newline", "no newline", false},
		{2, "a\n  ", "a\n", false}, // blanks that nothing follows
		{2, "a\n\t\tb\n}", "a\n\t\tb\n", true},
	} {
		for range 50 {
			out, a := feed(&params{indent: c.indent, stop: []string{"}}"}}, nil, c.text, r)
			if got := strings.Join(out, ""); got != c.want || (a.reason == "limit") != c.stops {
				t.Fatalf("%d, %q: got %q by %q, want %q", c.indent, c.text, got, a.reason, c.want)
			}
		}
	}
}

func TestProbs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, vocab := range []int{3, 320, 1000} {
		logits := make([]float32, vocab)
		for i := range logits {
			logits[i] = float32(r.NormFloat64() * 3)
		}
		logits[0] = float32(math.Inf(-1))
		logits[1] = logits[2] // equal ones: the lower id first
		for _, n := range []int{1, 5, 64, 65, vocab} {
			n = min(n, vocab)
			p := rawProb(1, logits, n)
			if len(p.top) != n {
				t.Fatalf("%d alternatives of %d, want %d", len(p.top), vocab, n)
			}
			mass := 0.0
			for i, c := range p.top {
				if c.value > 0 || math.IsInf(c.value, 0) || i > 0 && (c.value > p.top[i-1].value || c.value == p.top[i-1].value && c.id < p.top[i-1].id) {
					t.Fatalf("alternatives are %v", p.top)
				}
				if c.id == 1 && c.value != p.value {
					t.Fatalf("the token has %g, as an alternative %g", p.value, c.value)
				}
				mass += math.Exp(c.value)
			}
			if n == vocab && math.Abs(mass-1) > 1e-5 {
				t.Errorf("all alternatives have %g of the probability", mass)
			}
		}
		if p := rawProb(0, logits, 1); p.value != -math.MaxFloat32 {
			t.Errorf("a token without a chance has log-probability %g", p.value)
		}
	}
	p := postProb(engine.Token{ID: 7, Probs: []sample.Prob{{ID: 3, P: 0.25}, {ID: 7, P: 0.5}, {ID: 9, P: 0.25}}}, 2)
	if p.value != 0.5 || fmt.Sprint(p.top) != "[{7 0.5} {3 0.25}]" {
		t.Errorf("%+v", p)
	}
}

// A client that does not read is given up before what waits for it takes much memory, and the last piece always has room.
func TestOutbox(t *testing.T) {
	o := outbox{wake: make(chan struct{}, 1)}
	n := 0
	for o.push(piece{text: "a"}) {
		if n++; n > maxQueued {
			t.Fatalf("%d pieces wait", n)
		}
	}
	if n != maxQueued || !o.full() || !o.push(piece{final: &result{}}) || len(o.take()) != maxQueued+1 {
		t.Errorf("%d pieces had room, want %d", n, maxQueued)
	}
}

func TestSoundPrefix(t *testing.T) {
	for in, want := range map[string]string{"": "", "ab": "ab", "a\xf0\x9f": "a", "\xf0\x9f\x99\x82": "🙂", "\x80a": "", "é\xff": "é"} {
		if got := soundPrefix([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestFileNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a.bin": true, "my slot 1": true, "ünï.bin": true, strings.Repeat("x", 255): true,
		"": false, strings.Repeat("x", 256): false, "a/b": false, `a\b`: false, "../a": false, "a..b": false, " a": false, "a ": false, "a.": false,
		"a\nb": false, "a:b": false, "a*": false, "what?": false, `"a"`: false, "<": false, "a|b": false, ".": false, "a\u0085": false, "\x7f": false,
	} {
		if err := checkFileName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTrim(t *testing.T) {
	o := map[string]any{"content": "x", "timings": timings{PromptN: 3}, "generation_settings": map[string]any{"n_predict": 4}, "index": 0}
	p := &params{fields: []string{"content", "generation_settings/n_predict", "timings/prompt_n", "no/thing", "content/x", "index"}}
	if got := fmt.Sprint(p.trim(o)); got != "map[content:x generation_settings/n_predict:4 index:0 timings/prompt_n:3]" {
		t.Error(got)
	}
}
