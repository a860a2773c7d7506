package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
)

// invented is a vocabulary with the shape of a real one: all bytes, then words, runs of punctuation and numbers.
func invented(n int) list {
	r := rand.New(rand.NewPCG(11, 12))
	seen := map[string]bool{}
	var l list
	add := func(s string) {
		if !seen[s] {
			seen[s] = true
			l = append(l, s)
		}
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	letters := []rune("eeeetttaaaoooinnshrdlucmfwypvbgkjqxz")
	marks := []rune("\"'{}[]()<>,.:;-_=+*/\\!?#$%& \n\t")
	for len(l) < n-1 {
		var w []rune
		switch k := r.IntN(20); {
		case k == 0:
			for range 1 + r.IntN(5) {
				w = append(w, marks[r.IntN(len(marks))])
			}
		case k == 1:
			for range 1 + r.IntN(4) {
				w = append(w, '0'+rune(r.IntN(10)))
			}
		case k < 5:
			base := []rune{0x430, 0x4e00, 0x3b1, 0xac00, 0x627}[r.IntN(5)]
			for range 1 + r.IntN(5) {
				w = append(w, base+rune(r.IntN(30)))
			}
		default:
			if r.IntN(2) == 0 {
				w = append(w, ' ')
			}
			for range 1 + r.IntN(9) {
				w = append(w, letters[r.IntN(len(letters))])
			}
			if r.IntN(3) == 0 && len(w) > 1 {
				w[len(w)-1] -= 'a' - 'A'
			}
		}
		add(string(w))
	}
	return append(l, "</s>")
}

const benchSchema = `{"type":"object","properties":{"name":{"type":"string","maxLength":200},"age":{"type":"integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string"}},"more":{"type":"object"}},"required":["name","age","tags","more"]}`

// words cuts text into tokens, the longest first.
func (ix *Index) words(text string) []int32 {
	byText := map[string]int32{}
	for id := range int32(ix.size) {
		if b := ix.v.Bytes(id); len(b) > 0 && !ix.v.IsEnd(id) {
			byText[string(b)] = id
		}
	}
	var out []int32
	for len(text) > 0 {
		n := min(len(text), ix.longest)
		for ; n > 1; n-- {
			if _, ok := byText[text[:n]]; ok {
				break
			}
		}
		out = append(out, byText[text[:n]])
		text = text[n:]
	}
	return out
}

const benchText = `{"name": "The quick brown fox jumps over the lazy dog, \"again\" and again until it rests", "age": 42, "tags": ["one", "two", "three and four", "five"], "more": {"a": [1, 2, {"b": "nothing of that"}], "c": null}}`

func BenchmarkMask(b *testing.B) {
	for _, n := range []int{4096, 150_000} {
		ix := NewIndex(invented(n))
		logits := make([]float32, n)
		ids := ix.words(benchText)
		g := func() *Grammar {
			g, err := FromSchema(json.RawMessage(benchSchema), SchemaOptions{})
			if err != nil {
				b.Fatal(err)
			}
			return g
		}
		run := func(b *testing.B, g *Grammar) {
			m := mustMatch(b, g, ix)
			for _, id := range ids {
				if _, _, err := m.Apply(logits); err != nil {
					b.Fatal(err)
				}
				if err := m.Accept(id); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.Run(fmt.Sprintf("warm/%d", n), func(b *testing.B) {
			g := g()
			run(b, g)
			for b.Loop() {
				run(b, g)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(ids)), "µs/token")
		})
		b.Run(fmt.Sprintf("cold/%d", n), func(b *testing.B) {
			for b.Loop() {
				run(b, g())
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(ids)), "µs/token")
		})
		b.Run(fmt.Sprintf("newstate/%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				m := mustMatch(b, g(), ix)
				_ = m.AcceptBytes([]byte(`{"name": "a`))
				b.StartTimer()
				if _, err := m.Mask(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("index/%d", n), func(b *testing.B) {
			v := invented(n)
			for b.Loop() {
				NewIndex(v)
			}
			b.ReportMetric(float64(len(ix.nodes)*12+n*4)/1e6, "MB")
		})
	}
}

func BenchmarkFromSchema(b *testing.B) {
	for b.Loop() {
		if _, err := FromSchema(json.RawMessage(benchSchema), SchemaOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDemo is what a constraint adds to a token of the demo model: the mask, the step, and the check of a greedy choice.
func BenchmarkDemo(b *testing.B) {
	tok := readTokenizer(b, "../testdata/tiny-moe-Q4_K.gguf")
	ix := NewIndex(VocabOf(tok))
	ids := tok.Encode(nil, benchText, false, false)
	logits := make([]float32, ix.Size())
	run := func(b *testing.B, g *Grammar, masks bool) {
		m := mustMatch(b, g, ix)
		for _, id := range ids {
			if masks {
				if _, _, err := m.Apply(logits); err != nil {
					b.Fatal(err)
				}
			} else if !m.Allows(id) {
				b.Fatal(id)
			}
			if err := m.Accept(id); err != nil {
				b.Fatal(err)
			}
		}
	}
	report := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1000/float64(b.N*len(ids)), "µs/token")
		b.ReportMetric(float64(ix.Size()), "tokens")
	}
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			run(b, mustSchema(b, benchSchema), true)
		}
		report(b)
	})
	b.Run("warm", func(b *testing.B) {
		g := mustSchema(b, benchSchema)
		for b.Loop() {
			run(b, g, true)
		}
		report(b)
	})
	b.Run("greedy", func(b *testing.B) {
		g := mustSchema(b, benchSchema)
		for b.Loop() {
			run(b, g, false)
		}
		report(b)
	})
}
