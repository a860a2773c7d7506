package tokenizer

import (
	"path"
	"strings"
	"testing"
)

// corpora are about 64 KB each: prose with words that recur as they do in a language, source text, and Chinese.
func corpora() map[string]string {
	english := "It was a bright cold day in April, and the clocks were striking thirteen. Nobody (not even she) had 1,234 reasons to\nbelieve it's true: \"don't\" is what they'd said.\n\n"
	code := "func (s *T) Get(k string) (v any, err error) {\n\tif v, ok := s.m[k]; !ok {\n\t\treturn nil, fmt.Errorf(\"no %q in %d\", k, len(s.m))\n\t}\n\treturn v, nil\n}\n\n"
	chinese := "今天天气很好，我们去公园散步吧。人工智能改变世界，2026年9月28日。\n"
	fill := func(s string) string { return strings.Repeat(s, 1+(64<<10)/len(s)) }
	return map[string]string{"english": fill(english), "code": fill(code), "chinese": fill(chinese)}
}

func BenchmarkSplit(b *testing.B) {
	for _, name := range []string{"qwen2", "qwen35", "llama-bpe", "gpt-2", "default", "gpt-4o", "tekken", "kimi-k2", "deepseek-v3", "deepseek-llm", "starcoder", "gemma4"} {
		for corpus, text := range corpora() {
			b.Run(name+"/"+corpus, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				var ends []int
				for b.Loop() {
					ends = preTokenizers[name].split.ends(ends[:0], text)
				}
			})
		}
	}
}

// BenchmarkMerge measures splitting and merging without and with the piece cache.
func BenchmarkMerge(b *testing.B) {
	tok := load(b, qwen3)
	for corpus, text := range corpora() {
		b.Run("uncached/"+corpus, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var ids []int32
			var ends []int
			w := new(scratch)
			for b.Loop() {
				ends = tok.split.ends(ends[:0], text)
				ids = ids[:0]
				at := 0
				for _, end := range ends {
					ids = tok.bpe.encodeUncached(ids, text[at:end], w)
					at = end
				}
			}
		})
		b.Run("cached/"+corpus, func(b *testing.B) { benchEncode(b, tok, text) })
	}
}

// BenchmarkVocabularies measures whole texts, with the piece cache, for the other vocabularies.
func BenchmarkVocabularies(b *testing.B) {
	for _, vocab := range []string{deepseek, gptoss, mistral} {
		tok := load(b, vocab)
		for corpus, text := range corpora() {
			b.Run(path.Base(vocab)+"/"+corpus, func(b *testing.B) { benchEncode(b, tok, text) })
		}
	}
}

func benchEncode(b *testing.B, tok *Tokenizer, text string) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var ids []int32
	for b.Loop() {
		ids = tok.Encode(ids[:0], text, false, true)
	}
}

// BenchmarkScore measures merging by score without the piece cache.
func BenchmarkScore(b *testing.B) {
	tok := load(b, mistral)
	for corpus, text := range corpora() {
		text = string(appendSpaced(nil, text))
		b.Run(corpus, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var ids []int32
			w := new(scratch)
			ends := tok.split.ends(nil, text)
			for b.Loop() {
				ids = ids[:0]
				at := 0
				for _, end := range ends {
					if end-at > linearPiece {
						ids = tok.spm.encodeHeap(ids, text[at:end], w)
					} else {
						ids = tok.spm.encodeShort(ids, text[at:end])
					}
					at = end
				}
			}
		})
	}
}

// BenchmarkLongRun measures one piece that no splitter cuts.
func BenchmarkLongRun(b *testing.B) {
	for _, vocab := range []string{qwen3, mistral} {
		tok := load(b, vocab)
		b.Run(path.Base(vocab), func(b *testing.B) { benchEncode(b, tok, strings.Repeat("a", 1<<16)) })
	}
}

func BenchmarkStream(b *testing.B) {
	tok := load(b, qwen3)
	ids := tok.Encode(nil, corpora()["english"], false, false)
	s := tok.NewStream(false)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Push(ids[i%len(ids)])
		i++
	}
}

func BenchmarkNew(b *testing.B) {
	for _, vocab := range []string{qwen3, mistral} {
		md := metadataOf(b, vocab)
		b.Run(path.Base(vocab), func(b *testing.B) {
			for b.Loop() {
				if _, err := New(md); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
