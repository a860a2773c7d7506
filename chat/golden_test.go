package chat

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ardanlabs/jinja"
)

// golden is testdata/golden.json, written by Python's Jinja2 (testdata/golden.py).
type golden struct {
	Variables json.RawMessage
	Snippets  []struct {
		Template, Error string
		Want            *string
	}
	Templates []struct {
		Template, Title, Error string
		Conversation           json.RawMessage
		Want                   *string
	}
}

func readGolden(t testing.TB) golden {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Snippets) < 90 || len(g.Templates) < 50 {
		t.Fatalf("golden.json has %d snippets and %d templates", len(g.Snippets), len(g.Templates))
	}
	return g
}

var testSpecial = []string{"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "<｜User｜>"}

// renderSnippet renders a bare template with the golden variables, disguised as input is.
func renderSnippet(tpl *Template, variables json.RawMessage, special *specials) (string, error) {
	taken := map[rune]bool{}
	for r := range tpl.private {
		taken[r] = true
	}
	d, err := newDisguise(special.alphabet, taken)
	if err != nil {
		return "", err
	}
	v, err := decodeJSON(variables, d.hideAll)
	if err != nil {
		return "", err
	}
	vars := map[string]Value{}
	for _, k := range v.AsDict().Keys {
		vars[d.showAll(k)] = v.AsDict().Data[k]
	}
	r := &run{disguise: d, steps: baseSteps, bytes: 16 * baseSteps, namespaces: map[*jinja.Dict]bool{}}
	r.bind(tpl.used, vars)
	out, err := tpl.engine.RenderValues(vars)
	return d.showAll(out), err
}

// TestSnippets compares small templates with Jinja2: once plainly, once with every letter of the input disguised.
func TestSnippets(t *testing.T) {
	g := readGolden(t)
	all := newSpecials([]string{"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789<>\"'\\\n &é_"})
	for _, s := range g.Snippets {
		for _, special := range []*specials{newSpecials(nil), all} {
			tpl, err := New(s.Template, Options{})
			got := ""
			if err == nil {
				got, err = renderSnippet(tpl, g.Variables, special)
			}
			switch {
			case s.Want == nil && err == nil:
				t.Errorf("%q: got %q, Jinja2 has %s", s.Template, got, s.Error)
			case s.Want != nil && err != nil:
				t.Errorf("%q: %v", s.Template, err)
			case s.Want != nil && got != *s.Want:
				t.Errorf("%q (disguise of %d):\n got %q\nwant %q", s.Template, len(special.alphabet), got, *s.Want)
			}
		}
	}
}

type goldenConversation struct {
	Messages []struct {
		Role, Content string
		Reasoning     string `json:"reasoning_content"`
		ToolCallID    string `json:"tool_call_id"`
		ToolCalls     []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
	Tools    json.RawMessage
	Generate bool  `json:"add_generation_prompt"`
	Think    *bool `json:"enable_thinking"`
}

func (g goldenConversation) conversation() Conversation {
	c := Conversation{Tools: g.Tools, AddGenerationPrompt: g.Generate, EnableThinking: g.Think}
	for _, m := range g.Messages {
		out := Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID}
		for _, k := range m.ToolCalls {
			out.ToolCalls = append(out.ToolCalls, ToolCall{ID: k.ID, Name: k.Function.Name, Arguments: string(k.Function.Arguments)})
		}
		c.Messages = append(c.Messages, out)
	}
	return c
}

func readTemplate(t testing.TB, name string, special []string) *Template {
	t.Helper()
	src, err := os.ReadFile("testdata/" + name + ".jinja")
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := New(string(src), Options{BOS: "<s>", EOS: "</s>", Special: special})
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}

// TestTemplates compares whole templates with Jinja2 through the public door.
func TestTemplates(t *testing.T) {
	for _, g := range readGolden(t).Templates {
		var c goldenConversation
		if err := json.Unmarshal(g.Conversation, &c); err != nil {
			t.Fatal(err)
		}
		parts, err := readTemplate(t, g.Template, testSpecial).Render(c.conversation())
		if g.Want == nil {
			t.Errorf("%s, %s: Jinja2 itself fails: %s", g.Template, g.Title, g.Error)
			continue
		}
		if err != nil {
			t.Errorf("%s, %s: %v", g.Template, g.Title, err)
			continue
		}
		if got := joined(parts); got != *g.Want {
			t.Errorf("%s, %s:\n got %q\nwant %q", g.Template, g.Title, got, *g.Want)
		}
		for _, p := range parts {
			if p.User {
				t.Errorf("%s, %s: %q marked in a harmless conversation", g.Template, g.Title, p.Text)
			}
		}
	}
}

func joined(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}
