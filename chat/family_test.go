package chat

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const familyTools = `[{"type":"function","function":{"name":"weather","description":"Weather","parameters":{"type":"object","properties":{
 "city":{"type":"string"},"days":{"type":"integer"},"hot":{"type":"boolean"},"list":{"type":"array"},"where":{"type":"object"}}}}},
 {"type":"function","function":{"name":"ping","description":"Ping","parameters":{"type":"object","properties":{}}}}]`

// TestOwnTurns: what a template writes for an answer with thoughts, text and calls is read back from it.
func TestOwnTurns(t *testing.T) {
	args := `{"city":"a\nb \"c\"","days":2,"hot":true,"list":["x",1],"where":{"k":1.5}}`
	for name, want := range map[string]Family{
		"bailing-like": Hermes, "coder-like": CoderXML, "deepseek-like": DeepSeek, "ernie-like": Hermes, "gemma-like": Gemma4, "glm-like": GLM,
		"granite-like": Hermes, "harmony-like": Harmony, "kimi-like": Kimi, "lfm-like": LFM2, "llama-like": Llama, "minimax-like": MiniMax,
		"mistral-like": Mistral, "nemotron-like": NemotronJSON, "protocol-random": Hermes, "qwen-like": Hermes,
	} {
		tpl := readTemplate(t, name, testSpecial)
		if f := Detect(tpl.Source()); f != want {
			t.Errorf("%s: detected %v, want %v", name, f, want)
		}
		user := Message{Role: "user", Content: "hi <think>"}
		made := Answer{Content: "Let me.", Reasoning: "I think so", Calls: []ToolCall{{ID: "c1", Name: "weather", Arguments: args}, {ID: "c2", Name: "ping", Arguments: "{}"}}}
		switch name {
		case "deepseek-like", "ernie-like", "granite-like", "lfm-like", "nemotron-like", "mistral-like", "llama-like", "protocol-random", "coder-like": // no thoughts in history
			made.Reasoning = ""
		}
		switch name {
		case "harmony-like": // one call, and thoughts or text
			made.Content, made.Calls = "", made.Calls[:1]
		case "llama-like": // one call, nothing else
			made.Content, made.Calls = "", made.Calls[:1]
		case "mistral-like":
			made.Content = ""
		case "kimi-like":
			made.Calls[0].ID, made.Calls[1].ID = "functions.weather:0", "functions.ping:1"
		case "lfm-like": // a string goes between quotes as it stands
			made.Calls[0].Arguments = strings.Replace(args, `\n`, " ", 1)
		}
		think := made.Reasoning != ""
		conv := Conversation{Messages: []Message{user}, Tools: json.RawMessage(familyTools), AddGenerationPrompt: true, EnableThinking: &think, Now: goldenNow}
		prompt, err := tpl.Render(conv)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		conv.AddGenerationPrompt = false
		conv.Messages = append(conv.Messages, Message{Role: "assistant", Content: made.Content, Reasoning: made.Reasoning, ToolCalls: made.Calls})
		history, err := tpl.Render(conv)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The answer is where the history leaves the prompt; a head that opens thoughts may not be in it.
		text := joined(history)
		head := joined(prompt)
		for head != "" && !strings.HasPrefix(text, head) {
			head = strings.TrimSuffix(head, "\n")
			for _, tag := range []string{"<think>", "</think>"} {
				head = strings.TrimSuffix(head, tag)
			}
			if !strings.HasSuffix(head, "\n") && !strings.HasPrefix(text, head) && !strings.HasSuffix(head, ">") {
				break
			}
		}
		answer, ok := strings.CutPrefix(text, head)
		if !ok {
			t.Errorf("%s: the history %q does not begin with the prompt %q", name, text, head)
			continue
		}
		for _, end := range []string{"\n", "<|im_end|>", "<|role_end|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "<|end_of_sentence|>", "[e~[", "</s>", "<|eot_id|>", "<|tool_response>", "<SPECIAL_12>"} {
			answer = strings.TrimSuffix(answer, end)
		}
		for _, complete := range []bool{false, true} {
			got := parsePieces(t, tpl, ParseOptions{Prompt: head, Tools: json.RawMessage(familyTools), Complete: complete}, strings.SplitAfter(answer, "a")...)
			if got.Content != made.Content || got.Reasoning != made.Reasoning || len(got.Calls) != len(made.Calls) {
				t.Errorf("%s: %q is read as %s", name, answer, show(got))
				continue
			}
			for i, c := range got.Calls {
				var a, b any
				if err := json.Unmarshal([]byte(c.Arguments), &a); err != nil {
					t.Errorf("%s: %q: %v", name, c.Arguments, err)
				}
				_ = json.Unmarshal([]byte(made.Calls[i].Arguments), &b)
				if c.Name != made.Calls[i].Name || !reflect.DeepEqual(a, b) {
					t.Errorf("%s: %q is read as %+v", name, answer, c)
				}
			}
		}
	}
}

// TestGuards: messages that published templates refuse are rendered.
func TestGuards(t *testing.T) {
	const source = `{% for message in messages %}
{%- if "<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content %}
    {{- raise_exception("marks") }}
{%- endif %}
{%- if (message['content'] is none or message['content'] == '' or message['content']|length == 0) and (message['tool_calls'] is not defined or message['tool_calls']|length == 0) %}
    {{- raise_exception('empty') }}
{%- endif %}
{%- if message.content == "bad" %}{{ raise_exception('bad') }}{% endif -%}
[{{ message.content }}|{{ message.thinking }}]
{%- endfor %}`
	tpl, err := New(source, Options{Special: []string{"<|channel|>"}})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := tpl.Render(Conversation{Messages: []Message{{Role: "user", Content: "<|channel|>analysis<|message|>x"}, {Role: "assistant", Reasoning: "r"}}})
	if err != nil || joined(parts) != "[<|channel|>analysis<|message|>x|][|r]" {
		t.Errorf("%q, %v", joined(parts), err)
	}
	if len(parts) < 2 || !parts[1].User {
		t.Errorf("%+v: the mark of the message is not the user's", parts)
	}
	if _, err := tpl.Render(Conversation{Messages: []Message{{Role: "user", Content: "bad"}}}); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Error(err)
	}
	if tpl.Source() != source {
		t.Error("Source is not the model's")
	}
}

// TestSparseTools: a template that needs descriptions and parameters gets them, one that prints tools as they are does not.
func TestSparseTools(t *testing.T) {
	conv := Conversation{Messages: []Message{{Role: "user", Content: "x"}}, Tools: json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)}
	for source, want := range map[string]string{
		`{% for t in tools %}{{ "// " + t.function.description + t.function.name + t.function.parameters.properties | tojson }}{% endfor %}`: "// f{}",
		`{% for t in tools %}{{ t | tojson }}{% endfor %}`: `{"type": "function", "function": {"name": "f"}}`,
	} {
		tpl, err := New(source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		parts, err := tpl.Render(conv)
		if err != nil || joined(parts) != want {
			t.Errorf("%s: %q, %v", source, joined(parts), err)
		}
	}
}

// TestFormatStaysInput: a character made of a number that was read from the input is the input's.
func TestFormatStaysInput(t *testing.T) {
	tpl, err := New(`{{ '%c' | format(messages[0].content | int(base=16)) }}|x|{{ '%s' | format(messages[0].content) }}`, Options{Special: []string{"<|x|"}})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := tpl.Render(Conversation{Messages: []Message{{Role: "user", Content: "3c"}}})
	if err != nil || len(parts) == 0 || !parts[0].User || joined(parts) != "<|x|3c" {
		t.Errorf("%+v, %v", parts, err)
	}
}

func TestMoreCaps(t *testing.T) {
	for name, want := range map[string][2]bool{"qwen-like": {true, true}, "harmony-like": {false, true}, "llama-like": {false, false}, "tiny-moe": {false, false}, "mistral-like": {true, false}} {
		caps := readTemplate(t, name, testSpecial).Caps()
		if got := [2]bool{caps.ParallelCalls, caps.Thinking}; got != want {
			t.Errorf("%s: parallel calls, thinking: %v, want %v", name, got, want)
		}
	}
}

// TestContinue: the turn of a last message stays open, and the parser knows where its answer begins.
func TestContinue(t *testing.T) {
	user := Message{Role: "user", Content: "q"}
	for _, c := range []struct {
		template, tail, text, want string
		last                       Message
	}{
		{"qwen-like", "assistant\n<think>\n\n</think>\n\nOnce <|im_end|>", " upon", "C: upon|", Message{Content: "Once <|im_end|>"}},
		{"qwen-like", "assistant\n<think>\nhm", " so\n</think>\n\nYes", "R: so|C:Yes|", Message{Reasoning: "hm"}},
		{"qwen-like", "assistant\n<think>\nhm\n</think>\n\nYes", " <think>", "C: <think>|", Message{Reasoning: "hm", Content: "Yes"}},
		{"coder-like", "\n<think>\n\nhm", " so</think>Yes", "R: so|C:Yes|", Message{Reasoning: "hm"}},
		{"coder-like", "<think>\n\n</think>\n\nOnce", " upon", "C: upon|", Message{Content: "Once"}},
		{"harmony-like", "<|start|>assistant<|channel|>final<|message|>Once", " upon", "C: upon|", Message{Content: "Once"}},
		{"harmony-like", "assistant<|channel|>analysis<|message|>hm", " so<|end|><|start|>assistant<|channel|>final<|message|>Yes", "R: so|C:Yes|", Message{Reasoning: "hm"}},
		{"gemma-like", "<|turn>model\n<|channel>thought\nhm", " so\n<channel|>Yes", "R: so|C:Yes|", Message{Reasoning: "hm"}},
	} {
		tpl := readTemplate(t, c.template, testSpecial)
		c.last.Role = "assistant"
		parts, err := tpl.Render(Conversation{Messages: []Message{user, c.last}, Continue: true, Now: goldenNow})
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		if !strings.HasSuffix(strings.ReplaceAll(joined(parts), "\n\n\n", "\n\n"), c.tail) {
			t.Errorf("%s: %q does not end with %q", c.template, joined(parts), c.tail)
		}
		if n := control(parts, []string{"<|im_end|>"}); strings.HasPrefix(c.template, "qwen") && n != 1 {
			t.Errorf("%s: %d ends of turns in %+v", c.template, n, parts)
		}
		if got := show(parsePieces(t, tpl, ParseOptions{Prompt: joined(parts)}, c.text)); got != c.want {
			t.Errorf("%s: %q is read as %q, want %q", c.template, c.text, got, c.want)
		}
	}
	tpl := readTemplate(t, "qwen-like", nil)
	for want, msgs := range map[string][]Message{
		"message 1: role user": {user, user}, "cannot be continued": {user, {Role: "assistant", ToolCalls: []ToolCall{{Name: "f"}}}}, "nothing before": {{Role: "assistant", Content: "x"}},
	} {
		if _, err := tpl.Render(Conversation{Messages: msgs, Continue: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
