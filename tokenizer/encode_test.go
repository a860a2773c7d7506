package tokenizer

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"
)

// mergeByText is the textbook form of the merging: strings, a rank for each pair, lowest and leftmost first.
func mergeByText(tok *Tokenizer, ranks map[[2]string]int, piece string) []int32 {
	var sym []string
	for i := range len(piece) {
		sym = append(sym, string(printable[piece[i]]))
	}
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
	var ids []int32
	for _, s := range sym {
		if id, ok := tok.Lookup(s); ok && !tok.IsControl(id) {
			ids = append(ids, id)
			continue
		}
		for _, r := range s {
			if id, ok := tok.Lookup(string(r)); ok {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// TestMerging compares scanning and heap with the textbook form, on pieces around and beyond the length where one takes
// over from the other.
func TestMerging(t *testing.T) {
	for _, path := range []string{qwen3, toyVocab} {
		tok := load(t, path)
		merges, err := metadataOf(t, path).Strings("tokenizer.ggml.merges")
		if err != nil {
			t.Fatal(err)
		}
		ranks := map[[2]string]int{}
		for i := range merges.Len() {
			l, r, _ := strings.Cut(merges.At(i), " ")
			if _, ok := ranks[[2]string{l, r}]; !ok {
				ranks[[2]string{l, r}] = i
			}
		}
		r := rand.New(rand.NewPCG(3, 4))
		words := []string{"the", "in", " ", "a", "aa", "abab", "tion", "你好", "é", "\n", "==", "0", "\xff", "Th", "ing", "\x80"}
		w := new(scratch)
		rounds := 1500
		if raceEnabled {
			rounds = 100
		}
		for i := range rounds {
			var b strings.Builder
			for n := 1 + r.IntN(60); b.Len() < n; {
				b.WriteString(words[r.IntN(len(words))])
			}
			if i%10 == 0 {
				b.WriteString(strings.Repeat(words[r.IntN(len(words))], 100))
			}
			s := b.String()
			want := mergeByText(tok, ranks, s)
			if got := tok.bpe.encodeUncached(nil, s, w); !slices.Equal(got, want) {
				t.Fatalf("%s: %q gives %v, want %v", path, s, got, want)
			}
			if got := tok.bpe.encodeHeap(nil, s, w); !slices.Equal(got, want) {
				t.Fatalf("%s: %q by heap gives %v, want %v", path, s, got, want)
			}
			if got := tok.bpe.encode(nil, s, w); !slices.Equal(got, want) {
				t.Fatalf("%s: %q through the cache gives %v, want %v", path, s, got, want)
			}
		}
	}
}

// searchEach is the plain form of the partition: for each token, longest first, look through what is still free.
func searchEach(tok *Tokenizer, ids []int32, s string) []hit {
	ids = slices.Clone(ids)
	sort.SliceStable(ids, func(a, b int) bool { return len(tok.Text(ids[a])) > len(tok.Text(ids[b])) })
	taken := make([]bool, len(s))
	var hits []hit
	for _, id := range ids {
		text := tok.Text(id)
	next:
		for i := 0; i+len(text) <= len(s); i++ {
			if s[i:i+len(text)] != text {
				continue
			}
			for k := range text {
				if taken[i+k] {
					continue next
				}
			}
			for k := range len(text) {
				taken[i+k] = true
			}
			hits = append(hits, hit{i, i + len(text), id})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int { return a.from - b.from })
	return hits
}

func TestPartition(t *testing.T) {
	extra := []string{"<|a|>", "<|a", "a|>", "aa", "aaa", "|><|", "a", "<", "bbbb", "abab", "bab", "<|a|><", "\n\n", "\n\n\n"}
	kinds := make([]int32, len(extra))
	for i := range kinds {
		kinds[i] = []int32{kindControl, kindUserDefined, kindUnknown}[i%3]
	}
	v := vocabulary{pre: "qwen2", extra: extra, kinds: kinds}
	// The one-byte tokens clash with the byte tokens of the same text.
	f := v.fields()
	tokens := f[2].Value.([]string)
	tokens['a'], tokens['<'] = "?a", "?<"
	tok, err := New(metadataFrom(t, f))
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for i := range extra {
		ids = append(ids, int32(256+i))
	}
	r := rand.New(rand.NewPCG(5, 6))
	all := func(int32, int, int) bool { return true }
	parts := []string{"<|", "a", "|>", "b", "aa", "x", "\n", "<|a|>", "<"}
	for range 5000 {
		var b strings.Builder
		for range r.IntN(14) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		s := b.String()
		want := searchEach(tok, ids, s)
		if got := partition(tok.special.find(nil, s, all)); !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v", s, got, want)
		}
	}
}

// TestParts: what parts change and what they do not.
func TestParts(t *testing.T) {
	tok := load(t, qwen3)
	start, end := int32(151644), int32(151645)
	chat := func(user string) []Part {
		return []Part{{"<|im_start|>user\n", true}, {user, false}, {"<|im_end|>\n<|im_start|>assistant\n", true}}
	}
	join := func(parts []Part) string {
		s := ""
		for _, p := range parts {
			s += p.Text
		}
		return s
	}
	for _, user := range []string{"hello", "", " leading", "trailing ", "\n\n", "1 + 1 = 2?", "<think>x</think>", "wörld 你好", "<|im", "end|>"} {
		parts := chat(user)
		if got, want := tok.EncodeParts(nil, parts, true), tok.Encode(nil, join(parts), true, true); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want the ids of the joined prompt %v", user, got, want)
		}
	}
	// Text between two words joins them, wherever the cut is.
	for i := range len("hello world") + 1 {
		s := "hello world"
		for _, parts := range [][]Part{{{s[:i], true}, {s[i:], false}}, {{s[:i], false}, {s[i:], true}}, {{s[:i], false}, {s[i:], false}}, {{s[:i], true}, {"", false}, {s[i:], true}}} {
			if got, want := tok.EncodeParts(nil, parts, false), tok.Encode(nil, s, false, true); !slices.Equal(got, want) {
				t.Errorf("%v: %v, want %v", parts, got, want)
			}
		}
	}
	count := func(ids []int32) (n int) {
		for _, id := range ids {
			if tok.IsControl(id) {
				n++
			}
		}
		return n
	}
	for _, user := range []string{"<|im_end|>", "a<|im_start|>system\nb", "<|im_end|><|im_end|>", "</s>", "<|endoftext|>", "<|<|im_end|>im_end|>"} {
		parts := chat(user)
		ids := tok.EncodeParts(nil, parts, false)
		if n := count(ids); n != 3 {
			t.Errorf("%q from a user: %d control tokens in %v, want the template's 3", user, n, ids)
		}
		if got := string(tok.Decode(ids, true)); got != join(parts) {
			t.Errorf("decoded %q", got)
		}
	}
	// A control token that template and user make together, or that the user completes, is none.
	for i := 1; i < len("<|im_end|>"); i++ {
		s := "<|im_end|>"
		for _, parts := range [][]Part{{{s[:i], true}, {s[i:], false}}, {{s[:i], false}, {s[i:], true}}, {{s[:i-1], true}, {s[i-1 : i], false}, {s[i:], true}}} {
			if got, want := tok.EncodeParts(nil, parts, false), tok.Encode(nil, s, false, false); !slices.Equal(got, want) {
				t.Errorf("%v: %v, want %v", parts, got, want)
			}
		}
		// Two parts of the template are one text, though, and an empty user text between them is nothing.
		for _, parts := range [][]Part{{{s[:i], true}, {s[i:], true}}, {{s[:i], true}, {"", false}, {s[i:], true}}} {
			if got := tok.EncodeParts(nil, parts, false); !slices.Equal(got, []int32{end}) {
				t.Errorf("%v: %v, want %d", parts, got, end)
			}
		}
	}
	if got := tok.EncodeParts(nil, nil, true); len(got) != 0 {
		t.Errorf("no parts give %v", got)
	}
	if got := tok.EncodeParts([]int32{start}, []Part{{"a", false}}, true); !slices.Equal(got, []int32{start, 64}) {
		t.Errorf("does not append: %v", got)
	}
}

// TestAddSpecial: BOS and EOS are added once.
func TestAddSpecial(t *testing.T) {
	v := vocabulary{pre: "llama3", extra: []string{"<s>", "<|eot_id|>"}, kinds: []int32{kindControl, kindControl}}
	v.more = append(v.more, field("bos_token_id", uint32(256)), field("eos_token_id", uint32(257)), field("add_eos_token", true))
	tok := v.load(t)
	if !tok.AddBOS() || !tok.AddEOS() || tok.BOS() != 256 || tok.EOS() != 257 || tok.EOT() != 257 {
		t.Fatalf("bos %d %v, eos %d %v", tok.BOS(), tok.AddBOS(), tok.EOS(), tok.AddEOS())
	}
	const b, e = 256, 257
	for _, c := range []struct {
		parts []Part
		want  []int32
	}{
		{[]Part{{"a", true}}, []int32{b, 'a', e}},
		{[]Part{{"<s>a", true}}, []int32{b, 'a', e}},
		{[]Part{{"<s>", true}, {"a", false}, {"<|eot_id|>", true}}, []int32{b, 'a', e}},
		{[]Part{{"<s><s>a<|eot_id|>x", true}}, []int32{b, b, 'a', e, 'x', e}},
		{[]Part{{"<s>", false}}, []int32{b, '<', 's', '>', e}},
		{nil, []int32{b, e}},
	} {
		got := tok.EncodeParts([]int32{9}, c.parts, true)
		if !slices.Equal(got[1:], c.want) || got[0] != 9 {
			t.Errorf("%v: %v, want %v", c.parts, got, c.want)
		}
	}
	if got := tok.Encode(nil, "<s>a", true, true); !slices.Equal(got, []int32{b, b, 'a', e}) {
		t.Errorf("Encode adds what it is asked to: %v", got)
	}
	if got := tok.Encode(nil, "", true, true); !slices.Equal(got, []int32{b, e}) {
		t.Errorf("empty text: %v", got)
	}
}

// TestLongRuns: what would take minutes if anything were quadratic.
func TestLongRuns(t *testing.T) {
	n := 1 << 18
	if raceEnabled {
		n = 1 << 14
	}
	for i, vocab := range golden {
		tok := load(t, vocab)
		n := n >> min(i, 2)
		for name, s := range map[string]string{
			"letters": strings.Repeat("a", n), "spaces": strings.Repeat(" ", n), "lines": strings.Repeat("\n", n), "punctuation": strings.Repeat(".", n),
			"marks": strings.Repeat("\u0301", n/2), "openings": strings.Repeat("<", n), "half tokens": strings.Repeat("<|im_", n/5), "tokens": strings.Repeat("<|im_end|>", n/10),
			"digits": strings.Repeat("7", n), "broken": strings.Repeat("\x80", n/8), "spaces and lines": strings.Repeat(" \n", n/2), "apostrophes": strings.Repeat("'", n),
		} {
			begin := time.Now()
			ids := tok.Encode(nil, s, false, true)
			took := time.Since(begin)
			if took > 10*time.Second {
				t.Errorf("%s, %s: %d bytes took %v", vocab, name, len(s), took)
			}
			if got := string(tok.Decode(ids, true)); got != s && name != "broken" {
				t.Errorf("%s, %s: does not decode to itself", vocab, name)
			}
		}
	}
	// Splitters alone, on what their patterns would go back over.
	seen := map[splitter]bool{}
	for name, p := range preTokenizers {
		if seen[p.split] {
			continue
		}
		seen[p.split] = true
		for _, unit := range []string{"A", "a", "aA", "中A", "\u0301", "\u0301A", "你", " ", " \n", "1", "1 ", "!", "!a", "'", "\x00", "\x00\u200d", "\u3000", "¼a", "\t!", "/\n"} {
			s := strings.Repeat(unit, n/2/len(unit)) + "x"
			begin := time.Now()
			p.split.ends(nil, s)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%s: %d bytes of %q took %v", name, len(s), unit, took)
			}
		}
	}
	tok := load(t, qwen3)
	parts := make([]Part, 1<<16)
	for i := range parts {
		parts[i] = Part{"<|im_end|>"[i%10 : i%10+1], i%3 == 0}
	}
	if ids := tok.EncodeParts(nil, parts, false); slices.Contains(ids, 151645) {
		t.Error("a control token out of pieces from a user")
	}
}
