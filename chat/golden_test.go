package chat

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

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
		Generate               bool
		Want                   *string
	}
	Conversations map[string]goldenConversation
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
	if len(g.Snippets) < 110 || len(g.Templates) < 300 {
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
	r := &run{disguise: d, steps: baseSteps, bytes: 16 * baseSteps, namespaces: map[*jinja.Dict]bool{}, now: goldenNow}
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
		Role, Content, Name string
		Reasoning           string `json:"reasoning_content"`
		ToolCallID          string `json:"tool_call_id"`
		ToolCalls           []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
	Tools  json.RawMessage
	Think  *bool  `json:"enable_thinking"`
	Effort string `json:"reasoning_effort"`
	Kwargs json.RawMessage
}

func (g goldenConversation) conversation(generate bool) Conversation {
	c := Conversation{Tools: g.Tools, AddGenerationPrompt: generate, EnableThinking: g.Think, ReasoningEffort: g.Effort, Kwargs: g.Kwargs, Now: goldenNow}
	for _, m := range g.Messages {
		out := Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
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

// goldenNow is the time in golden.py.
var goldenNow = time.Date(2026, 3, 9, 7, 5, 2, 0, time.UTC)

// TestTemplates compares whole templates with Jinja2 through the public door.
func TestTemplates(t *testing.T) {
	all := readGolden(t)
	refused := 0
	for _, g := range all.Templates {
		c := all.Conversations[g.Title].conversation(g.Generate)
		parts, err := readTemplate(t, g.Template, testSpecial).Render(c)
		if g.Want == nil {
			refused++
			if err == nil {
				t.Errorf("%s, %s: got %q, Jinja2 has %s", g.Template, g.Title, joined(parts), g.Error)
			}
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
	if refused == 0 || refused > len(all.Templates)/20 {
		t.Errorf("Jinja2 refuses %d of %d cases", refused, len(all.Templates))
	}
}

func joined(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}
