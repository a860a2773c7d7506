package tokenizer

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"terrace/gguf"
	"terrace/internal/testfile"
)

// unpack reads a file of testdata, through gzip where its name says so.
func unpack(t testing.TB, path string) []byte {
	t.Helper()
	path = "../testdata/" + path
	if strings.HasSuffix(path, ".gz") {
		return testfile.Gunzip(t, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func metadataOf(t testing.TB, path string) *gguf.Metadata {
	t.Helper()
	if !strings.HasSuffix(path, ".gz") {
		f, err := gguf.Open("../testdata/" + path)
		if err != nil {
			t.Fatal(err)
		}
		return f.Metadata
	}
	b := unpack(t, path)
	f, err := gguf.OpenReader(bytes.NewReader(b), int64(len(b)), path)
	if err != nil {
		t.Fatal(err)
	}
	return f.Metadata
}

var (
	loadedMu sync.Mutex
	loaded   = map[string]*Tokenizer{}
)

// load returns the tokenizer of a fixture, once read.
func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	loadedMu.Lock()
	defer loadedMu.Unlock()
	if tok := loaded[path]; tok != nil {
		return tok
	}
	md := metadataOf(t, path)
	if path == gptoss {
		md = withMerges(t, md)
	}
	tok, err := New(md)
	if err != nil {
		t.Fatal(err)
	}
	if len(tok.Warnings()) > 0 {
		t.Errorf("%s: warnings %q", path, tok.Warnings())
	}
	loaded[path] = tok
	return tok
}

const (
	qwen3    = "tokenizers/qwen3.gguf.gz"
	deepseek = "tokenizers/deepseek_v3.gguf.gz"
	gptoss   = "tokenizers/gptoss.gguf.gz"
	mistral  = "tokenizers/mistral_spm.gguf.gz"
	toyVocab = "golden/qwen3/model.drawn.gz"
)

// withMerges adds the merges that the gptoss file is stored without: for each normal token in the order of ids, each cut of it
// into two normal tokens, by their ids.
func withMerges(t testing.TB, md *gguf.Metadata) *gguf.Metadata {
	t.Helper()
	tokens, err := md.Strings("tokenizer.ggml.tokens")
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := md.Ints("tokenizer.ggml.token_type")
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]int{}
	for i := range tokens.Len() {
		if kinds[i] == kindNormal {
			ids[tokens.At(i)] = i
		}
	}
	type cut struct{ left, right, at int }
	var merges []string
	var cuts []cut
	for i := range tokens.Len() {
		if kinds[i] != kindNormal {
			continue
		}
		s := tokens.At(i)
		cuts = cuts[:0]
		for k := range s {
			if l, ok := ids[s[:k]]; ok {
				if r, ok := ids[s[k:]]; ok {
					cuts = append(cuts, cut{l, r, k})
				}
			}
		}
		slices.SortFunc(cuts, func(a, b cut) int { return cmp.Or(a.left-b.left, a.right-b.right) })
		for _, c := range cuts {
			merges = append(merges, s[:c.at]+" "+s[c.at:])
		}
	}
	if len(merges) != 446189 {
		t.Fatalf("%d merges", len(merges))
	}
	return metadataFrom(t, append(md.Fields(), gguf.Field{Key: "tokenizer.ggml.merges", Value: merges}))
}

// vocabulary is a small one made by hand: 256 bytes, then further tokens of given kinds.
type vocabulary struct {
	extra  []string
	kinds  []int32 // of extra; normal where it is shorter
	merges []string
	more   []gguf.Field
	pre    string // "" leaves the key out
}

func (v vocabulary) fields() []gguf.Field {
	var tokens []string
	var kinds []int32
	for _, r := range printable {
		tokens = append(tokens, string(r))
		kinds = append(kinds, kindNormal)
	}
	for i, s := range v.extra {
		tokens = append(tokens, s)
		if i < len(v.kinds) {
			kinds = append(kinds, v.kinds[i])
		} else {
			kinds = append(kinds, kindNormal)
		}
	}
	f := []gguf.Field{{Key: "tokenizer.ggml.model", Value: "gpt2"}}
	if v.pre != "" {
		f = append(f, gguf.Field{Key: "tokenizer.ggml.pre", Value: v.pre})
	}
	f = append(f, gguf.Field{Key: "tokenizer.ggml.tokens", Value: tokens}, gguf.Field{Key: "tokenizer.ggml.token_type", Value: kinds},
		gguf.Field{Key: "tokenizer.ggml.merges", Value: v.merges})
	for _, m := range v.more {
		found := false
		for i := range f {
			if f[i].Key == m.Key {
				f[i], found = m, true
			}
		}
		if !found {
			f = append(f, m)
		}
	}
	return f
}

func metadataFrom(t testing.TB, fields []gguf.Field) *gguf.Metadata {
	t.Helper()
	var b bytes.Buffer
	if err := gguf.Write(&b, gguf.WriteFile{Metadata: fields}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.OpenReader(bytes.NewReader(b.Bytes()), int64(b.Len()), "test.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return f.Metadata
}

func (v vocabulary) load(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := New(metadataFrom(t, v.fields()))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func field(name string, v any) gguf.Field { return gguf.Field{Key: "tokenizer.ggml." + name, Value: v} }
