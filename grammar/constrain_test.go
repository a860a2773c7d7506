package grammar

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"terrace/sample"
)

func sampler(t testing.TB, vocab int, set func(*sample.Params)) *sample.Sampler {
	t.Helper()
	p := sample.Defaults(vocab)
	p.Seed = 5
	if set != nil {
		set(&p)
	}
	s, err := sample.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// masked are logits with those that m forbids banned, by its words.
func masked(t testing.TB, m *Matcher, logits []float32) []float32 {
	t.Helper()
	words, err := m.Mask()
	if err != nil {
		t.Fatal(err)
	}
	out := slices.Clone(logits)
	for id := range out {
		if words[id>>6]>>(id&63)&1 == 0 {
			out[id] = float32(math.Inf(-1))
		}
	}
	return out
}

// TestConstrain compares a constrained sampler with one that is given masked logits: greedy or not, it picks the same.
func TestConstrain(t *testing.T) {
	vocab := bytesAnd("ab", "ba", "aa", "[", "]]", ",a", "\",", "x\"")
	ix := NewIndex(vocab)
	g := mustSchema(t, `{"type":"array","items":{"type":"string","maxLength":5},"maxItems":9}`)
	r := rand.New(rand.NewPCG(1, 2))
	for name, set := range map[string]func(*sample.Params){
		"greedy":    func(p *sample.Params) { p.Temp = 0 },
		"penalised": func(p *sample.Params) { p.Temp, p.PresencePenalty = 0, 2 },
		"default":   nil,
		"wide":      func(p *sample.Params) { p.TopK, p.TopP, p.MinP, p.Temp = 0, 1, 0, 2 },
	} {
		for range 30 {
			m, other := mustMatch(t, g, ix), mustMatch(t, g, ix)
			c, plain := Constrain(sampler(t, len(vocab), set), m), sampler(t, len(vocab), set)
			for range 60 {
				logits := make([]float32, len(vocab))
				for i := range logits {
					logits[i] = float32(r.NormFloat64() * 3)
				}
				want := masked(t, other, logits)
				left := 0
				for _, l := range want {
					if !math.IsInf(float64(l), -1) {
						left++
					}
				}
				id, err := c.Next(slices.Clone(logits))
				if err != nil {
					t.Fatal(err)
				}
				if left > 1 { // where there is no choice nothing is drawn
					if w, err := plain.Next(want); err != nil || w != id {
						t.Fatalf("%s: token %d, want %d, %v", name, id, w, err)
					}
				} else if math.IsInf(float64(want[id]), -1) {
					t.Fatalf("%s: token %d is forbidden", name, id)
				}
				c.Accept(id)
				plain.Accept(id)
				if err := other.Accept(id); err != nil {
					t.Fatal(err)
				}
				if m.Ended() {
					break
				}
			}
			if m.Ended() {
				if _, err := c.Next(make([]float32, len(vocab))); !errors.Is(err, ErrEnded) {
					t.Error(err)
				}
			}
		}
	}
}

func TestConstrainEnds(t *testing.T) {
	vocab := bytesAnd()
	ix := NewIndex(vocab)
	end := int32(len(vocab) - 1)
	logits := make([]float32, len(vocab))
	// An end comes where nothing else can, also if the sampler bans it.
	m := mustMatch(t, mustParse(t, `root ::= "a"`), ix)
	c := Constrain(sampler(t, len(vocab), func(p *sample.Params) { p.IgnoreEOS, p.EOG, p.Probs = true, []int32{end}, 3 }), m)
	for _, want := range []int32{'a', end} {
		id, err := c.Next(slices.Clone(logits))
		if id != want || err != nil {
			t.Fatal(id, err)
		}
		if p := c.Probs(); len(p) != 1 || p[0] != (sample.Prob{ID: want, P: 1}) {
			t.Error(p)
		}
		c.Accept(id)
	}
	if !c.Matcher().Ended() || c.Allows('a') {
		t.Error("not ended")
	}
	// A ban on all that the grammar allows is an error that says so.
	m = mustMatch(t, mustParse(t, `root ::= [ab]`), ix)
	c = Constrain(sampler(t, len(vocab), func(p *sample.Params) {
		p.LogitBias = map[int32]float32{'a': float32(math.Inf(-1)), 'b': float32(math.Inf(-1))}
	}), m)
	if _, err := c.Next(slices.Clone(logits)); !errors.Is(err, sample.ErrBanned) || !strings.Contains(err.Error(), "of 2 tokens that the grammar allows") {
		t.Error(err)
	}
	// A token that was forced on it is refused once the next is asked for.
	c.Accept('x')
	if _, err := c.Next(slices.Clone(logits)); err == nil || !strings.Contains(err.Error(), `token 120 ("x") is not what the grammar allows here`) {
		t.Error(err)
	}
}

// kept is a vocabulary whose bytes are at hand.
type kept struct {
	list
	bytes [][]byte
}

func (k kept) Bytes(id int32) []byte { return k.bytes[id] }

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	vocab := invented(5000)
	texts := kept{vocab, nil}
	for id := range int32(vocab.Size()) {
		texts.bytes = append(texts.bytes, vocab.Bytes(id))
	}
	ix := NewIndex(texts)
	g := mustParse(t, "root ::= (object \"\\n\")*\nobject ::= \"{\" ([a-z]{1,8} \":\" (object | [0-9]{1,5} | \"'\" [^'\\n]{0,60} \"'\") \";\")* \"}\"")
	for name, set := range map[string]func(*sample.Params){"greedy": func(p *sample.Params) { p.Temp = 0 }, "default": nil} {
		m := mustMatch(t, g, ix)
		c := Constrain(sampler(t, len(vocab), set), m)
		r := rand.New(rand.NewPCG(3, 4))
		ids := ix.words("{abc:'some words here';d:{};ef:123;}\n{g:{h:{i:'x';};};}\n")
		base, logits := make([]float32, len(vocab)), make([]float32, len(vocab))
		for i := range base {
			base[i] = r.Float32()
		}
		at := 0
		step := func() {
			copy(logits, base)
			if _, err := c.Next(logits); err != nil {
				t.Fatal(err)
			}
			c.Accept(ids[at%len(ids)])
			at++
		}
		for range 20 * len(ids) {
			step()
		}
		if n := testing.AllocsPerRun(5*len(ids), step); n != 0 {
			t.Errorf("%s: %g allocations a token", name, n)
		}
	}
	if b := g.Bytes(); b < 1000 || b > 4*limitBytes {
		t.Errorf("the grammar holds %d bytes", b)
	}
}
