package server

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// What is cut into tokens at most, in bytes of JSON: tokens take several times their text in memory, their pieces a hundred times.
const (
	tokenizeMost = 8 << 20
	piecesMost   = 256 << 10
)

// tokenize answers POST /tokenize.
func tokenize(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	if !f.has("content") {
		return c.json(map[string]any{"tokens": []int32{}})
	}
	t := c.m.Engine.Tokenizer()
	special, parse, pieces := f.boolean("add_special", false), f.boolean("parse_special", true), f.boolean("with_pieces", false)
	most := tokenizeMost
	if pieces {
		most = piecesMost
	}
	if n := len(f.m["content"]); f.err == nil && n > most {
		return invalid("content has %d bytes, at most %d are cut into tokens", n, most)
	}
	var out []int32
	switch raw := f.m["content"]; kindOf(raw) {
	case "string":
		out = t.Encode(nil, f.str("content", ""), special, parse)
	case "array": // texts and ids in one sequence
		for i, e := range f.array("content") {
			var text string
			if v, ok := number(e); ok && v >= 0 && v < float64(t.Vocab()) {
				out = append(out, int32(v))
			} else if json.Unmarshal(e, &text) == nil {
				out = t.Encode(out, text, special && i == 0, parse)
			} else {
				f.fail("%s is a JSON %s, want a text or a token id", element("content", i), kindOf(e))
			}
		}
	default:
		f.wrong("content", "a string or an array")
	}
	if f.err != nil {
		return f.err
	}
	if !pieces {
		return c.json(map[string]any{"tokens": ids(out)})
	}
	list := make([]any, len(out))
	for i, id := range out {
		b := c.m.bytes(id)
		var piece any = string(b)
		if !utf8.Valid(b) {
			raw := make([]int, len(b))
			for k := range b {
				raw[k] = int(b[k])
			}
			piece = raw
		}
		list[i] = map[string]any{"id": id, "piece": piece}
	}
	return c.json(map[string]any{"tokens": list})
}

// detokenize answers POST /detokenize.
func detokenize(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	var list []int32
	t := c.m.Engine.Tokenizer()
	for i, e := range f.array("tokens") {
		v, ok := number(e)
		if !ok || v < 0 || v >= float64(t.Vocab()) || v != float64(int32(v)) {
			f.fail("%s is %s, want a token id below %d", element("tokens", i), describe(string(e)), t.Vocab())
			break
		}
		list = append(list, int32(v))
	}
	if f.err != nil {
		return f.err
	}
	return c.json(map[string]string{"content": strings.ToValidUTF8(string(t.Decode(list, true)), "\uFFFD")})
}

// applyTemplate answers POST /apply-template: the prompt that a chat would use. What the tokenizer puts around a prompt by
// itself is left out, so that the text can be tokenized with add_special.
func applyTemplate(c *call) error {
	q, err := c.openaiChat()
	if err != nil {
		return err
	}
	parts, err := c.m.Engine.Template().Render(q.conv)
	if err != nil {
		return invalid("%s", err)
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	text, t := b.String(), c.m.Engine.Tokenizer()
	if t.AddBOS() {
		text = strings.TrimPrefix(text, t.Text(t.BOS()))
	}
	if t.AddEOS() {
		text = strings.TrimSuffix(text, t.Text(t.EOS()))
	}
	return c.json(map[string]string{"prompt": text})
}

// inputTokens answers POST /v1/chat/completions/input_tokens.
func inputTokens(c *call) error {
	q, err := c.openaiChat()
	if err != nil {
		return err
	}
	return c.countTokens(q)
}

// countTokens answers with the length of a chat's prompt, as the OpenAI dialects have it.
func (c *call) countTokens(q *chatRequest) error {
	n, err := c.m.promptLength(q)
	if err != nil {
		return err
	}
	return c.json(map[string]any{"object": "response.input_tokens", "input_tokens": n})
}

// promptLength is the number of tokens of a chat's prompt; it may be more than the context holds.
func (m *Model) promptLength(q *chatRequest) (int, error) {
	r, err := m.render(q.conv)
	if err != nil && len(r.tokens) == 0 {
		return 0, err
	}
	return len(r.tokens), nil
}
