package chat

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const parseTools = `[
 {"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
   "city":{"type":"string"},"days":{"type":"integer"},"hot":{"type":"boolean"},"opt":{"type":["string","null"]},
   "list":{"type":"array","items":{"type":"string"}},"where":{"$ref":"#/$defs/place"},"x":{"anyOf":[{"type":"number"},{"type":"null"}]}},
   "$defs":{"place":{"type":"object"}}}}},
 {"type":"function","function":{"name":"ping"}}]`

// sources is a text for each family that its templates have.
var sources = map[Family]string{
	Hermes: "<tool_call></tool_call><think>", CoderXML: "<tool_call><function=x><parameter=y>", GLM: "<tool_call><arg_key>",
	DeepSeek: "<｜tool▁calls▁begin｜>", DSML: "<｜DSML｜function_calls>", Kimi: "<|tool_calls_section_begin|>",
	Harmony: "<|start|><|channel|>final<|message|>", Mistral: "[TOOL_CALLS]", MiniMax: "<minimax:tool_call>", Llama: "<|start_header_id|>",
	Granite: "<|start_of_role|>", LFM2: "<|tool_call_start|>", NemotronJSON: "<TOOLCALL>", Gemma4: "<|tool_call>call:",
}

// templateOf compiles a template that writes messages plainly and has source in a comment.
func templateOf(t testing.TB, source string) *Template {
	t.Helper()
	tpl, err := New("{# "+source+" #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}

func numbered() func() string {
	n := 0
	return func() string { n++; return fmt.Sprint("id", n) }
}

func show(a Answer) string {
	s := ""
	if a.Reasoning != "" {
		s += "R:" + a.Reasoning + "|"
	}
	if a.Content != "" {
		s += "C:" + a.Content + "|"
	}
	for _, c := range a.Calls {
		s += c.Name + c.Arguments + "|"
	}
	return s
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		family     Family
		text, want string
	}{
		{Hermes, "Hello\n", "C:Hello\n|"},
		{Hermes, "<think>\nhm\n</think>\n\nHi", "R:hm|C:Hi|"},
		{Hermes, "\n<think></think>\n\nHi", "C:Hi|"},
		{Hermes, "say <think>x</think>", "C:say <think>x</think>|"},
		{Hermes, "<think>open", "R:open|"},
		{Hermes, "Look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"é\\n\", \"days\": 2}}\n</tool_call>\n", `C:Look.|weather{"city": "é\n", "days": 2}|`},
		{Hermes, "<tool_call>{\"arguments\": {\"city\": \"a\"}, \"name\": \"weather\"}</tool_call>\n<tool_call>\n{\"name\": \"ping\"}\n</tool_call>", `weather{"city": "a"}|ping{}|`},
		{Hermes, "<tool_call>{\"name\": \"ping\", \"arguments\": \"{\\\"a\\\": 1}\"}", `ping{"a": 1}|`},
		{Hermes, "<tool_call>{\"name\": \"ping\", \"arguments\": null}</tool_call> and more", `C:and more|ping{}|`},
		{Hermes, "a <tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call> b", `C:a  b|ping{}|`},
		{Hermes, "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>", `C:<tool_call>{"name": "nobody", "arguments": {}}</tool_call>|`},
		{Hermes, "<tool_call>oh</tool_call><tool_call>{\"name\":\"ping\"}</tool_call>", `C:<tool_call>oh</tool_call>|ping{}|`},
		{Hermes, "<tool_call>{\"name\":\"ping\",\"arguments\":{\"a\":\"x\ny\"}}</tool_call>", `ping{"a":"x\ny"}|`},
		{Hermes, "<tool_call>", "C:<tool_call>|"},
		{Hermes, "<tool_call></tool_call>", "C:<tool_call></tool_call>|"},
		{CoderXML, "Ok\n<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=hot>\nTrue\n</parameter>\n<parameter=list>\n[\"a\"]\n</parameter>\n<parameter=opt>\nnull\n</parameter>\n<parameter=x>\nnone\n</parameter>\n<parameter=where>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>",
			`C:Ok|weather{"city":"New\nYork","days":3,"hot":true,"list":["a"],"opt":null,"x":"none","where":{"a": 1}}|`},
		{CoderXML, "<function=ping>\n</function>\n", `ping{}|`},
		{CoderXML, "<tool_call>\n<function=ping>\n<parameter=n>\n12\n</parameter>\n<parameter=code>\nif a </parameter> b\n\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>", `ping{"n":12,"code":"if a </parameter> b\n"}|ping{}|`},
		{CoderXML, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", `ping{}|`},
		{CoderXML, "<tool_call>\n<function=nobody>\n</function>\n</tool_call>", "C:<tool_call>\n<function=nobody>\n</function>\n</tool_call>|"},
		{GLM, "<think>a</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>", `R:a|weather{"city":"Rom","days":2}|ping{}|`},
		{GLM, "<tool_call>weather<arg_key>opt</arg_key><arg_value>5</arg_value></tool_call>", `weather{"opt":"5"}|`},
		{DeepSeek, "Yes<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"a\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `C:Yes|weather{"city": "a"}|ping{}|`},
		{DeepSeek, "<think>q</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"a\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", `R:q|weather{"city": "a"}|ping{}|`},
		{DSML, "T\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">12</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", `C:T|weather{"city":"12","days":12}|ping{}|`},
		{DSML, "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", `ping{}|`},
		{Kimi, "A<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{\"city\": \"a\"}<|tool_call_end|><|tool_call_begin|>ping:4<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", `C:A|weather{"city": "a"}|ping{}|`},
		{Harmony, "<|channel|>analysis<|message|>Let me.<|end|><|start|>assistant<|channel|>final<|message|>Hi there<|return|>", "R:Let me.|C:Hi there|"},
		{Harmony, "<|channel|>analysis<|message|>I call.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"a\"}<|call|>", `R:I call.|weather{"city":"a"}|`},
		{Harmony, " to=functions.ping<|channel|>commentary json<|message|>{}", `ping{}|`},
		{Harmony, "<|channel|>commentary<|message|>First this.<|end|><|start|>assistant to=functions.ping<|channel|>commentary<|constrain|>json<|message|>{}<|call|>", `C:First this.|ping{}|`},
		{Harmony, "<|channel|>commentary to=browser.find<|message|>{}<|call|>", `C:<|channel|>commentary to=browser.find<|message|>{}|`},
		{Harmony, "Just text.", "C:Just text.|"},
		{Harmony, "<|channel|>final<|message|>a < b<|", "C:a < b<||"},
		{Mistral, "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}, \"id\": \"abcdefghi\"}, {\"name\":\"ping\",\"arguments\":{}}]", `weather{"city": "a"}|ping{}|`},
		{Mistral, "ok[TOOL_CALLS]weather[ARGS]{\"city\": \"[ARGS]\"}[TOOL_CALLS]ping[CALL_ID]x[ARGS]{}", `C:ok|weather{"city": "[ARGS]"}|ping{}|`},
		{MiniMax, "<think>\nw\n</think>\n\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">a b</parameter>\n<parameter name=\"hot\">false</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>", `R:w|weather{"city":"a b","hot":false}|ping{}|`},
		{Llama, "{\"name\": \"weather\", \"parameters\": {\"city\": \"a\"}}", `weather{"city": "a"}|`},
		{Llama, "{\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}", `ping{}|`},
		{Llama, "{\"a\": 1}", "C:{\"a\": 1}|"},
		{Llama, "see {\"name\": \"ping\"}", "C:see {\"name\": \"ping\"}|"},
		{Llama, "<|python_tag|>weather.call(city=\"a\", days=2)", `weather{"city":"a","days":2}|`},
		{Llama, "<|python_tag|>print('x')", "C:<|python_tag|>print('x')|"},
		{Granite, "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}}, {\"name\":\"ping\",\"arguments\":{}}]", `weather{"city": "a"}|ping{}|`},
		{Granite, "<tool_call>[{\"name\": \"ping\", \"arguments\": {}}]", `ping{}|`},
		{LFM2, "Ok <|tool_call_start|>[weather(city='a\\'b', days=-2, hot=True, opt=None, list=['x', (\"y\",)], where={'k': 1.5}), ping()]<|tool_call_end|>done", `C:Ok done|weather{"city":"a'b","days":-2,"hot":true,"opt":null,"list":["x",["y"]],"where":{"k":1.5}}|ping{}|`},
		{LFM2, "<|tool_call_start|>[{\"name\": \"ping\", \"arguments\": {}}]<|tool_call_end|>", `ping{}|`},
		{NemotronJSON, "<think>z</think>\n<TOOLCALL>[{\"name\": \"ping\", \"arguments\": {\"a\": 1}}]</TOOLCALL>", `R:z|ping{"a": 1}|`},
		{Gemma4, "<|channel>thought\nhm\n<channel|>Sure<|tool_call>call:weather{city:<|\"|>a \"b\"<|\"|>,days:2,hot:true,list:[<|\"|>q<|\"|>],where:{k:null}}<tool_call|><|tool_call>call:ping{}<tool_call|>", `R:hm|C:Sure|weather{"city":"a \"b\"","days":2,"hot":true,"list":["q"],"where":{"k":null}}|ping{}|`},
	} {
		tpl := templateOf(t, sources[c.family])
		for _, complete := range []bool{false, true} {
			opts := ParseOptions{Tools: json.RawMessage(parseTools), Complete: complete, NewID: numbered()}
			got, err := tpl.Parse(c.text, opts)
			if err != nil {
				t.Fatal(err)
			}
			if f := Detect(tpl.Source()); f != c.family {
				t.Errorf("detected %v, want %v", f, c.family)
			}
			if show(got) != c.want {
				t.Errorf("%v %q (complete %v):\n got %s\nwant %s", c.family, c.text, complete, show(got), c.want)
			}
			for i := 0; i <= len(c.text); i++ {
				if a := parsePieces(t, tpl, opts, c.text[:i], c.text[i:]); !reflect.DeepEqual(a, clean(got)) {
					t.Fatalf("%v %q cut at %d (complete %v):\n got %s\nwant %s", c.family, c.text, i, complete, show(a), show(got))
				}
			}
		}
	}
}

// TestStart: the end of the prompt tells where an answer begins.
func TestStart(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		source, prompt, text, want string
		reasoning                  ReasoningFormat
	}{
		{"<tool_call>", "[user]x[assistant]<think>\n", "\nhm\n</think>\n\nHi", "R:hm|C:Hi|", ReasoningAuto},
		{"<tool_call>", "[user]x[assistant]<think>\nfirst ", "then</think>Hi", "R:then|C:Hi|", ReasoningAuto},
		{"<tool_call>", "[user]x[assistant]<think>\n\n</think>\n\n", "\nHi", "C:Hi|", ReasoningAuto},
		{"<tool_call>", "[user]<think>[assistant]", "Hi</think>", "C:Hi</think>|", ReasoningAuto},
		{"<tool_call>", "[user]x[assistant]Once", " upon", "C: upon|", ReasoningAuto},
		{"<tool_call>", "[user]x[assistant]<think>", "a <tool_call>{\"name\":\"ping\"}</tool_call></think> b", "R:a <tool_call>{\"name\":\"ping\"}</tool_call>|C:b|", ReasoningAuto},
		{"<tool_call>", "[user]x[assistant]<think>", "a</think>\nb", "C:a</think>\nb|", ReasoningNone},
		{"<tool_call>", "[user]x[assistant]", "<think>a</think>\nb", "C:<think>a</think>\nb|", ReasoningNone},
		{"<tool_call>", "[user]x[assistant]", "<think>a</think>\nb", "R:a|C:<think>a</think>\nb|", ReasoningLegacy},
		{"<tool_call>", "[user]x[assistant]<think>", "a</think>\nb", "R:a|C:<think>a</think>\nb|", ReasoningLegacy},
		{"[TOOL_CALLS] [THINK]", "[user]x[assistant]", "so [THINK]a[/THINK]b", "R:a|C:so b|", ReasoningAuto},
		{"<|start_of_role|> Here is my thought process:", "[user]x[assistant]", "Here is my thought process: a\n\nHere is my response: b", "R:a|C:b|", ReasoningAuto},
		{"<tool_call></tool_call></think><response>", "[user]x[assistant]<think>", "a\n</think>\n\n<response>\nb\n</response>\n", "R:a|C:b|", ReasoningAuto},
		{"<|channel|>final<|message|>", "[user]x[assistant]<|channel|>analysis<|message|>", "a<|end|><|start|>assistant<|channel|>final<|message|>b", "R:a|C:b|", ReasoningAuto},
		{"<|channel|>final<|message|>", "[user]x[assistant]", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "C:<|channel|>analysis<|message|>a<|end|>b|", ReasoningNone},
	} {
		tpl := templateOf(t, c.source)
		opts := ParseOptions{Prompt: c.prompt, Reasoning: c.reasoning, Tools: json.RawMessage(parseTools), NewID: numbered()}
		for i := 0; i <= len(c.text); i++ {
			if got := show(parsePieces(t, tpl, opts, c.text[:i], c.text[i:])); got != c.want {
				t.Errorf("%q %q cut at %d:\n got %q\nwant %q", c.prompt, c.text, i, got, c.want)
				break
			}
		}
	}
	// The templates of the fixtures, with thoughts on and off, and with thoughts' tag in the question.
	for name, want := range map[string][2]bool{"coder-like": {true, false}, "qwen-like": {false, false}, "protocol-random": {false, false}} {
		for i, think := range []*bool{&yes, &no} {
			tpl := readTemplate(t, name, testSpecial)
			parts, err := tpl.Render(Conversation{Messages: []Message{{Role: "user", Content: "what is <think>"}}, AddGenerationPrompt: true, EnableThinking: think})
			if err != nil {
				t.Fatal(err)
			}
			p, err := tpl.NewParser(ParseOptions{Prompt: joined(parts)})
			if err != nil {
				t.Fatal(err)
			}
			if p.InReasoning() != want[i] {
				t.Errorf("%s, thinking %v: in thoughts %v", name, *think, p.InReasoning())
			}
		}
	}
}

// TestParserDoor: names, faults and misuse.
func TestParserDoor(t *testing.T) {
	for _, f := range Families() {
		if g, err := FamilyByName(f.String()); g != f || err != nil {
			t.Errorf("%v is read as %v, %v", f, g, err)
		}
		var marks []string
		for _, o := range f.openers() {
			marks = append(marks, o.text)
		}
		for _, m := range marks { // else the longer one would depend on where the text is cut
			for _, n := range marks {
				if m != n && strings.Contains(n, m) && m != "{" {
					t.Errorf("%v: opener %q is within %q", f, m, n)
				}
			}
		}
	}
	if _, err := FamilyByName("nobody"); err == nil || !strings.Contains(err.Error(), "hermes, coder-xml") {
		t.Error(err)
	}
	for name, want := range map[string]ReasoningFormat{"": ReasoningAuto, "auto": ReasoningAuto, "deepseek": ReasoningAuto, "none": ReasoningNone, "deepseek-legacy": ReasoningLegacy} {
		if got, err := ReasoningByName(name); got != want || err != nil {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if _, err := ReasoningByName("loud"); err == nil {
		t.Error("reasoning_format loud passes")
	}
	tpl := templateOf(t, "")
	for tools, want := range map[string]string{`{`: "tools:", `[{"function":{}}]`: "definition 0 has no name", `[{"function":{"name":"f","parameters":3}}]`: "parameters of"} {
		if _, err := tpl.NewParser(ParseOptions{Tools: json.RawMessage(tools)}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tools, err)
		}
	}
	forced := Kimi
	p, err := tpl.NewParser(ParseOptions{Family: &forced, AnyName: true})
	if err != nil {
		t.Fatal(err)
	}
	d := p.Feed("<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{\"a\"")
	if len(d) != 1 || d[0].Call == nil || d[0].Call.ID != "functions.f:7" || d[0].Call.Arguments != `{"a"` || !p.InCall() || p.Family() != Kimi {
		t.Errorf("%+v", d)
	}
	p.Feed(":1}")
	p.Close()
	if p.Calls() != 1 || p.Close() != nil {
		t.Error("closing twice")
	}
	defer func() {
		if recover() == nil {
			t.Error("Feed after Close passes")
		}
	}()
	p.Feed("x")
}

// TestLongAnswer: the work grows with the text, not with its square.
func TestLongAnswer(t *testing.T) {
	long := strings.Repeat("word <b> | ", 20_000)
	for f, source := range sources {
		tpl := templateOf(t, source)
		s := tpl.Syntax(f)
		call, err := s.Write([]ToolCall{{Name: "f", Arguments: `{"text":` + quoteJSON(long) + `}`}})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{long, "<think>" + long, call} {
			p, err := tpl.NewParser(ParseOptions{AnyName: true})
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			for i := 0; i < len(text); i += 5 {
				p.Feed(text[i:min(i+5, len(text))])
			}
			p.Close()
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("%v: %d bytes took %v", f, len(text), d)
			} else if testing.Verbose() {
				t.Logf("%v: %d bytes, %v a piece", f, len(text), d/time.Duration(len(text)/5))
			}
			if text == call && p.Calls() != 1 {
				t.Errorf("%v: %d calls", f, p.Calls())
			}
		}
	}
}

// clean forgets ids, which the parser draws.
func clean(a Answer) Answer {
	calls := a.Calls
	a.Calls = nil
	for _, c := range calls {
		if strings.HasPrefix(c.ID, "id") || strings.HasPrefix(c.ID, "call_") || len(c.ID) == 9 {
			c.ID = ""
		}
		a.Calls = append(a.Calls, c)
	}
	return a
}

type fataler interface{ Fatalf(string, ...any) }

func parsePieces(t fataler, tpl *Template, opts ParseOptions, pieces ...string) Answer {
	p, err := tpl.NewParser(opts)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var a Answer
	add := func(all []Delta) {
		for _, d := range all {
			fields := 0
			for _, set := range []bool{d.Content != "", d.Reasoning != "", d.Call != nil} {
				if set {
					fields++
				}
			}
			if fields != 1 {
				t.Fatalf("delta %+v has %d fields", d, fields)
			}
			if c := d.Call; c != nil && (c.Index >= len(a.Calls)) != (c.Name != "" && c.ID != "") {
				t.Fatalf("call delta %+v after %d calls", *c, len(a.Calls))
			}
			a.Add(d)
		}
	}
	for _, s := range pieces {
		add(p.Feed(s))
	}
	add(p.Close())
	return clean(a)
}

// fragments of answers, sound and broken, of all families.
var fragments = func() []string {
	all := []string{"Hello", " ", "\n", "\n\n", "é", "｜", "<", "<|", "{", "}", "[", "]", "\"", "'", ",", ":", "(", ")", "=", "1", "-2.5e3", "true", "null", "None", "\\", "\\n", "\\u00e9", "\x00",
		`{"name": "weather", "arguments": {"city": "a"}}`, `{"name": "ping"`, `"arguments": {`, `{"a": [1, {"b": null}]}`, `"x"`, "weather", "ping", "nobody", "functions.ping:0", "call:ping", "```json\n", "```",
		"to=functions.ping", "assistant", "analysis", "commentary", "final", "function", "city", "days", "<response>", "</response>", "<parameter=city>", "</parameter>", "<function=weather>", "</function>", "<function=",
		`<invoke name="weather">`, "</invoke>", `<parameter name="city">`, `<｜DSML｜invoke name="ping">`, "</｜DSML｜invoke>", `<｜DSML｜parameter name="days" string="false">`, "</｜DSML｜parameter>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
		"Here is my thought process:", "Here is my response:", "<|channel>thought\n", "\xe2\x80", "\xff"}
	for _, f := range Families() {
		all = append(all, f.Markers()...)
		s := f.syntax(sources[f])
		all = append(all, s.Begin+s.Open, s.Begin+s.Open+"weather"+s.Sep, s.Close+s.End, s.Between)
		if text, err := s.Write([]ToolCall{{Name: "weather", Arguments: `{"city":"a","days":2}`}}); err == nil {
			all = append(all, text)
		}
	}
	return all
}()

// optionsOf draws options; sources with and without thoughts.
func optionsOf(t *rapid.T) (Family, ParseOptions) {
	f := Family(rapid.IntRange(0, len(familyNames)-1).Draw(t, "family"))
	return f, ParseOptions{
		Reasoning: ReasoningFormat(rapid.IntRange(0, 2).Draw(t, "reasoning")),
		Tools:     json.RawMessage(parseTools),
		AnyName:   rapid.Bool().Draw(t, "any"),
		NoCalls:   rapid.IntRange(0, 5).Draw(t, "none") == 0,
		OneCall:   rapid.IntRange(0, 3).Draw(t, "one") == 0,
		Complete:  rapid.Bool().Draw(t, "complete"),
		Prompt:    rapid.SampledFrom([]string{"", "[user]x[assistant]", "[user]x[assistant]<think>\n", "[user]<think>[assistant]", "[assistant]<think>a</think>b", "[assistant]assistant"}).Draw(t, "prompt"),
	}
}

// many checks a property 2000 times.
func many(t *testing.T, property func(*rapid.T)) {
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { rapid.Check(t, property) })
	}
}

// TestCuts: however an answer is cut, the sum of the deltas is the same, and it comes without a panic.
func TestCuts(t *testing.T) {
	templates := map[Family]*Template{}
	for f, s := range sources {
		templates[f] = templateOf(t, s)
	}
	many(t, func(t *rapid.T) {
		f, opts := optionsOf(t)
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 14).Draw(t, "text"), "")
		opts.NewID = func() string { return "id" }
		want := parsePieces(t, templates[f], opts, text)
		var pieces []string
		rest := text
		if rapid.Bool().Draw(t, "bytes") {
			for i := range len(text) {
				pieces = append(pieces, text[i:i+1])
			}
			rest = ""
		}
		for rest != "" {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := parsePieces(t, templates[f], opts, pieces...); !reflect.DeepEqual(got, want) {
			opts.Tools, opts.NewID = nil, nil
			t.Fatalf("%v %+v %q cut %q:\n got %s\nwant %s", f, opts, text, pieces, show(got), show(want))
		}
		if opts.NoCalls && len(want.Calls) > 0 || opts.OneCall && len(want.Calls) > 1 {
			t.Fatalf("%d calls", len(want.Calls))
		}
		for i, c := range want.Calls {
			whole := json.Valid([]byte(c.Arguments)) && strings.HasPrefix(strings.TrimSpace(c.Arguments), "{")
			if opts.Complete && !whole {
				t.Fatalf("call %d %+v is not whole", i, c)
			}
		}
		if opts.Reasoning == ReasoningNone && want.Reasoning != "" {
			t.Fatalf("reasoning %q", want.Reasoning)
		}
	})
}

// TestWritten: what Syntax writes is read back, with text and thoughts around it.
func TestWritten(t *testing.T) {
	templates := map[Family]*Template{}
	for f, s := range sources {
		templates[f] = templateOf(t, s)
	}
	values := rapid.SampledFrom([]string{`"a"`, `"two\nlines \"quoted\" \\ back"`, `"é 😀"`, `""`, `12`, `-1.5`, `true`, `false`, `null`, `[1,"x",[null]]`, `{"k":{"l":[]}}`, `"</parameter> x"`, `"{"`})
	many(t, func(t *rapid.T) {
		f := Family(rapid.IntRange(0, len(familyNames)-1).Draw(t, "family"))
		s := templates[f].Syntax(f)
		n := rapid.IntRange(1, 3).Draw(t, "calls")
		if s.Single {
			n = 1
		}
		var calls []ToolCall
		for range n {
			args := "{"
			for j := range rapid.IntRange(0, 3).Draw(t, "args") {
				if j > 0 {
					args += ","
				}
				args += fmt.Sprintf("%q:%s", fmt.Sprint("key_", j), values.Draw(t, "value"))
			}
			calls = append(calls, ToolCall{Name: rapid.SampledFrom([]string{"f", "get_it", "a-b.c"}).Draw(t, "name"), Arguments: args + "}"})
		}
		text, err := s.Write(calls)
		if err != nil {
			t.Fatal(err)
		}
		before := ""
		if f != Harmony && !s.TriggersOnlyFirst {
			before = rapid.SampledFrom([]string{"", "Let me see.\n", "<think>\nhm\n</think>\n\n", "<think>x</think>ok "}).Draw(t, "before")
			if f == Gemma4 {
				before = strings.NewReplacer("<think>", "<|channel>thought\n", "</think>", "<channel|>").Replace(before)
			}
		}
		opts := ParseOptions{AnyName: true, Complete: rapid.Bool().Draw(t, "complete")}
		cut := rapid.IntRange(0, len(before+text)).Draw(t, "cut")
		got := parsePieces(t, templates[f], opts, (before + text)[:cut], (before + text)[cut:])
		if len(got.Calls) != len(calls) {
			t.Fatalf("%v %q: %s", f, before+text, show(got))
		}
		for i, c := range got.Calls {
			var a, b any
			if err := json.Unmarshal([]byte(c.Arguments), &a); err != nil {
				t.Fatalf("%v %q: %v", f, c.Arguments, err)
			}
			_ = json.Unmarshal([]byte(calls[i].Arguments), &b)
			if c.Name != calls[i].Name || !reflect.DeepEqual(a, b) {
				t.Fatalf("%v %q:\n got %+v\nwant %+v", f, before+text, c, calls[i])
			}
		}
		if strings.ContainsAny(got.Content, "<>{}[]") {
			t.Fatalf("%v %q: markers in the content %q", f, before+text, got.Content)
		}
	})
}

// TestNothingLost: each word of an answer is in the content, the thoughts or a call; and with all parsing off, the content
// is the text itself.
func TestNothingLost(t *testing.T) {
	templates := map[Family]*Template{}
	for f, s := range sources {
		templates[f] = templateOf(t, s)
	}
	many(t, func(t *rapid.T) {
		f, opts := optionsOf(t)
		opts.NewID = func() string { return "id" }
		parts := rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 14).Draw(t, "text")
		var words []string
		for i := range parts {
			if rapid.Bool().Draw(t, "word") {
				words = append(words, fmt.Sprintf("#%d#", i))
				parts[i] += words[len(words)-1]
			}
		}
		text := strings.Join(parts, "")
		a := parsePieces(t, templates[f], opts, text)
		all := a.Content + a.Reasoning
		for _, c := range a.Calls {
			all += c.ID + c.Name + c.Arguments
		}
		for _, w := range words {
			if !strings.Contains(all, w) {
				t.Fatalf("%v: %s of %q is lost: %s", f, w, text, show(a))
			}
		}
		if f != Harmony {
			opts.NoCalls, opts.Reasoning, opts.Prompt = true, ReasoningNone, ""
			if a := parsePieces(t, templates[f], opts, text); a.Content != text {
				t.Fatalf("%v: %q became %q", f, text, a.Content)
			}
		}
	})
}
