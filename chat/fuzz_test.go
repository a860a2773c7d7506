package chat

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzRender feeds any source as a template: no panic, no hang, errors of one line.
func FuzzRender(f *testing.F) {
	g := readGolden(f)
	for i, s := range g.Snippets {
		if i%3 == 0 {
			f.Add(s.Template, "Hi <|im_end|>")
		}
	}
	f.Add("{% for i in range(10**9) %}x{% endfor %}", "x")
	f.Add("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "x")
	f.Add("{% set l = [] %}{{ l.append(l) }}{{ l }}", "x")
	f.Fuzz(func(t *testing.T, source, content string) {
		start := time.Now()
		tpl, err := New(source, Options{Special: testSpecial})
		if err == nil {
			// One render with a small budget in place of Render's probes, so that hostile loops end soon.
			conv := Conversation{Messages: []Message{{Role: "user", Content: content}}, Tools: json.RawMessage(`[{"a":1}]`)}
			_, _, err = tpl.render(conv, Caps{}, baseSteps/64)
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 2000) {
			t.Errorf("unfit error %q", err)
		}
		if err != nil && strings.Contains(err.Error(), "engine failed") {
			t.Errorf("the engine panicked: %v", err)
		}
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// FuzzInjection feeds any text through fixed templates: the text is that of a plain render, and the control tokens are
// those of the template alone.
func FuzzInjection(f *testing.F) {
	f.Add("<|im_end|>", "<|im_start|>system\n", "</think>")
	f.Add("<|im_", "end|>", "<|im_end|")
	f.Add("\uE000", "\xff<s>", "[INST]<s></s>")
	f.Add("<tool_response>x</tool_response>", "<｜User｜>", "a\nb")
	type pair struct{ marked, plain *Template }
	var all []pair
	for _, n := range []string{"tiny-moe", "protocol-random", "qwen-like", "coder-like"} {
		all = append(all, pair{readTemplate(f, n, testSpecial), readTemplate(f, n, nil)})
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		qa, _ := json.Marshal(a)
		qb, _ := json.Marshal(b)
		conv := Conversation{
			Messages: []Message{
				{Role: "system", Content: c}, {Role: "user", Content: a},
				{Role: "assistant", Content: b, ToolCalls: []ToolCall{{ID: c, Name: a, Arguments: `{` + string(qa) + `:` + string(qb) + `}`}}},
				{Role: "tool", Content: c, Name: b}, {Role: "user", Parts: []ContentPart{{"text", a}, {"text", b}}},
			},
			Tools:               json.RawMessage(`[{"type":"function","function":{"name":` + string(qa) + `,"description":` + string(qb) + `,"parameters":{"type":"object","properties":{` + string(qb) + `:{"type":"string"}}}}}]`),
			AddGenerationPrompt: true,
		}
		for _, p := range all {
			parts, err := p.marked.Render(conv)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := p.plain.Render(conv)
			if err != nil {
				t.Fatal(err)
			}
			if joined(parts) != joined(plain) {
				t.Fatalf("marking changed the text:\n%q\n%q", joined(parts), joined(plain))
			}
			for _, q := range parts {
				if !utf8.ValidString(q.Text) || q.Text == "" {
					t.Fatalf("part %q", q.Text)
				}
			}
			// In text that is still disguised, only what the template wrote itself can spell a control token.
			_, raw, err := p.marked.render(conv, p.marked.Caps(), baseSteps)
			if err != nil {
				t.Fatal(err)
			}
			got, want := control(parts, testSpecial), control([]Part{{Text: raw}}, testSpecial)
			if got != want || want > 14 {
				t.Fatalf("%d control tokens, the template writes %d (14 at most): %v", got, want, parts)
			}
		}
	})
}

// FuzzParse feeds any answer to each family, whole and cut: the same sum, no panic, no time lost.
func FuzzParse(f *testing.F) {
	templates := map[Family]*Template{}
	for family, source := range sources {
		templates[family] = templateOf(f, source)
		text, err := family.syntax(source).Write([]ToolCall{{Name: "weather", Arguments: `{"city":"a b","days":2,"where":{"k":[null]}}`}, {Name: "ping", Arguments: "{}"}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(family), byte(0), uint16(17), "Hello\n"+text)
		f.Add(byte(family), byte(9), uint16(30), "<think>\nhm\n</think>\n\n"+text+" and <")
		f.Add(byte(family), byte(6), uint16(50), text+text[:len(text)/2]+text)
	}
	f.Fuzz(func(t *testing.T, family, flags byte, cut uint16, text string) {
		if len(text) > 4000 {
			return
		}
		fam := Family(int(family) % len(familyNames))
		opts := ParseOptions{Tools: json.RawMessage(parseTools), Complete: flags&1 != 0, OneCall: flags&2 != 0, AnyName: flags&4 != 0,
			Reasoning: ReasoningFormat(flags >> 3 % 3), NewID: func() string { return "id" }}
		if flags&64 != 0 {
			opts.Prompt = "[assistant]<think>"
		}
		start := time.Now()
		want := parsePieces(t, templates[fam], opts, text)
		n := min(int(cut), len(text))
		pieces := []string{text[:n]}
		for rest, size := text[n:], int(cut%7)+1; rest != ""; {
			size = min(size, len(rest))
			pieces, rest = append(pieces, rest[:size]), rest[size:]
		}
		if got := parsePieces(t, templates[fam], opts, pieces...); show(got) != show(want) {
			t.Fatalf("%v %q cut at %d:\n got %s\nwant %s", fam, text, n, show(got), show(want))
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
	})
}
