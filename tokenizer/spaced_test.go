package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"terrace/gguf"
)

// plainVocabulary is a small one of plain UTF-8: <unk> <s> </s>, 256 byte tokens from 3 on, then those listed.
type plainVocabulary struct {
	model  string
	extra  []string
	kinds  []int32   // of extra; normal where it is shorter
	scores []float32 // of extra; 0 where it is shorter
	merges []string
	more   []gguf.Field
}

func (v plainVocabulary) fields() []gguf.Field {
	tokens := []string{"<unk>", "<s>", "</s>"}
	kinds := []int32{kindUnknown, kindControl, kindControl}
	scores := make([]float32, 259)
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		kinds = append(kinds, kindByte)
	}
	for i, s := range v.extra {
		tokens = append(tokens, s)
		kind, score := int32(kindNormal), float32(0)
		if i < len(v.kinds) {
			kind = v.kinds[i]
		}
		if i < len(v.scores) {
			score = v.scores[i]
		}
		kinds, scores = append(kinds, kind), append(scores, score)
	}
	f := []gguf.Field{field("model", v.model), field("tokens", tokens), field("token_type", kinds)}
	if v.model == "llama" {
		f = append(f, field("scores", scores))
	} else {
		f = append(f, field("merges", v.merges))
	}
	return setFields(f, v.more)
}

// setFields replaces or adds more; one without a value is taken out.
func setFields(f, more []gguf.Field) []gguf.Field {
	for _, m := range more {
		i := slices.IndexFunc(f, func(x gguf.Field) bool { return x.Key == m.Key })
		switch {
		case m.Key == "":
		case m.Value == nil && i >= 0:
			f = slices.Delete(f, i, i+1)
		case i >= 0:
			f[i] = m
		default:
			f = append(f, m)
		}
	}
	return f
}

func (v plainVocabulary) load(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := New(metadataFrom(t, v.fields()))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// scoreByText is the textbook form of merging by score, on symbols as strings.
func scoreByText(tok *Tokenizer, scores []float32, s string) []int32 {
	usable := func(text string) (int32, bool) {
		id, ok := tok.Lookup(text)
		return id, ok && tok.mergeable(id)
	}
	var sym []string
	for s != "" {
		n := min(symbolLen(s[0]), len(s))
		sym, s = append(sym, s[:n]), s[n:]
	}
	for {
		at, best := -1, float32(0)
		for i := 0; i+1 < len(sym); i++ {
			if id, ok := usable(sym[i] + sym[i+1]); ok && (at < 0 || scores[id] > best) {
				at, best = i, scores[id]
			}
		}
		if at < 0 {
			break
		}
		sym = slices.Replace(sym, at, at+2, sym[at]+sym[at+1])
	}
	var ids []int32
	for _, x := range sym {
		if id, ok := usable(x); ok {
			ids = append(ids, id)
			continue
		}
		for i := range len(x) {
			ids = append(ids, int32(3+int(x[i])))
		}
	}
	return ids
}

// randomTexts draws texts over few characters, so that merges are frequent; some are long runs.
func randomTexts(r *rand.Rand, rounds int, words []string) []string {
	var out []string
	for i := range rounds {
		var b strings.Builder
		for n := 1 + r.IntN(70); b.Len() < n; {
			b.WriteString(words[r.IntN(len(words))])
		}
		if i%10 == 0 {
			b.WriteString(strings.Repeat(words[r.IntN(len(words))], 100))
		}
		out = append(out, b.String())
	}
	return out
}

// randomTokens makes up tokens over few characters, with U+2581 inside words where joined.
func randomTokens(r *rand.Rand, n int, joined bool) []string {
	chars := []string{"a", "b", "c", "é", "你", "\n", "👍"}
	set := map[string]bool{"▁": true, "a": true, "b": true, "é": true}
	for len(set) < n {
		s := ""
		if r.IntN(2) == 0 {
			s = strings.Repeat("▁", 1+r.IntN(3))
		}
		for range r.IntN(5) {
			s += chars[r.IntN(len(chars))]
			if joined && r.IntN(4) == 0 {
				s += "▁"
			}
		}
		if s != "" {
			set[s] = true
		}
	}
	out := make([]string, 0, n)
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	r.Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

var spacedWords = []string{"a", "b", "c", "ab", "abc", " ", " a", " ab", "  ", "é", "你", "👍", "\n", "\n\n", "▁", "x"}

// TestScoring compares scanning, heap and the whole way with the textbook form, on made-up vocabularies with many equal
// scores and on a real one.
func TestScoring(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	rounds := 40
	if raceEnabled {
		rounds = 4
	}
	check := func(tok *Tokenizer, scores []float32, texts []string) {
		w := new(scratch)
		for _, s := range texts {
			spelled := strings.ReplaceAll(s, " ", "▁")
			want := scoreByText(tok, scores, spelled)
			if len(spelled) <= linearPiece {
				if got := tok.spm.encodeShort(nil, spelled); !slices.Equal(got, want) {
					t.Fatalf("%q gives %v, want %v", s, got, want)
				}
			}
			if got := tok.spm.encodeHeap(nil, spelled, w); !slices.Equal(got, want) {
				t.Fatalf("%q by heap gives %v, want %v", s, got, want)
			}
			want = scoreByText(tok, scores, "▁"+spelled)
			for range 2 {
				if got := tok.Encode(nil, s, false, false); !slices.Equal(got, want) {
					t.Fatalf("%q as a text gives %v, want %v", s, got, want)
				}
			}
		}
	}
	whole, cut := 0, 0
	for i := range rounds {
		v := plainVocabulary{model: "llama", extra: randomTokens(r, 60, i%2 == 0)}
		for range v.extra {
			v.scores = append(v.scores, []float32{-1, -2, 0.5, float32(-r.IntN(50))}[r.IntN(4)])
		}
		scores := append(make([]float32, 259), v.scores...)
		tok := v.load(t)
		if tok.split.(spacedSplitter).words {
			cut++
		} else {
			whole++
		}
		check(tok, scores, randomTexts(r, 60, append(slices.Clone(spacedWords), "\xe2", "\xff", "\x80", "\xf0\xe2\x96\x81")))
	}
	if whole == 0 || cut == 0 {
		t.Errorf("%d vocabularies that join words, %d that do not", whole, cut)
	}
	tok, md := load(t, mistral), metadataOf(t, mistral)
	all, err := md.Floats("tokenizer.ggml.scores")
	if err != nil {
		t.Fatal(err)
	}
	scores := make([]float32, len(all))
	for i, x := range all {
		scores[i] = float32(x)
	}
	words := []string{"the", "in", " ", "a", "aa", "abab", "tion", "你好", "é", "\n", "==", "0", "\xff", "Th", "ing", "\x80", "▁", "<0x0A>", "</s>"}
	check(tok, scores, slices.DeleteFunc(randomTexts(r, 10*rounds, words), func(s string) bool { return strings.Contains(s, "</s>") }))
}

// TestScoreOrder: the order of scores is theirs, turned round.
func TestScoreOrder(t *testing.T) {
	inf := float32(math.Inf(1))
	falling := []float32{inf, math.MaxFloat32, 1, math.SmallestNonzeroFloat32, 0, -math.SmallestNonzeroFloat32, -1, -31740, -math.MaxFloat32, -inf}
	for i := 1; i < len(falling); i++ {
		if a, b := scoreOrder(falling[i-1]), scoreOrder(falling[i]); a >= b || b == noOrder {
			t.Errorf("%g has order %d, %g has %d", falling[i-1], a, falling[i], b)
		}
	}
	if scoreOrder(0) != scoreOrder(float32(math.Copysign(0, -1))) {
		t.Error("two zeros")
	}
}

// mergeCharacters is the textbook form of gemma4, on one fragment.
func mergeCharacters(tok *Tokenizer, ranks map[[2]string]int, s string) []int32 {
	usable := func(text string) (int32, bool) {
		id, ok := tok.Lookup(text)
		return id, ok && tok.mergeable(id)
	}
	var ids []int32
	for _, line := range cut(strings.ReplaceAll(s, " ", "▁"), compile(patternLines)) {
		if id, ok := usable(line); ok && line[0] == '\n' {
			ids = append(ids, id)
			continue
		}
		sym := strings.Split(line, "")
		for {
			at, low := -1, math.MaxInt
			for i := 0; i+1 < len(sym); i++ {
				if r, ok := ranks[[2]string{sym[i], sym[i+1]}]; ok && r < low {
					at, low = i, r
				}
			}
			if at < 0 {
				break
			}
			sym = slices.Replace(sym, at, at+2, sym[at]+sym[at+1])
		}
		for _, x := range sym {
			if id, ok := usable(x); ok {
				ids = append(ids, id)
				continue
			}
			for i := range len(x) {
				ids = append(ids, int32(3+int(x[i])))
			}
		}
	}
	return ids
}

func TestCharacters(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	rounds := 40
	if raceEnabled {
		rounds = 4
	}
	whole, split := 0, 0
	for i := range rounds {
		v := plainVocabulary{model: "gemma4", extra: append(randomTokens(r, 60, i%2 == 0), "\n\n\n", "</b>"), more: []gguf.Field{field("bos_token_id", uint32(1))}}
		v.kinds = make([]int32, 62)
		for k := range v.kinds {
			v.kinds[k] = kindNormal
		}
		v.kinds[61] = kindUserDefined
		// Merges to tokens, and a few to texts that are none, with characters that are none.
		ranks := map[[2]string]int{}
		for _, s := range v.extra[:60] {
			for at := range s {
				if at > 0 && r.IntN(3) > 0 {
					v.merges = append(v.merges, s[:at]+" "+s[at:])
				}
			}
		}
		v.merges = append(v.merges, "x c", "c x", "xc a", "你 x")
		r.Shuffle(len(v.merges), func(i, j int) { v.merges[i], v.merges[j] = v.merges[j], v.merges[i] })
		for k, m := range v.merges {
			left, right, _ := strings.Cut(m, " ")
			if _, ok := ranks[[2]string{left, right}]; !ok {
				ranks[[2]string{left, right}] = k
			}
		}
		tok := v.load(t)
		if tok.split.(spacedSplitter).words {
			split++
		} else {
			whole++
		}
		w := new(scratch)
		for _, s := range randomTexts(r, 60, spacedWords) {
			want := mergeCharacters(tok, ranks, s)
			for range 2 {
				if got := tok.Encode(nil, s, false, false); !slices.Equal(got, want) {
					t.Fatalf("%q gives %v, want %v", s, got, want)
				}
			}
			line := strings.ReplaceAll(strings.ReplaceAll(s, "\n", ""), " ", "▁")
			if line == "" {
				continue
			}
			want = mergeCharacters(tok, ranks, line)
			if got := tok.bpe.encodeHeap(nil, line, w); !slices.Equal(got, want) {
				t.Fatalf("%q by heap gives %v, want %v", line, got, want)
			}
		}
	}
	if whole == 0 || split == 0 {
		t.Errorf("%d vocabularies that join words, %d that do not", whole, split)
	}
}

// TestGemma4: what is the family's own.
func TestGemma4(t *testing.T) {
	v := plainVocabulary{model: "gemma4", extra: []string{"<bos>", "<turn|>", "<|tool_response>", "▁", "▁a", "a", "b", "\n", "\n\n", "<eos>"},
		kinds:  []int32{kindControl, kindControl, kindControl, 1, 1, 1, 1, 1, 1, kindControl},
		merges: []string{"▁ a"}, more: []gguf.Field{field("bos_token_id", uint32(259)), field("eos_token_id", uint32(268)), field("add_bos_token", false), field("pre", "ignored")}}
	tok := v.load(t)
	if !tok.AddBOS() || len(tok.Warnings()) != 1 || !strings.Contains(tok.Warnings()[0], "add_bos_token is false") {
		t.Errorf("the beginning token is added: %v, warnings %q", tok.AddBOS(), tok.Warnings())
	}
	text := "<bos>a b\n\n\nca<turn|> a"
	ids := tok.EncodeParts(nil, []Part{{text, true}}, true)
	// Three line breaks are no token, and no merge joins them.
	want := []int32{259, 264, 262, 265, 266, 266, 266, 3 + 'c', 264, 260, 263}
	if !slices.Equal(ids, want) {
		t.Errorf("%q gives %v, want %v", text, ids, want)
	}
	if got := tok.Encode(nil, "a\n\nb", false, false); !slices.Equal(got, []int32{264, 267, 265}) {
		t.Errorf("two line breaks that are a token give %v", got)
	}
	if got := string(tok.Decode(ids, true)); got != text {
		t.Errorf("decoded %q", got)
	}
	eog := tok.EOG()
	slices.Sort(eog)
	// </s> closes struck-out text.
	if !slices.Equal(eog, []int32{260, 261, 268}) || tok.IsControl(2) || string(tok.Piece(2)) != "</s>" {
		t.Errorf("end of generation %v, </s> reads %q", eog, tok.Piece(2))
	}
	v.more = []gguf.Field{field("eos_token_id", uint32(268))}
	if tok := v.load(t); tok.AddBOS() || tok.BOS() != -1 || len(tok.Warnings()) != 1 || !strings.Contains(tok.Warnings()[0], "no beginning token") {
		t.Errorf("without a beginning token: %v, warnings %q", tok.AddBOS(), tok.Warnings())
	}
	// A gpt2 file may have the same pre-tokenizer.
	v.more = []gguf.Field{field("model", "gpt2"), field("pre", "gemma4"), field("bos_token_id", uint32(259))}
	if tok := v.load(t); !slices.Equal(tok.Encode(nil, "a a", true, false), []int32{259, 264, 263}) {
		t.Errorf("under gpt2: %v", tok.Encode(nil, "a a", true, false))
	}
}

// TestSpacePrefix: where a space is put in front, and where it comes off again.
func TestSpacePrefix(t *testing.T) {
	v := plainVocabulary{model: "llama", extra: []string{"▁", "▁a", "a", "<x>", "▁▁"}, kinds: []int32{1, 1, 1, kindUserDefined}, scores: []float32{-3, -1, -4, 0, -2}}
	tok := v.load(t)
	if !tok.AddBOS() || tok.BOS() != 1 || tok.EOS() != 2 || tok.AddEOS() || len(tok.Warnings()) > 0 || !slices.Equal(tok.EOG(), []int32{2}) {
		t.Errorf("bos %d, eos %d, end of generation %v, warnings %q", tok.BOS(), tok.EOS(), tok.EOG(), tok.Warnings())
	}
	const sp, spA, a, x, two = 259, 260, 261, 262, 263
	for _, c := range []struct {
		text    string
		ids     []int32
		decoded string
	}{
		{"", []int32{1}, "<s>"},
		{"a", []int32{1, spA}, "<s> a"},
		{" a", []int32{1, sp, spA}, "<s>  a"},
		{"a a", []int32{1, spA, spA}, "<s> a a"},
		{"<s>a", []int32{1, 1, spA}, "<s><s> a"},
		{"a<x>a", []int32{1, spA, x, spA}, "<s> a<x> a"},
		{"a<x><x>  a", []int32{1, spA, x, x, two, spA}, "<s> a<x><x>   a"},
		{"a</s>", []int32{1, spA, 2}, "<s> a</s>"},
		{"\n", []int32{1, sp, 13}, "<s> \n"},
	} {
		ids := tok.Encode(nil, c.text, true, true)
		if !slices.Equal(ids, c.ids) {
			t.Errorf("%q gives %v, want %v", c.text, ids, c.ids)
		}
		if got := string(tok.Decode(ids, true)); got != c.decoded {
			t.Errorf("%q decodes to %q, want %q", c.text, got, c.decoded)
		}
		// Without the beginning token, the space in front comes off.
		if got, want := string(tok.Decode(ids[1:], true)), strings.TrimPrefix(c.decoded[3:], " "); got != want {
			t.Errorf("%q decodes to %q, want %q", c.text, got, want)
		}
	}
	// What a model answers goes on from a prompt: its space stays.
	if got := streamed(t, tok.NewStream(false), []int32{spA, spA}); got != " a a" {
		t.Errorf("an answer reads %q", got)
	}
	s := tok.NewStream(false).Open()
	if got := streamed(t, s, []int32{spA, spA}); got != "a a" {
		t.Errorf("a sequence reads %q", got)
	}
	if got := streamed(t, s, []int32{spA}); got != " a" {
		t.Errorf("after it, %q", got)
	}
	// Templates that spell the beginning token get no second one; text from a user gets none at all.
	if got := tok.EncodeParts(nil, []Part{{"<s>", true}, {"a<s>", false}}, true); !slices.Equal(got, []int32{1, spA, 3 + '<', 3 + 's', 3 + '>'}) {
		t.Errorf("parts give %v", got)
	}

	v.more = []gguf.Field{field("add_space_prefix", false), field("add_bos_token", false), field("add_eos_token", true)}
	tok = v.load(t)
	if got := tok.Encode(nil, "a<x>a", true, true); !slices.Equal(got, []int32{a, x, a, 2}) {
		t.Errorf("without a prefix: %v", got)
	}
	if got := string(tok.Decode([]int32{spA}, false)); got != " a" {
		t.Errorf("without a prefix: %q", got)
	}
}

// TestSparseBytes: vocabularies without byte tokens.
func TestSparseBytes(t *testing.T) {
	tokens := []string{"<unk>", "<s>", "</s>", "▁", "a", "é", "\x80"}
	base := []gguf.Field{field("model", "llama"), field("tokens", tokens), field("scores", make([]float32, len(tokens)))}
	kinds := field("token_type", []int32{2, 3, 3, 1, 1, 1, 1})
	make1 := func(more ...gguf.Field) *Tokenizer {
		t.Helper()
		tok, err := New(metadataFrom(t, setFields(slices.Clone(base), more)))
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	tok := make1(kinds)
	// Each byte of what has no token is unknown, unless the byte itself is a token.
	if got := tok.Encode(nil, "aéü\x80", false, false); !slices.Equal(got, []int32{3, 4, 5, 0, 0, 6}) {
		t.Errorf("%v", got)
	}
	if len(tok.Warnings()) > 0 || tok.MinTokens(8) != 2 {
		t.Errorf("warnings %q, at least %d tokens", tok.Warnings(), tok.MinTokens(8))
	}
	tok = make1(kinds, field("tokens", []string{"x", "<s>", "</s>", "▁", "a", "é", "\x80"}), field("token_type", []int32{1, 3, 3, 1, 1, 1, 1}))
	if got := tok.Encode(nil, "aü", false, false); !slices.Equal(got, []int32{3, 4}) || tok.MinTokens(100) != 0 {
		t.Errorf("lost bytes: %v, at least %d tokens", got, tok.MinTokens(100))
	}
	if w := tok.Warnings(); len(w) != 1 || !strings.Contains(w[0], "lacks a token for 253 of the 256 bytes") {
		t.Errorf("warnings %q", w)
	}
	// A file without kinds: the ids that the model implies, and byte tokens by their text.
	tok = make1(field("tokens", []string{"<unk>", "<s>", "</s>", "▁", "a", "<0x0A>", "<0xzz>"}))
	if tok.BOS() != 1 || tok.EOS() != 2 || !tok.IsEOG(2) || string(tok.Piece(5)) != "\n" || string(tok.Piece(6)) != "<0xzz>" {
		t.Errorf("bos %d, eos %d, %q", tok.BOS(), tok.EOS(), tok.Piece(5))
	}
}

func TestSpacedRefusals(t *testing.T) {
	llama := plainVocabulary{model: "llama", extra: []string{"▁"}}
	gemma := plainVocabulary{model: "gemma4", extra: []string{"▁"}}
	nan := make([]float32, 260)
	nan[259] = float32(math.NaN())
	for _, c := range []struct {
		name   string
		fields []gguf.Field
		more   gguf.Field
		want   []string
	}{
		{"no scores", llama.fields(), field("scores", nil), []string{"tokenizer.ggml.scores"}},
		{"too few scores", llama.fields(), field("scores", nan[:7]), []string{"tokenizer.ggml.scores", "7", "260"}},
		{"a score that is no number", llama.fields(), field("scores", nan), []string{"tokenizer.ggml.scores", "259", "▁"}},
		{"scores as text", llama.fields(), field("scores", "high"), []string{"tokenizer.ggml.scores"}},
		{"no merges", gemma.fields(), field("merges", nil), []string{"tokenizer.ggml.merges"}},
		{"a merge of one part", gemma.fields(), field("merges", []string{"ab"}), []string{"tokenizer.ggml.merges", `"ab"`}},
		{"a byte token of no byte", plainVocabulary{model: "llama", extra: []string{"<0x1G>"}, kinds: []int32{kindByte}}.fields(), gguf.Field{},
			[]string{"tokenizer.ggml.tokens", "<0x1G>", "259"}},
		{"a prefix in numbers", llama.fields(), field("add_space_prefix", uint32(1)), []string{"add_space_prefix"}},
		{"a long token to take apart", vocabulary{pre: "kimi-k2", extra: []string{strings.Repeat("a", 600)}}.fields(), field("merges", nil),
			[]string{"tokenizer.ggml.merges", "600", "512"}},
	} {
		_, err := New(metadataFrom(t, setFields(c.fields, []gguf.Field{c.more})))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", c.name, err, w)
			}
		}
		if errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: unsupported", c.name)
		}
	}
}

// TestRankedMerges: kimi-k2 files may lack merges, which then follow from the ids.
func TestRankedMerges(t *testing.T) {
	v := vocabulary{pre: "kimi-k2", extra: []string{"bc", "ab", "abc", "ĠĠ", "Ġab", "[EOS]"}, kinds: []int32{1, 1, 1, 1, 1, kindControl}}
	f := setFields(v.fields(), []gguf.Field{field("merges", nil)})
	tok, err := New(metadataFrom(t, f))
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string][]int32{"abc": {258}, "ab": {257}, "xbc": {'x', 256}, " ab": {260}, "   ": {259, ' '}, "[EOS]": {'[', 'E', 'O', 'S', ']'}} {
		if got := tok.Encode(nil, s, false, false); !slices.Equal(got, want) {
			t.Errorf("%q gives %v, want %v", s, got, want)
		}
	}
	// With the real ids of o200k, the derived merges give what its stored ones give.
	md := metadataOf(t, gptoss)
	fields := setFields(md.Fields(), []gguf.Field{field("pre", "kimi-k2")})
	derived, err := New(metadataFrom(t, fields))
	if err != nil {
		t.Fatal(err)
	}
	stored := load(t, gptoss)
	w := new(scratch)
	for _, text := range corpora() {
		at := 0
		for _, end := range stored.split.ends(nil, text) {
			a, b := derived.bpe.encodeUncached(nil, text[at:end], w), stored.bpe.encodeUncached(nil, text[at:end], w)
			if !slices.Equal(a, b) {
				t.Fatalf("%q: %v, by stored merges %v", text[at:end], a, b)
			}
			at = end
		}
	}
}
