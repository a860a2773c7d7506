package synth

import (
	"strconv"

	"terrace/gguf"
)

// Types of tokens in tokenizer.ggml.token_type.
const (
	tokenNormal  = int32(1)
	tokenControl = int32(3)
	tokenUnused  = int32(5)
)

const chatTemplate = `{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
`

// vocabulary puts a tokenizer of s.vocab tokens: one for each byte, three control tokens, and nothing but names for the
// rest. The control tokens are the last ones, or begin at s.eos, which the architecture has in its keys.
func (b *builder) vocabulary() {
	s := &b.s
	tokens, types := make([]string, 0, s.vocab), make([]int32, 0, s.vocab)
	var names []byte // of all tokens without a text, so that they are not a hundred thousand allocations
	for i := range s.vocab {
		names = strconv.AppendInt(append(names, '~'), int64(i), 36)
	}
	rest := string(names)
	extra := rune(0x100)
	for c := range rune(256) {
		text := c
		if c < '!' || c > '~' && c < 0xa1 || c == 0xad { // what Latin-1 does not show is written by the next free letters
			text = extra
			extra++
		}
		tokens, types = append(tokens, string(text)), append(types, tokenNormal)
	}
	special := s.vocab - 3
	if s.eos != 0 {
		special = s.eos
	}
	for i := range s.vocab {
		n := 2
		for k := i; k >= 36; k /= 36 {
			n++
		}
		name := rest[:n]
		if rest = rest[n:]; i < len(tokens) {
			continue
		}
		switch i {
		case special:
			tokens, types = append(tokens, "<|endoftext|>"), append(types, tokenControl)
		case special + 1:
			tokens, types = append(tokens, "<|im_start|>"), append(types, tokenControl)
		case special + 2:
			tokens, types = append(tokens, "<|im_end|>"), append(types, tokenControl)
		default:
			tokens, types = append(tokens, name), append(types, tokenUnused)
		}
	}
	pre := "qwen2"
	if s.sections != nil {
		pre = "qwen35"
	}
	b.meta = append(b.meta,
		gguf.Field{Key: "tokenizer.ggml.model", Value: "gpt2"},
		gguf.Field{Key: "tokenizer.ggml.pre", Value: pre},
		gguf.Field{Key: "tokenizer.ggml.tokens", Value: tokens},
		gguf.Field{Key: "tokenizer.ggml.token_type", Value: types},
		gguf.Field{Key: "tokenizer.ggml.merges", Value: []string{}},
		gguf.Field{Key: "tokenizer.ggml.bos_token_id", Value: uint32(special)},
		gguf.Field{Key: "tokenizer.ggml.eos_token_id", Value: uint32(special + 2)},
		gguf.Field{Key: "tokenizer.ggml.padding_token_id", Value: uint32(special)},
		gguf.Field{Key: "tokenizer.ggml.add_bos_token", Value: false},
		gguf.Field{Key: "tokenizer.chat_template", Value: chatTemplate})
}
