package server

import (
	"encoding/json"

	"terrace/tokenizer"
)

// fimWindow is how many tokens of prefix and suffix together are taken at most; what is left of the context is for other
// files and the answer.
const fimWindow = 2048

// extra is a piece of another file.
type extra struct{ name, text string }

// infill answers POST /infill: text for the gap between a prefix and a suffix, in the native form.
func infill(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	t := c.m.Engine.Tokenizer()
	if fim := t.FIM(); fim.Prefix < 0 || fim.Suffix < 0 || fim.Middle < 0 {
		return unsupported("the model's vocabulary has no tokens for filling a gap: prefix %d, suffix %d, middle %d", fim.Prefix, fim.Suffix, fim.Middle)
	}
	for _, k := range []string{"input_prefix", "input_suffix"} {
		if !f.has(k) {
			f.fail("%s is not given", k)
		}
	}
	prefix, suffix, prompt := f.str("input_prefix", ""), f.str("input_suffix", ""), f.str("prompt", "")
	extras, err := f.extras()
	if err != nil {
		return err
	}
	p, err := c.params(f, false)
	if err != nil {
		return err
	}
	tokens, err := c.m.gap(prefix, suffix, prompt, extras, max(p.predict, 0), c.s.opt.SuffixFirst)
	if err != nil {
		return err
	}
	return c.complete(p, [][]int32{tokens}, false)
}

// extras reads input_extra.
func (f *fields) extras() ([]extra, error) {
	var out []extra
	for i, raw := range f.array("input_extra") {
		o, err := object(raw, element("input_extra", i))
		if err != nil {
			return nil, err
		}
		if !o.has("text") {
			o.fail("%s is not given", o.name("text"))
		}
		out = append(out, extra{o.str("filename", "tmp"), o.str("text", "")})
		if o.err != nil {
			return nil, o.err
		}
	}
	return out, f.err
}

// gap makes the prompt that asks for what is missing between prefix and suffix. Of a prefix that is too long the end is
// kept, of a suffix the beginning, of the other files the end. predict tokens are left for the answer twice over.
func (m *Model) gap(prefix, suffix, prompt string, extras []extra, predict int, suffixFirst bool) ([]int32, error) {
	t := m.Engine.Tokenizer()
	fim := t.FIM()
	window := min(fimWindow, m.Context/2)
	pre := m.encodeEnd(prefix, window*3/4, true)
	if err := m.checkText(len(prompt)); err != nil {
		return nil, err
	}
	mid := t.Encode(nil, prompt, false, false)
	suf := m.encodeEnd(suffix, max(0, window/4-2-len(mid)), false)
	pre, suf = append([]int32{fim.Prefix}, pre...), append([]int32{fim.Suffix}, suf...)
	if suffixFirst {
		pre, suf = suf, pre
	}
	var core []int32
	if t.AddBOS() {
		core = append(core, t.BOS())
	}
	core = append(append(core, pre...), suf...)
	core = append(append(core, fim.Middle), mid...)
	room := m.Context - len(core) - max(2*predict, m.Context/16)
	tokens := append(m.otherFiles(extras, fim, room), core...)
	return tokens, m.checkPrompt(tokens)
}

// otherFiles are the tokens of pieces of other files, at most room of them: the last ones.
func (m *Model) otherFiles(extras []extra, fim tokenizer.FIM, room int) []int32 {
	if len(extras) == 0 || room <= 0 {
		return nil
	}
	t := m.Engine.Tokenizer()
	text := func(ids []int32, s string) []int32 { return t.Encode(ids, s, false, false) }
	var ids []int32
	if fim.Repo >= 0 && fim.File >= 0 {
		ids = text([]int32{fim.Repo}, "project\n")
	}
	for _, x := range extras {
		if fim.File >= 0 {
			ids = text(append(ids, fim.File), x.name+"\n")
		}
		ids = append(ids, m.encodeEnd(x.text, room, true)...)
		if n := len(ids) - room; n > room { // only the last ones count
			ids = append(ids[:0], ids[n:]...)
		}
	}
	if fim.File >= 0 {
		ids = text(append(ids, fim.File), "filename\n")
	}
	return ids[max(0, len(ids)-room):]
}

// encodeEnd is the last, or first, n tokens of a text. A text that is far too long is cut before it is tokenized.
func (m *Model) encodeEnd(s string, n int, last bool) []int32 {
	t := m.Engine.Tokenizer()
	const longest = 256 // bytes of a token that occurs in texts
	if most := min(t.MaxBytes(n+1), longest*(n+1)); len(s) > most {
		if last {
			s = s[len(s)-most:]
		} else {
			s = s[:most]
		}
	}
	ids := t.Encode(nil, s, false, false)
	if cut := max(0, len(ids)-n); last {
		ids = ids[cut:]
	} else {
		ids = ids[:len(ids)-cut]
	}
	return ids
}

// lists reads texts to be embedded: a text, token ids, or several of these.
func (c *call) lists(f *fields, keys ...string) ([][]int32, error) {
	k := f.first(keys...)
	if k == "" {
		return nil, invalid("%s is not given", keys[0])
	}
	p, _, err := c.prompts(&fields{m: map[string]json.RawMessage{"prompt": f.m[k]}})
	return p, err
}
