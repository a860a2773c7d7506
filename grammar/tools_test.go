package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"terrace/chat"
)

// written is a template with the family it is read as.
type written struct {
	f   chat.Family
	tpl *chat.Template
}

// families are templates that name the marks of each family, in each of its spellings.
func families(t testing.TB) []written {
	t.Helper()
	var all []written
	for _, c := range []struct {
		f      chat.Family
		source string
	}{
		{chat.Hermes, "<tool_call></tool_call><think>"}, {chat.CoderXML, "<tool_call><function=x><parameter=y><think>"}, {chat.GLM, "<tool_call><arg_key><think>"},
		{chat.DeepSeek, "<｜tool▁calls▁begin｜><think>"}, {chat.DeepSeek, "<｜tool▁calls▁begin｜>```json</think>"},
		{chat.DSML, "<｜DSML｜function_calls><think>"}, {chat.DSML, "<｜DSML｜tool_calls>"}, {chat.DSML, "<｜DSML｜ invoke name="},
		{chat.Kimi, "<|tool_calls_section_begin|><think>"}, {chat.Harmony, "<|start|><|channel|>final<|message|>"},
		{chat.Mistral, "[TOOL_CALLS][THINK]"}, {chat.Mistral, "[TOOL_CALLS]x[ARGS]"}, {chat.MiniMax, "<minimax:tool_call><think>"}, {chat.Llama, "<|start_header_id|>"},
		{chat.Granite, "<|start_of_role|>Here is my thought process: Here is my response:"}, {chat.LFM2, "<|tool_call_start|><think>"}, {chat.NemotronJSON, "<TOOLCALL><think>"}, {chat.Gemma4, "<|tool_call>call:<|channel>thought"},
	} {
		tpl, err := chat.New("{# "+c.source+" #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}", chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := chat.Detect(tpl.Source()); got != c.f {
			t.Fatalf("%q is read as %v", c.source, got)
		}
		all = append(all, written{c.f, tpl})
	}
	return all
}

func familyOf(t testing.TB, f chat.Family) *chat.Template {
	t.Helper()
	for _, w := range families(t) {
		if w.f == f {
			return w.tpl
		}
	}
	t.Fatalf("no template of %v", f)
	return nil
}

const testTools = `[
{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
  "city":{"type":"string"},"unit":{"enum":["C","F","<K>"]},"days":{"type":"integer","minimum":1,"maximum":14},"tags":{"type":"array","items":{"type":"string"},"maxItems":3},
  "exact":{"type":"boolean"},"when":{"type":["integer","null"]},"code":{"type":"string","pattern":"^[A-Z]{2}\\d{2,}$","maxLength":9},"where":{"type":"object","properties":{"lat":{"type":"number","minimum":-90,"maximum":90},"name":{"type":"string"}},"required":["lat"]}},
  "required":["city","days"]}}},
{"type":"function","function":{"name":"no_args"}},
{"type":"function","function":{"name":"empty","parameters":{"type":"object","properties":{}}}},
{"type":"function","function":{"name":"loose.one","parameters":{"type":"object","properties":{"id":{"type":["string","integer"]},"any":{}},"required":["id"],"additionalProperties":{"type":"string"}}}},
{"name":"flat-one","parameters":{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/n"}]}},"required":["v","next"]}},"type":"object","properties":{"list":{"$ref":"#/$defs/n"}},"required":["list"]}}
]`

// toolVocab has the texts of a family's markers as control tokens or as text, and what ends things as whole tokens.
func toolVocab(f chat.Family, tpl *chat.Template, control bool) (l list, likely []int32) {
	s := tpl.Syntax(f)
	open, closing, _ := tpl.Thoughts(f)
	l = bytesAnd("the", " and", "word\n", "</", "tool", "\"}", "{\"", "\xf0\x9f", "é", "name", "1.5")
	end := l[len(l)-1]
	l = l[:len(l)-1]
	w := &writer{markers: append(f.Markers(), open, closing)}
	marks := slices.Clone(f.Markers())
	marks = append(marks, (&writer{open: open, close: closing}).thoughtMarks()...)
	for _, m := range marks {
		if m != "" && control && !slices.Contains(l, "\x00"+m) {
			l = append(l, "\x00"+m)
		} else if m != "" && !control && !slices.Contains(l, m) {
			l = append(l, m)
		}
	}
	for _, m := range []string{s.ParamEnd, s.Close, s.End, closing, gemmaQuote} {
		for _, p := range append(w.pieces(m), text(m)) {
			if p.text != "" && !slices.Contains(l, p.text) && !slices.Contains(l, "\x00"+p.text) && !(control && strings.Contains(m, "<|")) {
				l = append(l, p.text)
			}
		}
	}
	for id := 267; id < len(l); id++ {
		likely = append(likely, int32(id))
	}
	return append(l, end), likely
}

func (l list) shown(id int32) string { return strings.TrimPrefix(l[id], "\x00") }

// answer draws a text, in which what ends things is likely.
func answer(t testing.TB, g *Grammar, l list, likely []int32, r *rand.Rand, first string) string {
	t.Helper()
	ix := NewIndex(l)
	m := mustMatch(t, g, ix)
	out := ""
	for first != "" {
		id := int32(slices.IndexFunc(l, func(s string) bool {
			return s != "\x00" && strings.HasPrefix(s, "\x00") && strings.HasPrefix(first, s[1:])
		}))
		if id < 0 {
			id = int32(first[0])
		}
		if err := m.Accept(id); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		out += l.shown(id)
		first = first[len(l.shown(id)):]
	}
	logits := make([]float32, len(l))
	for n := range 6000 {
		for i := range logits {
			logits[i] = r.Float32()
		}
		switch n % 3 {
		case 1:
			for _, id := range likely {
				logits[id] += 9 * r.Float32()
			}
		case 2:
			for i, c := range "0n,)]}\"" {
				logits[c] += float32(i) + 3
			}
		}
		if n%3 == 0 {
			logits[len(l)-1] += 20
		}
		if _, _, err := m.Apply(logits); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		best := int32(0)
		for i, x := range logits {
			if x > logits[best] {
				best = int32(i)
			}
		}
		if err := m.Accept(best); err != nil {
			t.Fatalf("after %q: %v", out, err)
		}
		if m.Ended() {
			return out
		}
		out += l.shown(best)
	}
	t.Fatalf("no end: %q", out)
	return ""
}

// checkCalls reads an answer as the server does, and validates the calls.
func checkCalls(t testing.TB, tpl *chat.Template, f chat.Family, out string, opts chat.ParseOptions) chat.Answer {
	t.Helper()
	opts.Family, opts.Tools = &f, json.RawMessage(testTools)
	a, err := tpl.Parse(out, opts)
	if err != nil {
		t.Fatal(err)
	}
	if !utf8.ValidString(out) {
		t.Fatalf("%v: not UTF-8: %q", f, out)
	}
	var defs []struct {
		Name       string
		Parameters json.RawMessage
		Function   *struct {
			Name       string
			Parameters json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(testTools), &defs); err != nil {
		t.Fatal(err)
	}
	for _, c := range a.Calls {
		known := false
		for _, d := range defs {
			name, params := d.Name, d.Parameters
			if d.Function != nil {
				name, params = d.Function.Name, d.Function.Parameters
			}
			if name != c.Name {
				continue
			}
			known = true
			if params == nil {
				params = json.RawMessage(`{"type":"object","additionalProperties":false}`)
			}
			if err := compileSchema(t, string(params))(c.Arguments); err != nil {
				t.Fatalf("%v: %q\ncall of %s with %s: %v", f, out, c.Name, c.Arguments, err)
			}
		}
		if !known {
			t.Fatalf("%v: %q calls %q", f, out, c.Name)
		}
	}
	return a
}

// TestToolsRequired: whatever the logits, after the thoughts come calls and nothing else.
func TestToolsRequired(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for _, w := range families(t) {
		f, tpl := w.f, w.tpl
		for _, control := range []bool{false, true} {
			l, likely := toolVocab(f, tpl, control)
			calls := 0
			for i := range 16 {
				o := ToolOptions{Required: true, Parallel: i%2 == 0, NoThoughts: i%3 > 0}
				if i%4 == 3 {
					o.Only = "get_weather"
				}
				g, err := ForTools(tpl, f, json.RawMessage(testTools), o)
				if err != nil {
					t.Fatalf("%v: %v", f, err)
				}
				out := answer(t, g, l, likely, r, "")
				a := checkCalls(t, tpl, f, out, chat.ParseOptions{OneCall: !o.Parallel})
				if len(a.Calls) == 0 || a.Content != "" || !o.Parallel && len(a.Calls) > 1 || o.NoThoughts && a.Reasoning != "" {
					t.Fatalf("%v: %q is read as %+v", f, out, a)
				}
				for _, c := range a.Calls {
					if o.Only != "" && c.Name != o.Only {
						t.Fatalf("%v: %q calls %s", f, out, c.Name)
					}
				}
				calls += len(a.Calls)
			}
			if testing.Verbose() {
				t.Logf("%v, control tokens %v: %d calls", f, control, calls)
			}
		}
	}
}

// TestToolsWritten: what chat writes is a text of the grammar, and how many calls there may be is kept.
func TestToolsWritten(t *testing.T) {
	for _, w := range families(t) {
		s := w.tpl.Syntax(w.f)
		one := chat.ToolCall{Name: "get_weather", Arguments: `{"city":"a\nb é","unit":"C","days":3,"exact":true,"when":null,"code":"AB12"}`}
		two := chat.ToolCall{Name: "flat-one", Arguments: `{"list":{"v":1,"next":{"v":2,"next":null}}}`}
		for _, parallel := range []bool{false, true} {
			g, err := ForTools(w.tpl, w.f, json.RawMessage(testTools), ToolOptions{Required: true, Parallel: parallel})
			if err != nil {
				t.Fatal(err)
			}
			for _, list := range [][]chat.ToolCall{{one}, {two}, {one, two}, {two, one, one}} {
				text, err := s.Write(list)
				if err != nil {
					t.Fatal(err)
				}
				whole, _ := accepts(t, g, text)
				if want := len(list) == 1 || parallel && !s.Single; whole != want {
					t.Errorf("%v, parallel %v: %q is accepted: %v", w.f, parallel, text, whole)
				}
			}
		}
	}
}

// TestToolsAuto: text is free until a marker, behind which a call must be right.
func TestToolsAuto(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, w := range families(t) {
		f, tpl := w.f, w.tpl
		s := tpl.Syntax(f)
		before := "Let me < see.\n"
		trigger := s.Begin + s.Open
		switch {
		case f == chat.Harmony:
			before = "<|channel|>analysis<|message|>to=functions.x<|end|><|start|>assistant"
		case s.TriggersOnlyFirst:
			before = "\n "
		default:
			i := slices.IndexFunc(s.Triggers, func(x string) bool { return strings.HasPrefix(trigger, x) })
			if i < 0 {
				t.Fatalf("%v: calls begin with %q, triggers are %q", f, trigger, s.Triggers)
			}
			trigger = s.Triggers[i]
		}
		for _, control := range []bool{false, true} {
			l, likely := toolVocab(f, tpl, control)
			for i := range 4 {
				o := ToolOptions{Parallel: i%2 == 0}
				g, err := ForTools(tpl, f, json.RawMessage(testTools), o)
				if err != nil {
					t.Fatalf("%v: %v", f, err)
				}
				out := answer(t, g, l, likely, r, before+trigger)
				a := checkCalls(t, tpl, f, out, chat.ParseOptions{OneCall: !o.Parallel})
				if len(a.Calls) == 0 || !o.Parallel && len(a.Calls) > 1 {
					t.Fatalf("%v: %q is read as %+v", f, out, a)
				}
				if i > 0 {
					continue
				}
				// Without a marker everything goes, the end included.
				m := mustMatch(t, g, NewIndex(l))
				for id := range l {
					if !m.Allows(int32(id)) && utf8.ValidString(l[id]) {
						t.Fatalf("%v: token %q is refused at the beginning", f, l[id])
					}
				}
				if err := m.AcceptBytes([]byte("Some text, <tool> {\"x\": é")); err != nil || !m.Allows(int32(len(l)-1)) {
					t.Errorf("%v: free text is refused: %v", f, err)
				}
				// Thoughts may speak of the marker.
				open, closing, _ := tpl.Thoughts(f)
				if f == chat.Harmony || !tpl.Caps().Thinking {
					continue
				}
				for _, o := range []ToolOptions{{}, {InThoughts: true}, {Required: true}, {Required: true, InThoughts: true}} {
					g, err := ForTools(tpl, f, json.RawMessage(testTools), o)
					if err != nil {
						t.Fatal(err)
					}
					first := open + "\nI could say " + trigger + " or not" + closing
					if o.InThoughts {
						first = first[len(open):]
					}
					if o.Required {
						answer(t, g, l, likely, r, first)
						continue
					}
					if !s.TriggersOnlyFirst {
						out := answer(t, g, l, likely, r, first+"\nOne "+trigger)
						checkCalls(t, tpl, f, out[strings.Index(out, closing)+len(closing):], chat.ParseOptions{OneCall: true})
					}
				}
			}
		}
	}
}

func TestForAnswer(t *testing.T) {
	g := mustSchema(t, `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`)
	r := rand.New(rand.NewPCG(25, 26))
	for _, w := range families(t) {
		f, tpl := w.f, w.tpl
		l, likely := toolVocab(f, tpl, true)
		for i := range 6 {
			o := ToolOptions{NoThoughts: i%2 == 0}
			a, err := ForAnswer(tpl, f, g, o)
			if err != nil {
				t.Fatal(err)
			}
			out := answer(t, a, l, likely, r, "")
			got, err := tpl.Parse(out, chat.ParseOptions{Family: &f})
			if err != nil {
				t.Fatal(err)
			}
			var v struct{ A *int }
			if err := json.Unmarshal([]byte(got.Content), &v); err != nil || v.A == nil || o.NoThoughts && got.Reasoning != "" {
				t.Fatalf("%v: %q is read as %+v: %v", f, out, got, err)
			}
		}
	}
}

// TestForToolsOr: an answer is a call that is right or a text of the schema, and nothing else; each family can say both.
func TestForToolsOr(t *testing.T) {
	g := mustSchema(t, `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`)
	r := rand.New(rand.NewPCG(27, 28))
	for _, w := range families(t) {
		f, tpl := w.f, w.tpl
		l, likely := toolVocab(f, tpl, true)
		for i := range 12 {
			o := ToolOptions{NoThoughts: i%2 == 0, Parallel: i%3 == 0}
			either, err := ForToolsOr(tpl, f, json.RawMessage(testTools), g, o)
			if err != nil {
				t.Fatal(err)
			}
			first := ""
			switch {
			case f == chat.Harmony && i%4 == 0:
				first = "<|channel|>final<|message|>"
			case i%4 == 1:
				first = tpl.Syntax(f).Begin + tpl.Syntax(f).Open
			}
			out := answer(t, either, l, likely, r, first)
			a := checkCalls(t, tpl, f, out, chat.ParseOptions{OneCall: !o.Parallel})
			if len(a.Calls) > 0 {
				if a.Content != "" {
					t.Fatalf("%v: %q is read as %+v", f, out, a)
				}
				continue
			}
			var v struct{ A *int }
			d := json.NewDecoder(strings.NewReader(a.Content))
			d.DisallowUnknownFields()
			if err := d.Decode(&v); err != nil || v.A == nil || o.NoThoughts && a.Reasoning != "" {
				t.Fatalf("%v: %q is read as %+v: %v", f, out, a, err)
			}
			if i%4 == 1 {
				t.Fatalf("%v: %q begins as a call and is read as %+v", f, out, a)
			}
		}
	}
}

func TestToolErrors(t *testing.T) {
	for _, c := range []struct {
		f     chat.Family
		tools string
		o     ToolOptions
		want  string
	}{
		{chat.Hermes, `{`, ToolOptions{}, "tools: unexpected EOF"},
		{chat.Hermes, `{}`, ToolOptions{}, "tools: an object, not an array"},
		{chat.Hermes, `[]`, ToolOptions{}, "there is no function to call"},
		{chat.Hermes, `[{"name":"f"}]`, ToolOptions{Only: "g"}, `there is no function "g" to call`},
		{chat.Hermes, `[{"name":"a\"b"}]`, ToolOptions{}, "definition 0 has no name"},
		{chat.Hermes, `[{"name":"f","parameters":{"properties":{"a":{"not":{}}}}}]`, ToolOptions{}, "tools: parameters of f: #/properties/a/not: not is not supported"},
		{chat.Hermes, `[{"name":"f","parameters":{"type":"string"}}]`, ToolOptions{}, "no type is allowed"},
		{chat.CoderXML, `[{"name":"f","parameters":{"properties":{"a<b":{}}}}]`, ToolOptions{}, `property "a<b" has a name that cannot be written`},
		{chat.LFM2, `[{"name":"f","parameters":{"properties":{"a b":{}},"const":{}}}]`, ToolOptions{}, "listed as a whole"},
		{chat.CoderXML, `[{"name":"f","parameters":{"properties":{"a":{"type":["string","integer"],"maxLength":3}}}}]`, ToolOptions{}, "a string with limits beside other types"},
	} {
		_, err := ForTools(familyOf(t, c.f), c.f, json.RawMessage(c.tools), c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ...%s...", c.tools, err, c.want)
		}
	}
}
