package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// stroll follows a grammar by its masks for some tokens, and gives the text and whether it ended. Errors must be of the kind
// that a grammar is allowed to have.
func stroll(t *testing.T, g *Grammar, seed uint64, steps int) (string, bool) {
	m, err := g.New(byteIndex)
	if err != nil {
		if !strings.Contains(err.Error(), "ways at once") {
			t.Fatal(err)
		}
		return "", false
	}
	r := rand.New(rand.NewPCG(seed, 1))
	out := []byte{}
	mayFail := func(err error) {
		if s := err.Error(); !strings.Contains(s, "ways at once") && !strings.Contains(s, "branches too much") {
			t.Fatalf("after %q: %v", out, err)
		}
	}
	for range steps {
		words, err := m.Mask()
		if err != nil {
			mayFail(err)
			return "", false
		}
		var can []int32
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				can = append(can, int32(i*64+trailing(w)))
			}
		}
		id := can[r.IntN(len(can))]
		if last := can[len(can)-1]; int(last) == byteIndex.size-1 && r.IntN(3) == 0 {
			id = last
		}
		if !m.Allows(id) {
			t.Fatalf("after %q: the mask allows token %d, Allows does not", out, id)
		}
		if err := m.Accept(id); err != nil { // the step that the mask could not tell was one too many
			mayFail(err)
			return "", false
		}
		if m.Ended() {
			if !utf8.Valid(out) {
				t.Fatalf("not UTF-8: %q", out)
			}
			return string(out), true
		}
		out = append(out, byteIndex.v.Bytes(id)...)
	}
	return string(out), false
}

func FuzzParseGBNF(f *testing.F) {
	for _, s := range []string{
		`root ::= "a" | [b-d]{2,5} # c`, "root ::= x\nx ::= (\"\\x41\" | .)* [^\\n]?", "root ::= \"(\" root \")\" | \"\"", `root ::= ("a"?){3,50} <t>`, "root ::= [\\U0001f600-\\U0001f64f]{1,300}",
		"root ::= a b\na ::= \"x\"*\nb ::= a? \"y\"", `root ::= "`,
	} {
		f.Add(s, uint64(1))
	}
	f.Fuzz(func(t *testing.T, src string, seed uint64) {
		if len(src) > 4096 {
			return
		}
		g, err := ParseGBNF(src)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		stroll(t, g, seed, 60)
	})
}

func FuzzFromSchema(f *testing.F) {
	r := rand.New(rand.NewPCG(31, 32))
	for range 12 {
		f.Add(random{r, false}.document(), uint64(1))
	}
	for _, s := range []string{`{"$ref":"#/$defs/a","$defs":{"a":{"items":{"$ref":"#/$defs/a"}}}}`, `{"type":"string","pattern":"^a(b|[c-e])+$","maxLength":9}`, `{"type":"number","minimum":-1.5,"exclusiveMaximum":1e3}`, `{"allOf":[{"oneOf":[{"const":1},{"const":"a"}]},{"not":false}]}`} {
		f.Add(s, uint64(2))
	}
	f.Fuzz(func(t *testing.T, src string, seed uint64) {
		if len(src) > 4096 {
			return
		}
		g, err := FromSchema(json.RawMessage(src), SchemaOptions{Compact: seed%2 == 0})
		if err != nil {
			if s := err.Error(); strings.Contains(s, "\n") || !strings.HasPrefix(s, "json_schema: #") {
				t.Errorf("an error without a path or of several lines: %q", s)
			}
			return
		}
		if out, ended := stroll(t, g, seed, 300); ended && !json.Valid([]byte(out)) {
			t.Fatalf("%s: no JSON: %q", src, out)
		}
	})
}

// FuzzPattern compares what a pattern lets through with Go's reading of it.
func FuzzPattern(f *testing.F) {
	for _, s := range []string{`^a+b?$`, `[^\d\s]{2,3}x`, `^(foo|ba[rz])*$`, `\.\w+$`, `^.\u0041$`} {
		f.Add(s, uint64(3))
	}
	f.Fuzz(func(t *testing.T, src string, seed uint64) {
		if len(src) > 200 || !utf8.ValidString(src) {
			return
		}
		quoted, _ := json.Marshal(src)
		schema := `{"type":"string","pattern":` + string(quoted) + `}`
		g, err := FromSchema(json.RawMessage(schema), SchemaOptions{})
		if err != nil {
			return
		}
		re, err := compileGo(src)
		if err != nil {
			return // Go has limits of its own
		}
		out, ended := stroll(t, g, seed, 200)
		if !ended {
			return
		}
		var s string
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		if !re.MatchString(s) {
			t.Fatalf("%q does not match %q", s, src)
		}
	})
}
