package tokenizer

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"terrace/gguf"
)

func TestNewRefuses(t *testing.T) {
	base := vocabulary{pre: "qwen2", extra: []string{"ab"}, merges: []string{"a b"}}
	with := func(key string, v any) vocabulary {
		c := base
		c.more = []gguf.Field{{Key: "tokenizer.ggml." + key, Value: v}}
		return c
	}
	many := make([]int32, 300)
	for _, c := range []struct {
		name string
		v    vocabulary
		want []string // all in the error
	}{
		{"unknown model", with("model", "rwkv"), []string{"tokenizer.ggml.model", `"rwkv"`, "gemma4 gpt2 llama"}},
		{"unknown pre", with("pre", "tekken-9"), []string{"tokenizer.ggml.pre", `"tekken-9"`, "qwen2"}},
		{"pre of a wrong type", with("pre", uint32(3)), []string{"tokenizer.ggml.pre"}},
		{"types too many", with("token_type", many), []string{"token_type", "300", "257"}},
		{"types too few", with("token_type", many[:3]), []string{"token_type", "3", "257"}},
		{"scores too few", with("scores", []float32{1}), []string{"scores", "1", "257"}},
		{"type out of range", with("token_type", func() []int32 { k := make([]int32, 257); k[7] = 9; return k }()), []string{"token 7", "is 9"}},
		{"twice the same token", vocabulary{pre: "qwen2", extra: []string{"ab", "ab"}}, []string{`"ab"`, "256", "257"}},
		{"merge without a space", vocabulary{pre: "qwen2", merges: []string{"a b", "ab"}}, []string{"merges", `"ab"`, "entry 1"}},
		{"merge with an empty half", vocabulary{pre: "qwen2", merges: []string{"a "}}, []string{"merges", `"a "`, "entry 0"}},
		{"merge of nothing", vocabulary{pre: "qwen2", merges: []string{""}}, []string{"merges", `""`}},
		{"merge of one space", vocabulary{pre: "qwen2", merges: []string{" "}}, []string{"merges", `" "`}},
		{"two ids in one key", with("eos_token_id", []int32{1, 2}), []string{"eos_token_id", "2", "1"}},
		{"id as text", with("eos_token_id", "1"), []string{"eos_token_id"}},
		{"add_bos as a number", with("add_bos_token", uint32(1)), []string{"add_bos_token"}},
		{"no tokens", with("tokens", []string{}), []string{"tokens", "0"}},
	} {
		_, err := New(metadataFrom(t, c.v.fields()))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		if strings.Count(err.Error(), "test.gguf") != 1 {
			t.Errorf("%s: %q does not name the file once", c.name, err)
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q does not say %q in one line", c.name, err, w)
			}
		}
		if strings.HasPrefix(c.name, "unknown") != errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: unsupported is %v", c.name, errors.Is(err, errors.ErrUnsupported))
		}
	}
	for _, key := range []string{"model", "tokens", "merges"} {
		f := slices.DeleteFunc(base.fields(), func(f gguf.Field) bool { return f.Key == "tokenizer.ggml."+key })
		if _, err := New(metadataFrom(t, f)); err == nil || !strings.Contains(err.Error(), "tokenizer.ggml."+key) || strings.Count(err.Error(), "test.gguf") != 1 {
			t.Errorf("without %s: %v", key, err)
		}
	}
}

func TestOddFiles(t *testing.T) {
	warned := func(tok *Tokenizer, words ...string) {
		t.Helper()
		if len(tok.Warnings()) != len(words) {
			t.Errorf("warnings %q, want %d", tok.Warnings(), len(words))
			return
		}
		for i, w := range words {
			if !strings.Contains(tok.Warnings()[i], w) {
				t.Errorf("warning %q does not say %q", tok.Warnings()[i], w)
			}
		}
	}
	id := func(name string, v any) gguf.Field { return gguf.Field{Key: "tokenizer.ggml." + name, Value: v} }

	tok := vocabulary{extra: []string{"<eos>"}, merges: []string{"a b"}}.load(t)
	warned(tok, "tokenizer.ggml.pre is missing")
	// The merge's result is not in the vocabulary: its bytes stand for it.
	if got := tok.Encode(nil, "ab", true, true); !slices.Equal(got, []int32{'a', 'b'}) {
		t.Errorf("a merge without a token gives %v", got)
	}

	// No key for eos, and token 11 is an ordinary one: no id rather than that one.
	if tok.EOS() != -1 || tok.BOS() != -1 || !tok.IsEOG(256) || tok.IsEOG(11) {
		t.Errorf("eos %d, bos %d", tok.EOS(), tok.BOS())
	}

	tok = vocabulary{pre: "llama3", extra: []string{"<s>", "</s>"}, kinds: []int32{kindControl, kindControl},
		more: []gguf.Field{id("bos_token_id", uint32(999)), id("eos_token_id", int32(-1))}}.load(t)
	if tok.AddBOS() || tok.BOS() != -1 || tok.EOS() != -1 || !tok.IsEOG(257) {
		t.Errorf("bos %d, eos %d, add %v", tok.BOS(), tok.EOS(), tok.AddBOS())
	}
	slices.Sort(tok.warnings)
	warned(tok, "add_bos_token", "bos_token_id is 999, outside the vocabulary of 258", "eos_token_id is -1, outside the vocabulary of 258")

	kinds := make([]int32, 256)
	for i := range kinds {
		kinds[i] = kindNormal
	}
	kinds[11], kinds['q'] = kindControl, kindUnused
	tok = vocabulary{pre: "gpt-2", more: []gguf.Field{id("token_type", kinds)}}.load(t)
	if tok.EOS() != 11 || tok.BOS() != 11 || !tok.IsEOG(11) {
		t.Errorf("bos %d, eos %d, want the default 11", tok.BOS(), tok.EOS())
	}
	warned(tok, "lacks a token for 2 of the 256 bytes")
	if got := tok.Encode(nil, "aqb\x0b", false, false); !slices.Equal(got, []int32{'a', 'b'}) {
		t.Errorf("bytes without tokens give %v", got)
	}

	tok = vocabulary{pre: "glm4", extra: []string{"<|user|>", "<|observation|>", "<|endoftext|>", ""}, kinds: []int32{3, 3, 3, 5},
		more: []gguf.Field{id("eos_token_id", uint32(258)), id("add_eos_token", true)}}.load(t)
	warned(tok, "1 empty entries")
	if tok.BOS() != -1 || !tok.IsEOG(256) || !tok.IsEOG(257) || !tok.IsEOG(258) || tok.IsEOG(259) || tok.Text(259) != "[EMPTY_259]" || len(tok.Piece(259)) != 0 {
		t.Errorf("glm4: bos %d, eog %v, text %q", tok.BOS(), tok.EOG(), tok.Text(259))
	}
	if got := tok.Encode(nil, "a", true, false); !slices.Equal(got, []int32{'a', 258}) {
		t.Errorf("with add_eos_token: %v", got)
	}

	// ignore_merges takes a piece that is a token whole, although no merge makes it; not a guarded one.
	tok = vocabulary{pre: "llama3", extra: []string{"Ġxyz", "bc", "abc", "EOT", "ĠabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzK"}, kinds: []int32{1, 1, 1, 3},
		merges: []string{"b c", "a bc"}, more: []gguf.Field{id("add_bos_token", false)}}.load(t)
	for s, want := range map[string][]int32{" xyz": {256}, "abc": {258}, "xyz": {'x', 'y', 'z'}, "EOT": {'E', 'O', 'T'},
		" abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzK": {260}} {
		if got := tok.Encode(nil, s, false, false); !slices.Equal(got, want) {
			t.Errorf("ignore_merges: %q gives %v, want %v", s, got, want)
		}
	}

	// The first of two equal merges counts, and a left half may begin with a space byte.
	tok = vocabulary{pre: "qwen2", extra: []string{"ab", "bc", "<eos>"}, merges: []string{"a b", "b c", "a b", " x y"}}.load(t)
	if got := tok.Encode(nil, "abc", false, false); !slices.Equal(got, []int32{256, 'c'}) {
		t.Errorf("equal merges: %v", got)
	}
	warned(tok)
}

// TestEOGCorrections: which tokens end a generation depends on their company.
func TestEOGCorrections(t *testing.T) {
	load := func(extra ...string) *Tokenizer {
		kinds := make([]int32, len(extra))
		for i := range kinds {
			kinds[i] = kindControl
		}
		return vocabulary{pre: "qwen2", extra: extra, kinds: kinds}.load(t)
	}
	check := func(tok *Tokenizer, text string, eog, control bool) {
		t.Helper()
		id, ok := tok.Lookup(text)
		if !ok || tok.IsEOG(id) != eog || tok.IsControl(id) != control {
			t.Errorf("%s: ends %v, control %v, want %v %v", text, tok.IsEOG(id), tok.IsControl(id), eog, control)
		}
	}
	tok := load("<|end|>", "<|return|>", "<|channel|>")
	check(tok, "<|end|>", true, true)
	check(tok, "<|channel|>", false, true)

	tok = load("<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|start|>", "<|message|>", "<|constrain|>", "<|other|>")
	check(tok, "<|end|>", false, false)
	check(tok, "<|return|>", true, true)
	check(tok, "<|call|>", true, true)
	check(tok, "<|channel|>", false, false)
	check(tok, "<|other|>", false, true)
	ids := []int32{256, 'a', 257}
	if got := string(tok.Decode(ids, false)); got != "<|end|>a" {
		t.Errorf("harmony output %q", got)
	}
	// Recognised without special parsing, as everywhere; but never in text from a user.
	if got := tok.Encode(nil, "<|end|>", false, false); !slices.Equal(got, []int32{256}) {
		t.Errorf("<|end|> gives %v", got)
	}
	if got := tok.EncodeParts(nil, []Part{{"<|end|>", false}}, false); len(got) != 7 {
		t.Errorf("<|end|> from a user gives %v", got)
	}

	tok = load("<|end|>", "<|calls|>", "<|flush|>")
	check(tok, "<|end|>", false, false)
	check(tok, "<|calls|>", true, true)

	tok = load("</s>", "<|tool_response>", "<eos>")
	check(tok, "</s>", false, false)
	check(tok, "<eos>", true, true)

	// Texts that end a generation are control tokens whatever the file says, even if merges lead there.
	tok = vocabulary{pre: "qwen2", extra: []string{"</", "</s", "</s>", "[PAD]"}, merges: []string{"< /", "</ s", "</s >"}}.load(t)
	check(tok, "</s>", true, true)
	check(tok, "[PAD]", true, true)
	if got := tok.Encode(nil, "</s>", false, true); !slices.Equal(got, []int32{258}) {
		t.Errorf("</s> gives %v", got)
	}
	if got := tok.bpe.encode(nil, "</s>", new(scratch)); !slices.Equal(got, []int32{'<', '/', 's', '>'}) {
		t.Errorf("merges lead to a control token: %v", got)
	}
}

// TestMemory bounds what a large vocabulary keeps.
func TestMemory(t *testing.T) {
	md := metadataOf(t, qwen3)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tok, err := New(md)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	mb := float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / (1 << 20)
	t.Logf("%.1f MB for %d tokens and %d merges", mb, tok.Vocab(), 151387)
	if mb > 14 {
		t.Errorf("%.1f MB kept, want at most 14", mb)
	}
	runtime.KeepAlive(md)
}
