package tinymodel

import (
	"fmt"
	"strings"

	"terrace/gguf"
)

// merges of the toy vocabulary, in order of rank. "Ġ" stands for the space, as byte-level vocabularies write it; each
// merge makes one token.
var merges = []string{
	"Ġ t", "h e", "Ġ a", "i n", "r e", "Ġt he", "o n", "e r", "Ġ s", "a t", "Ġa n", "e n", "Ġan d", "i s", "in g", "o u",
}

// Token ids: one for each byte, in the order of the bytes, then one for each merge, then these. What is left of the
// vocabulary is control tokens without a meaning.
const (
	EndOfText = 272 // <|endoftext|>: begin of sequence and padding
	ImStart   = 273 // <|im_start|>
	ImEnd     = 274 // <|im_end|>: end of sequence
	MinVocab  = 275 // the smallest vocabulary
)

// Types of tokens in tokenizer.ggml.token_type.
const (
	tokenNormal  = int32(1)
	tokenControl = int32(3)
)

// chatTemplate is ChatML.
const chatTemplate = `{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
`

// byteRune is the printable character by which byte-level vocabularies write byte b: itself where Latin-1 shows
// something, else the next free one from U+0100 on.
func byteRune(b int) rune {
	shown := func(c int) bool { return c >= '!' && c <= '~' || c >= 0xa1 && c <= 0xac || c >= 0xae }
	if shown(b) {
		return rune(b)
	}
	r := rune(0x100)
	for c := range b {
		if !shown(c) {
			r++
		}
	}
	return r
}

// vocabulary is the tokenizer's part of the metadata.
func (o *Options) vocabulary() []gguf.Field {
	tokens, types := make([]string, 0, o.Vocab), make([]int32, 0, o.Vocab)
	put := func(text string, t int32) { tokens, types = append(tokens, text), append(types, t) }
	for b := range 256 {
		put(string(byteRune(b)), tokenNormal)
	}
	for _, m := range merges {
		put(strings.ReplaceAll(m, " ", ""), tokenNormal)
	}
	for _, s := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		put(s, tokenControl)
	}
	for len(tokens) < o.Vocab {
		put(fmt.Sprintf("<|extra_%d|>", len(tokens)-MinVocab), tokenControl)
	}
	return []gguf.Field{
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "qwen2"},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: types},
		{Key: "tokenizer.ggml.merges", Value: merges},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(EndOfText)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(ImEnd)},
		{Key: "tokenizer.ggml.padding_token_id", Value: uint32(EndOfText)},
		{Key: "tokenizer.ggml.add_bos_token", Value: false},
		{Key: "tokenizer.chat_template", Value: chatTemplate},
	}
}
