package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// list is a vocabulary given by its tokens: the last is the end, those that begin with NUL are control tokens.
type list []string

func (l list) Size() int           { return len(l) }
func (l list) IsEnd(id int32) bool { return int(id) == len(l)-1 }
func (l list) Bytes(id int32) []byte {
	if l.IsEnd(id) || strings.HasPrefix(l[id], "\x00") && len(l[id]) > 1 {
		return nil
	}
	return []byte(l[id])
}

func (l list) Control(text string) (int32, bool) {
	i := slices.Index(l, "\x00"+text)
	return int32(i), i >= 0
}

// bytesAnd is a vocabulary of all bytes, some longer tokens and an end.
func bytesAnd(more ...string) list {
	var l list
	for b := range 256 {
		l = append(l, string([]byte{byte(b)}))
	}
	return append(append(l, more...), "</s>")
}

func mustParse(t testing.TB, src string) *Grammar {
	t.Helper()
	g, err := ParseGBNF(src)
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	return g
}

func mustMatch(t testing.TB, g *Grammar, ix *Index) *Matcher {
	t.Helper()
	m, err := g.New(ix)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// accepts tells whether s is a text of g, and whether it is the beginning of one.
func accepts(t testing.TB, g *Grammar, s string) (whole, begins bool) {
	t.Helper()
	m := mustMatch(t, g, byteIndex)
	if m.AcceptBytes([]byte(s)) != nil {
		return false, false
	}
	return m.Complete(), true
}

var byteIndex = NewIndex(bytesAnd())

func TestGBNF(t *testing.T) {
	for src, c := range map[string]struct{ yes, no []string }{
		`root ::= "yes" | "no"`:                         {[]string{"yes", "no"}, []string{"", "ye", "yesno", "y"}},
		`root ::= ("a" | "b")+ "c"?`:                    {[]string{"a", "abbac"}, []string{"", "c", "acc"}},
		`root ::= [a-c_]{2,4}`:                          {[]string{"ab", "a_c", "abca"}, []string{"a", "abcab", "ad"}},
		`root ::= [a-c]{3}`:                             {[]string{"abc"}, []string{"ab", "abca"}},
		`root ::= [a-c]{2,}`:                            {[]string{"ab", "abcabcabcabcabcabcabcabc"}, []string{"a"}},
		`root ::= [a-c]{30,}`:                           {[]string{strings.Repeat("a", 30), strings.Repeat("b", 100)}, []string{strings.Repeat("a", 29)}},
		`root ::= ("ab" [0-9]?){10,20} "x"`:             {[]string{strings.Repeat("ab", 10) + "x", strings.Repeat("ab3", 20) + "x"}, []string{strings.Repeat("ab", 9) + "x", strings.Repeat("ab", 21) + "x"}},
		`root ::= [^a-c\]]`:                             {[]string{"d", "ü", "€", "\U0001f600", "\n"}, []string{"a", "]", "\xff", "\xc3", "\xed\xa0\x80"}},
		`root ::= .`:                                    {[]string{"d", "\U0010ffff"}, []string{"", "ab", "\xf4\x90\x80\x80", "\xc0\x80", "\xe0\x80\x80"}},
		`root ::= [-a] [a-]`:                            {[]string{"--", "a-", "-a"}, []string{"b-"}},
		`root ::= "\x41\u00e9\U0001F600\n\t\r\\\"\[\]"`: {[]string{"Aé\U0001f600\n\t\r\\\"[]"}, nil},
		`root ::= [\x41-\x43\u00e9]`:                    {[]string{"A", "C", "é"}, []string{"D", "\xe9"}},
		"root ::= a-1 # comment\n\n# more\na-1 ::= \n \"x\" |\n \"y\"\n | \"z\"": {[]string{"x", "y", "z"}, []string{"a"}},
		"root ::= (\n\"a\"\n# c\n\"b\" |\n\"c\" )":                               {[]string{"ab", "c"}, []string{"a"}},
		`root ::= "(" root ")" | ""`:                                             {[]string{"", "()", "((((((()))))))"}, []string{"(", "(()"}},
		"root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9] | \"(\" e \")\"":            {[]string{"1", "1+2", "(1+(2+3))+4"}, []string{"1+", "(1", "+"}},
		"root ::= \"a\" root | \"b\"":                                            {[]string{strings.Repeat("a", 5000) + "b"}, []string{"a"}},
		`root ::= ("a"*){3} "b"`:                                                 {[]string{"b", "aaaaab"}, []string{"a"}},
		`root ::= ("a"?){0,40} "b"`:                                              {[]string{"b", strings.Repeat("a", 40) + "b"}, []string{strings.Repeat("a", 41) + "b"}},
		`root ::= "a"{0} "b" ("c"{2}){2}*`:                                       {[]string{"b", "bcccc", "bcccccccc"}, []string{"bcc"}},
		`root ::= "ab"*`:                                                         {[]string{"", "abab"}, []string{"aba", "b"}},
		"root ::= v\nv ::= o | s | n ws\no ::=\n  \"{\" ws (\n  s \":\" ws v\n (\",\" ws s \":\" ws v)*\n )? \"}\" ws\ns ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-f]{4}))* \"\\\"\" ws # c\nn ::= [-+]? [0-9]+\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}": {
			[]string{`{"a\u00e9\"": {"b":-1 }}`, "{\n\t}", `"é"`}, []string{`{"a"}`, "{\x7f}", "{  }"}},
		`root ::= <think> "x"`:                 {[]string{"<think>x"}, []string{"x"}},
		`root ::= ([a-z]{0,50} ","){0,50} "."`: {[]string{".", ",,,.", "abc,def,."}, []string{"abc.", strings.Repeat(",", 51) + "."}},
	} {
		g := mustParse(t, src)
		for _, s := range c.yes {
			if whole, _ := accepts(t, g, s); !whole {
				t.Errorf("%s does not accept %.50q", src, s)
			}
		}
		for _, s := range c.no {
			if whole, _ := accepts(t, g, s); whole {
				t.Errorf("%s accepts %.50q", src, s)
			}
		}
	}
}

func TestGBNFErrors(t *testing.T) {
	for src, want := range map[string]string{
		"":                               "there is no rule root",
		"a ::= \"b\"":                    "there is no rule root",
		"root = \"b\"":                   "line 1, column 6: ::= is expected behind the name root, not '='",
		"root ::= b":                     "line 1, column 10: rule b is not defined",
		"root ::= \"é\" é":               "line 1, column 14: the end of rule root is expected, not 'é'",
		"\n\nroot ::= \"a":               "line 3, column 10: this literal has no closing quote",
		"root ::= [a":                    "line 1, column 10: this class has no closing bracket",
		"root ::= []":                    "this class has no characters",
		"root ::= [b-a]":                 "column 11: range 'b'-'a' goes backwards",
		"root ::= \"\\q\"":               "escape \\ before 'q' is not known",
		"root ::= \"\\x4\"":              "escape \\x has 1 digits, 2 are needed",
		"root ::= \"\\ud800\"":           "escape \\u: D800 is no character",
		"root ::= \"\\Uffffffff\"":       "escape \\U: FFFFFFFF is no character",
		"root ::= *":                     "* has nothing before it to repeat",
		"root ::= \"a\"{2,1}":            "count {2,1} has its limits the wrong way round",
		"root ::= \"a\"{x}":              "a number is expected, not 'x'",
		"root ::= \"a\"{1":               "} is expected, not the end of the text",
		"root ::= \"a\"{99999999}":       "a count is above",
		"root ::= (\"a\"":                ") is expected",
		"root ::= \"a\")":                "column 13: the end of rule root is expected, not ')'",
		"root ::= \"a\"\nroot ::= \"b\"": "line 2, column 1: rule root is defined twice",
		"root ::= root \"a\" | \"b\"":    "rule root is left-recursive",
		"root ::= a\na ::= b? a":         "rule b is not defined",
		"root ::= \"x\" | a\na ::= \"y\"* b | \"z\"\nb ::= a \"q\"": "left-recursive",
		"root ::= \"a\" root":    "rule root: no text that it allows ever ends",
		"root ::= (\"a\"*){100}": "repeats up to 100 times what may be empty",
		"root ::= <[12]>":        "numbers of tokens are not supported",
		"root ::= !<a>":          "negated tokens are not supported",
		"root ::= \"\xff\"":      "line 1, column 11: the text is not valid UTF-8",
		"root ::= " + strings.Repeat("(", 300) + "\"a\"" + strings.Repeat(")", 300): "parentheses are nested more than 200 deep",
		"root ::= \"a\"" + strings.Repeat("*", 300):                                 "more than 200 counts",
		"root ::= (((\"abcdefghijklmnopqrstuvwxyz\"{1000}){1000}){1000}":            ") is expected",
	} {
		if _, err := ParseGBNF(src); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want ...%s...", src, err, want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: error of several lines: %v", src, err)
		}
	}
	var long strings.Builder
	long.WriteString("root ::= \"a\"")
	for i := range 50000 {
		fmt.Fprintf(&long, "|\"%05dabcdefghij\"", i)
	}
	if _, err := ParseGBNF(long.String()); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a large grammar: %v", err)
	}
}

// ref is a grammar of the test's own kind: it reads slowly and plainly.
type ref struct {
	kind     string // set, text, seq, alt, repeat, rule
	runes    []rune
	negated  bool
	text     string
	kids     []*ref
	min, max int
	rule     int
}

// gbnf writes r.
func (r *ref) gbnf() string {
	var parts []string
	for _, k := range r.kids {
		parts = append(parts, k.gbnf())
	}
	switch r.kind {
	case "set":
		s := "["
		if r.negated {
			s += "^"
		}
		for _, c := range r.runes {
			s += fmt.Sprintf("\\U%08x", c)
		}
		return s + "]"
	case "text":
		return fmt.Sprintf("%q", r.text)
	case "seq":
		return "(" + strings.Join(parts, " ") + ")"
	case "alt":
		return "(" + strings.Join(parts, " | ") + ")"
	case "rule":
		return fmt.Sprintf("r%d", r.rule)
	}
	if r.max < 0 {
		return fmt.Sprintf("%s{%d,}", parts[0], r.min)
	}
	return fmt.Sprintf("%s{%d,%d}", parts[0], r.min, r.max)
}

// reader reads one text by the definition of a grammar.
type reader struct {
	rules []*ref
	in    string
	memo  map[readKey][]int
	more  bool // some reading wants more than the text has
}

type readKey struct {
	r  *ref
	at int
}

// ends gives where r can end if it begins at.
func (p *reader) ends(r *ref, at int) []int {
	if e, ok := p.memo[readKey{r, at}]; ok {
		return e
	}
	var out []int
	switch r.kind {
	case "text":
		rest := p.in[at:]
		if strings.HasPrefix(rest, r.text) {
			out = []int{at + len(r.text)}
		} else if strings.HasPrefix(r.text, rest) {
			p.more = true
		}
	case "set":
		rest := p.in[at:]
		if c, n := utf8.DecodeRuneInString(rest); (c != utf8.RuneError || n > 1) && slices.Contains(r.runes, c) != r.negated {
			out = []int{at + n}
		} else if len(rest) < 4 && !utf8.FullRuneInString(rest) {
			if r.negated { // some character begins so, and not all of them are excluded
				p.more = p.more || beginsRune(rest)
			}
			for _, c := range r.runes {
				p.more = p.more || !r.negated && strings.HasPrefix(string(c), rest)
			}
		}
	case "rule":
		out = p.ends(p.rules[r.rule], at)
	case "seq":
		out = []int{at}
		for _, k := range r.kids {
			var next []int
			for _, a := range out {
				next = append(next, p.ends(k, a)...)
			}
			out = next
		}
	case "alt":
		for _, k := range r.kids {
			out = append(out, p.ends(k, at)...)
		}
	case "repeat":
		now := []int{at}
		for n := 0; len(now) > 0 && (r.max < 0 || n <= r.max) && n <= len(p.in)+r.min+1; n++ {
			if n >= r.min {
				out = append(out, now...)
			}
			if n == r.max {
				break
			}
			var next []int
			for _, a := range now {
				next = append(next, p.ends(r.kids[0], a)...)
			}
			slices.Sort(next)
			now = slices.Compact(next)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	p.memo[readKey{r, at}] = out
	return out
}

// beginsRune tells whether s, no whole character, begins one.
func beginsRune(s string) bool {
	if s == "" {
		return true
	}
	for _, tail := range []string{"\x80", "\x90", "\xa0", "\xbf"} {
		for _, more := range []string{"", "\x80", "\x80\x80"} {
			if c, n := utf8.DecodeRuneInString(s + tail + more); c != utf8.RuneError && n == len(s+tail+more) {
				return true
			}
		}
	}
	return false
}

// read tells whether in is a text of the grammar, and whether it begins one.
func read(rules []*ref, in string) (whole, begins bool) {
	p := &reader{rules: rules, in: in, memo: map[readKey][]int{}}
	whole = slices.Contains(p.ends(rules[0], 0), len(in))
	return whole, whole || p.more
}

// drawRef draws a piece of a grammar. Rules refer to later ones, or to any behind a character.
func drawRef(t *rapid.T, depth, from, rules int, guarded bool) *ref {
	kinds := []string{"set", "text", "text", "set"}
	if depth > 0 {
		kinds = append(kinds, "seq", "alt", "repeat", "seq", "alt", "repeat", "rule", "rule")
	}
	r := &ref{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	alphabet := []rune("ab\"\\\nß€\U0001f600")
	switch r.kind {
	case "set":
		r.runes = rapid.SliceOfNDistinct(rapid.SampledFrom(alphabet), 1, 4, rapid.ID[rune]).Draw(t, "runes")
		r.negated = rapid.IntRange(0, 5).Draw(t, "negated") == 0
	case "text":
		r.text = rapid.StringOfN(rapid.SampledFrom(alphabet), 0, 3, -1).Draw(t, "text")
	case "rule":
		lo := from + 1
		if guarded {
			lo = 0
		}
		if lo >= rules {
			return &ref{kind: "text", text: "b"}
		}
		r.rule = rapid.IntRange(lo, rules-1).Draw(t, "rule")
	case "seq":
		for range rapid.IntRange(1, 3).Draw(t, "n") {
			k := drawRef(t, depth-1, from, rules, guarded)
			r.kids = append(r.kids, k)
			guarded = guarded || k.kind == "set" || k.kind == "text" && k.text != ""
		}
	case "alt":
		for range rapid.IntRange(1, 3).Draw(t, "n") {
			r.kids = append(r.kids, drawRef(t, depth-1, from, rules, guarded))
		}
	case "repeat":
		r.kids = []*ref{drawRef(t, depth-1, from, rules, guarded)}
		r.min = rapid.IntRange(0, 3).Draw(t, "min")
		r.max = r.min + rapid.SampledFrom([]int{0, 1, 2, 7, 30}).Draw(t, "more")
		if rapid.IntRange(0, 3).Draw(t, "endless") == 0 {
			r.max = -1
		}
	}
	return r
}

// TestAgainstReference walks through texts of random grammars, and at each step compares which tokens may come next.
// tooMany tells that a grammar is too ambiguous to follow, which one in thousands of random ones is.
func tooMany(err error) bool { return err != nil && strings.Contains(err.Error(), "ways at once") }

func TestAgainstReference(t *testing.T) {
	vocab := bytesAnd("ab", "aab", "ba", "bb", "a\"", "\\\n", "ßa", "a\xc3", "\x9f", "\xe2\x82", "\xac", "\xf0\x9f", "\x98\x80b", "€€", "aaaa", "a", "\U0001f600\xe2")
	ix := NewIndex(vocab)
	walked := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "rules")
		rules := make([]*ref, n)
		src := ""
		for i := range rules {
			rules[i] = drawRef(t, 3, i, n, false)
			name := fmt.Sprintf("r%d", i)
			src += name + " ::= " + rules[i].gbnf() + "\n"
		}
		src += "root ::= r0\n"
		g, err := ParseGBNF(src)
		if err != nil {
			return // it never ends, is left-recursive behind what may be empty, or counts that
		}
		m, err := g.New(ix)
		if tooMany(err) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		in := ""
		for range 8 {
			words, err := m.Mask()
			if tooMany(err) {
				return
			}
			if err != nil {
				t.Fatalf("%s\nafter %q: %v", src, in, err)
			}
			words = slices.Clone(words)
			var can []int32
			for id := range int32(vocab.Size()) {
				has := words[id>>6]>>(id&63)&1 != 0
				var want bool
				if vocab.IsEnd(id) {
					want, _ = read(rules, in)
				} else {
					_, want = read(rules, in+string(vocab.Bytes(id)))
				}
				if id < 256 && !strings.ContainsRune("ab\"\\\n\x00z", rune(id)) && id != 0xc3 && id != 0xe2 && id != 0x82 && id != 0xf0 && id != 0x9f && id != 0xff && !has {
					continue // other bytes are much like these
				}
				if has != want && !unending(rules, in+string(vocab.Bytes(id)), has) {
					t.Fatalf("%s\nafter %q token %q: allowed %v, want %v", src, in, vocab[id], has, want)
				}
				if m.Allows(id) != has {
					t.Fatalf("%s\nafter %q token %q: Allows is %v, the mask has %v", src, in, vocab[id], !has, has)
				}
				if has && !vocab.IsEnd(id) {
					can = append(can, id)
				}
			}
			if len(can) == 0 {
				if !m.Done() {
					t.Fatalf("%s\nafter %q: not done, but nothing follows", src, in)
				}
				break
			}
			if b := m.Forced(); len(b) > 0 {
				if _, begins := read(rules, in+string(b)); !begins {
					t.Fatalf("%s\nafter %q: forced %q", src, in, b)
				}
			}
			id := rapid.SampledFrom(can).Draw(t, "token")
			if err := m.Accept(id); tooMany(err) {
				return
			} else if err != nil {
				t.Fatalf("%s\nafter %q: %v", src, in, err)
			}
			in += string(vocab.Bytes(id))
			walked++
		}
		if whole, _ := read(rules, in); whole != m.Complete() {
			t.Fatalf("%s\n%q: complete %v, want %v", src, in, m.Complete(), whole)
		}
	})
	t.Logf("%d tokens compared", walked)
	if walked < 100 {
		t.Errorf("only %d tokens were compared", walked)
	}
}

// unending excuses a difference that comes of a rule that never ends: the reference does not know that.
func unending(rules []*ref, in string, has bool) bool {
	if has {
		return false
	}
	for _, r := range rules {
		if !canEnd(rules, r, map[*ref]bool{}) {
			return true
		}
	}
	return false
}

func canEnd(rules []*ref, r *ref, on map[*ref]bool) bool {
	if on[r] {
		return false
	}
	on[r] = true
	defer delete(on, r)
	switch r.kind {
	case "rule":
		return canEnd(rules, rules[r.rule], on)
	case "seq":
		for _, k := range r.kids {
			if !canEnd(rules, k, on) {
				return false
			}
		}
	case "alt":
		return slices.ContainsFunc(r.kids, func(k *ref) bool { return canEnd(rules, k, on) })
	case "repeat":
		return r.min == 0 || canEnd(rules, r.kids[0], on)
	}
	return true
}

func TestMatcher(t *testing.T) {
	vocab := bytesAnd("ab", "\x00<think>", "\x00<other>")
	ix := NewIndex(vocab)
	end := int32(len(vocab) - 1)
	think, other := int32(257), int32(258)
	m := mustMatch(t, mustParse(t, `root ::= <think>? "ab" <nothing>?`), ix)
	if m.Allows(other) || !m.Allows(think) || !m.Allows('a') || m.Allows('<') || !m.Allows(256) || m.Allows(end) || m.Allows(-1) || m.Allows(999) {
		t.Error("wrong beginning")
	}
	c := m.Clone()
	for _, id := range []int32{think, 'a'} {
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Accept('a'); err == nil || err.Error() != `token 97 ("a") is not what the grammar allows here` {
		t.Error(err)
	}
	if err := m.Accept(1000); err == nil {
		t.Error("token 1000 was accepted")
	}
	if m.Complete() || m.Done() || string(m.Forced()) != "b" {
		t.Errorf("complete %v, done %v, forced %q", m.Complete(), m.Done(), m.Forced())
	}
	_ = m.Accept('b')
	if !m.Complete() || m.Done() { // <nothing> is spelled out
		t.Errorf("complete %v, done %v", m.Complete(), m.Done())
	}
	logits := make([]float32, len(vocab))
	if left, last, err := m.Apply(logits); left != 2 || last != end || err != nil {
		t.Error(left, last, err)
	}
	for id, l := range logits {
		if (l == 0) != (id == '<' || int32(id) == end) {
			t.Errorf("logit of token %d is %g", id, l)
		}
	}
	if err := m.AcceptBytes([]byte("<nothingx")); err == nil || err.Error() != `the grammar allows 8 of the bytes of "<nothingx"` {
		t.Error(err)
	}
	if err := m.AcceptBytes([]byte("<nothing>")); err != nil || !m.Done() || m.Ended() {
		t.Error(err, m.Done(), m.Ended())
	}
	if err := m.Accept(end); err != nil || !m.Ended() {
		t.Error(err)
	}
	if _, err := m.Mask(); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
	if !errors.Is(m.Accept(end), ErrEnded) || !errors.Is(m.AcceptBytes(nil), ErrEnded) || m.Allows('a') || len(m.Forced()) > 0 {
		t.Error("goes on after its end")
	}
	if !c.Allows(think) || c.Complete() {
		t.Error("a clone follows the original")
	}
	// A vocabulary that lacks a byte.
	m = mustMatch(t, mustParse(t, `root ::= "ab"`), NewIndex(list{"a", "</s>"}))
	_ = m.Accept(0)
	if _, err := m.Mask(); err == nil || !strings.Contains(err.Error(), "no token of the vocabulary can follow") {
		t.Error(err)
	}
}

// TestRenewal goes on long after the first machine is full.
func TestRenewal(t *testing.T) {
	vocab := bytesAnd()
	ix := NewIndex(vocab)
	g := mustParse(t, "root ::= [a-z]{0,200000} [0-9]{5} e\ne ::= \"(\" e \")\" | \"x\"")
	m, other := mustMatch(t, g, ix), mustMatch(t, g, ix)
	first := m.on
	for i := range 199990 {
		if err := m.Accept('a' + int32(i%26)); err != nil {
			t.Fatal(i, err)
		}
	}
	if m.on == first {
		t.Fatal("the machine was never full")
	}
	if m.on.size > 2*limitBytes {
		t.Errorf("a machine holds %d bytes", m.on.size)
	}
	for range 10 {
		if err := m.Accept('a'); err != nil {
			t.Fatal(err)
		}
	}
	if m.Allows('a') || !m.Allows('1') {
		t.Error("the count was lost")
	}
	if err := other.AcceptBytes([]byte("abc12345((x)")); err != nil || other.Complete() || !other.Allows(')') || other.Allows('x') {
		t.Error("the other matcher lost its place", err)
	}
}

func TestAmbiguous(t *testing.T) {
	// 2^n states: the walk over the vocabulary must give up, not eat all memory.
	g := mustParse(t, `root ::= [ab]* "a" [ab]{60} "c"`)
	var long []string
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		b := make([]byte, 300)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		long = append(long, string(b))
	}
	m := mustMatch(t, g, NewIndex(bytesAnd(long...)))
	if _, err := m.Mask(); err == nil || !strings.Contains(err.Error(), "branches too much") {
		t.Error(err)
	}
	g = mustParse(t, `root ::= [a-z]{0,30000} [a-z]{0,30000} [a-z]{0,30000} "!"`)
	m = mustMatch(t, g, byteIndex)
	var err error
	for range 30000 {
		if err = m.Accept('a'); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "more than 1024 ways at once") {
		t.Error(err)
	}
}

// TestAmbiguousAgrees: where the next step is one too many, the mask, which looks a few frames deep, cannot tell; what
// the caller gets is the error, not a token that is allowed and is not.
func TestAmbiguousAgrees(t *testing.T) {
	m := mustMatch(t, mustParse(t, `root ::= ("" "x" root){52}* "x"`), byteIndex)
	for n := range 1000 {
		words, err := m.Mask()
		if err == nil && (words['x'>>6]>>('x'&63)&1 == 0 || !m.Allows('x') || m.Allows('y')) {
			t.Fatalf("after %d: the mask and Allows say no to x or yes to y", n)
		}
		if err == nil {
			err = m.Accept('x')
		}
		if err != nil {
			if !strings.Contains(err.Error(), "more than 1024 ways at once") || n < 10 {
				t.Errorf("after %d: %v", n, err)
			}
			if !m.Allows('x') || m.Allows('y') {
				t.Error("the error changed the place")
			}
			return
		}
	}
	t.Error("no error: the test has lost its grammar")
}

// TestFewWays: what people write must not come near maxConfigs: a set with escaped characters in a counted pattern that may
// begin anywhere, and a long enumeration.
func TestFewWays(t *testing.T) {
	follow := func(schema, text string, most int) {
		t.Helper()
		g, err := FromSchema(json.RawMessage(schema), SchemaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m := mustMatch(t, g, byteIndex)
		ways := 0
		for _, b := range []byte(text) {
			if _, err := m.Mask(); err != nil {
				t.Fatalf("%.40s: %v", schema, err)
			}
			if err := m.AcceptBytes([]byte{b}); err != nil {
				t.Fatalf("%.40s: %v", schema, err)
			}
			ways = max(ways, len(m.on.states[m.state].configs))
		}
		if ways > most || !m.Complete() {
			t.Errorf("%.40s: %d ways, want %d at most; complete: %v", schema, ways, most, m.Complete())
		}
	}
	for pattern, piece := range map[string]string{`[^s]{83}`: "aä\\n", `\\S{50,}`: "x→\\\"", `[^\\n]{200}`: "\\t\\u0001", `[a-z]{60}`: "q"} {
		follow(`{"type":"string","pattern":"`+pattern+`"}`, `"`+strings.Repeat(piece, 300)+`"`, 220)
	}
	var values []string
	for i := range 3000 {
		values = append(values, strconv.Itoa(i*i)+strings.Repeat("z", i%5))
	}
	list, _ := json.Marshal(values)
	follow(`{"enum":`+string(list)+`}`, `"`+values[1234]+`"`, 10)
	follow(`{"enum":`+string(list)+`}`, `"`+values[0]+`"`, 10)
}
