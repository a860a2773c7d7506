package chat

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/ardanlabs/jinja"
)

// Two guards of published templates refuse messages that are harmless here, where text of a message is never a control
// token, or that clients send: gpt-oss's against channel marks in a message, and Mistral's against an answer without text.
// llama-server takes them out as well.
var (
	channelGuard = regexp.MustCompile(`(\{%-? if )[^%]*<\|channel\|>(?:analysis|final)<\|message\|>["'] in [^%]*?( -?%\}\s*\{\{-? *raise_exception)`)
	emptyGuard   = regexp.MustCompile(`(\{%-? if )[^%]*message\['content'\] == ''[^%]*tool_calls[^%]*?( -?%\}\s*\{\{-? *raise_exception)`)
)

// unguarded is source without those guards; its lines keep their numbers.
func unguarded(source string) string {
	for _, guard := range []*regexp.Regexp{channelGuard, emptyGuard} {
		source = guard.ReplaceAllString(source, "${1}false${2}")
	}
	return source
}

var thinkingKey = regexp.MustCompile(`\bmessage(\.thinking\b|\[["']thinking["']\]|\.get\(["']thinking["'])`)

// fit adapts messages to what the template reads: thoughts under another name, and for gpt-oss, whose calls carry thoughts
// or text but not both, both as one.
func (t *Template) fit(m *Message, out *jinja.Dict, d *disguise) {
	if m.Reasoning == "" || !thinkingKey.MatchString(t.source) {
		return
	}
	thoughts := m.Reasoning
	if len(m.ToolCalls) > 0 && Detect(t.source) == Harmony {
		if c := m.text(); strings.TrimSpace(c) != "" {
			thoughts += "\n\n" + c
		}
		out.Set("content", jinja.NewString(""))
	}
	out.Set("thinking", jinja.NewString(d.hideAll(thoughts)))
}

// fillTools gives definitions the fields that templates take for granted; ok is false if they have them all.
func fillTools(tools json.RawMessage) (filled json.RawMessage, ok bool) {
	v, err := decodeJSON(tools, func(s string) string { return s })
	if err != nil || !v.IsList() {
		return nil, false
	}
	for _, tool := range v.AsList().Items {
		if !tool.IsDict() {
			continue
		}
		f, _ := tool.AsDict().Get("function")
		if !f.IsDict() {
			continue
		}
		if d, _ := f.AsDict().Get("description"); !d.IsString() {
			f.AsDict().Set("description", jinja.NewString(""))
			ok = true
		}
		if p, _ := f.AsDict().Get("parameters"); !p.IsDict() || p.AsDict().Len() == 0 {
			schema := jinja.NewDict()
			schema.AsDict().Set("type", jinja.NewString("object"))
			schema.AsDict().Set("properties", jinja.NewDict())
			f.AsDict().Set("parameters", schema)
			ok = true
		}
	}
	if !ok {
		return nil, false
	}
	var b strings.Builder
	if (Syntax{}).writeValue(&b, v) != nil {
		return nil, false
	}
	return json.RawMessage(b.String()), true
}

// openText is what a message to continue adds to the prompt, whose end is the head of its turn: its thoughts between their
// tags, left open if there is no text behind them, and its text.
func (t *Template) openText(m *Message, d *disguise, prompt string) string {
	family := Detect(t.source)
	think, text, thoughts := family.thoughts(t.source), d.hideAll(m.text()), d.hideAll(m.Reasoning)
	if family == Harmony {
		out := ""
		if thoughts != "" {
			out = markChannel + "analysis" + markMessage + thoughts
		}
		if thoughts != "" && text != "" {
			out += "<|end|>" + markStart + "assistant"
		}
		if text != "" || thoughts == "" {
			out += markChannel + "final" + markMessage + text
		}
		return out
	}
	if thoughts == "" {
		return text
	}
	out := ""
	if !strings.HasSuffix(strings.TrimSpace(prompt), strings.TrimSpace(think.open)) {
		out = strings.TrimSpace(think.open) + "\n"
	}
	out += thoughts
	if text != "" {
		out += "\n" + think.close + "\n\n" + text
	}
	return out
}
