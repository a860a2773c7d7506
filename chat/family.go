package chat

import (
	"fmt"
	"slices"
	"strings"
)

// Family is the way in which a model writes thoughts and tool calls.
type Family int

// The families, each with the models that write so.
const (
	Hermes       Family = iota // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen3, Ling, Ring, ERNIE, Granite 4; also the default
	CoderXML                   // <function=NAME><parameter=KEY>: Qwen3-Coder, Qwen3.5 to 3.8, Nemotron 3
	GLM                        // <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>
	DeepSeek                   // <｜tool▁calls▁begin｜>: R1, V3, V3.1
	DSML                       // <｜DSML｜invoke name="NAME">: DeepSeek V3.2, V4
	Kimi                       // <|tool_calls_section_begin|>: Kimi K2
	Harmony                    // <|channel|>commentary to=functions.NAME<|message|>{...}<|call|>: gpt-oss
	Mistral                    // [TOOL_CALLS][{...}] or [TOOL_CALLS]NAME[ARGS]{...}
	MiniMax                    // <minimax:tool_call><invoke name="NAME"><parameter name="KEY">
	Llama                      // an answer that is one JSON object, or <|python_tag|>
	Granite                    // <|tool_call|>[{...}] or <tool_call>[{...}]: Granite 3
	LFM2                       // <|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>
	NemotronJSON               // <TOOLCALL>[{...}]</TOOLCALL>: Nemotron Nano 2
	Gemma4                     // <|tool_call>call:NAME{KEY:VALUE}<tool_call|>
)

var familyNames = []string{"hermes", "coder-xml", "glm", "deepseek", "dsml", "kimi", "harmony", "mistral", "minimax", "llama",
	"granite", "lfm2", "nemotron-json", "gemma4"}

// Families are all there are.
func Families() []Family {
	all := make([]Family, len(familyNames))
	for i := range all {
		all[i] = Family(i)
	}
	return all
}

func (f Family) String() string {
	if f < 0 || int(f) >= len(familyNames) {
		return fmt.Sprintf("family %d", int(f))
	}
	return familyNames[f]
}

// FamilyByName is the inverse of String.
func FamilyByName(name string) (Family, error) {
	if i := slices.Index(familyNames, name); i >= 0 {
		return Family(i), nil
	}
	return 0, fmt.Errorf("output family %s is none of %s", clip(name), strings.Join(familyNames, ", "))
}

// Detect finds the family in the text of a template; Hermes if nothing speaks for another.
func Detect(source string) Family {
	has := func(all ...string) bool {
		for _, s := range all {
			if !strings.Contains(source, s) {
				return false
			}
		}
		return true
	}
	switch {
	case has("<|channel|>", "<|message|>"):
		return Harmony
	case has("<|tool_call>"), has("<|channel>"), has("<|turn>"):
		return Gemma4
	case has("｜DSML｜"), has("dsml_token"):
		return DSML
	case has("<｜tool▁call"), has("<｜Assistant｜>"):
		return DeepSeek
	case has("<|tool_calls_section_begin|>"), has("<|im_middle|>"):
		return Kimi
	case has("<minimax:tool_call>"), has("]~b]"):
		return MiniMax
	case has("[TOOL_CALLS]"):
		return Mistral
	case has("<arg_key>"):
		return GLM
	case has("<function=", "<parameter="):
		return CoderXML
	case has("<|tool_call_start|>"), has("<|tool_list_start|>"), has("List of tools: ["):
		return LFM2
	case has("<TOOLCALL>"):
		return NemotronJSON
	case has("<|tool_call|>"), has("<|start_of_role|>") && !has("</tool_call>"):
		return Granite
	case has("<tool_call>"):
		return Hermes
	case has("<|python_tag|>"), has("<|start_header_id|>"):
		return Llama
	}
	return Hermes
}

// tags are the two ends of thoughts. Unless they are control tokens, which stand anywhere, thoughts begin an answer or
// follow a call: elsewhere the model speaks of the tag.
type tags struct {
	open, close string
	anywhere    bool
}

var thinkTags = tags{"<think>", "</think>", false}

// thoughts are the tags of reasoning for a model with this template.
func (f Family) thoughts(source string) tags {
	switch {
	case f == Gemma4:
		return tags{"<|channel>thought\n", "<channel|>", true}
	case strings.Contains(source, "[THINK]"):
		return tags{"[THINK]", "[/THINK]", true}
	case f == Granite && strings.Contains(source, "Here is my thought process:"):
		return tags{"Here is my thought process:", "Here is my response:", false}
	}
	return thinkTags
}

// wrapped tells whether an answer may stand between <response> and </response> after the thoughts.
func (f Family) wrapped(source string) bool {
	return (f == Hermes || f == Granite) && strings.Contains(source, "<response>") && strings.Contains(source, "</think>")
}

// opener is a text that begins calls, and who reads on behind it.
type opener struct {
	text    string
	atStart bool // only as the first visible text of an answer
	read    func() callReader
}

func (f Family) openers() []opener {
	object := func(closer string) func() callReader {
		return func() callReader { return &objectReader{closer: closer} }
	}
	switch f {
	case Hermes:
		return []opener{{"<tool_call>", false, object("</tool_call>")}}
	case Granite:
		return []opener{{"<|tool_call|>", false, object("")}, {"<tool_call>", false, object("</tool_call>")}}
	case NemotronJSON:
		return []opener{{"<TOOLCALL>", false, object("</TOOLCALL>")}}
	case Llama:
		inside := func() callReader { return &objectReader{state: objectField} }
		return []opener{{"<|python_tag|>", false, func() callReader { return &pythonReader{tag: true} }}, {"{", true, inside}}
	case LFM2:
		return []opener{{"<|tool_call_start|>", false, func() callReader { return &pythonReader{} }}}
	case CoderXML, MiniMax, DSML, GLM:
		var all []opener
		for _, t := range taggedForms[f] {
			state := taggedCall
			if t.callOpen == "" {
				state = taggedName
			}
			all = append(all, opener{t.open, false, func() callReader { return &taggedReader{form: t, state: state} }})
			if t.alone {
				all = append(all, opener{t.callOpen, false, func() callReader { return &taggedReader{form: t, state: taggedName} }})
			}
		}
		return all
	case DeepSeek:
		call := func() callReader { return &framedReader{form: &deepseekForm, state: framedName} }
		return []opener{{deepseekForm.open, false, func() callReader { return &framedReader{form: &deepseekForm} }}, {deepseekForm.callOpen, false, call}}
	case Kimi:
		call := func() callReader { return &framedReader{form: &kimiForm, state: framedName} }
		return []opener{{kimiForm.open, false, func() callReader { return &framedReader{form: &kimiForm} }}, {kimiForm.callOpen, false, call}}
	case Mistral:
		return []opener{{mistralForm.callOpen, false, func() callReader { return &framedReader{form: &mistralForm, state: framedName} }}}
	case Gemma4:
		return []opener{{"<|tool_call>", false, func() callReader { return &gemmaReader{} }}}
	case Harmony:
		return nil // its channels are read by a machine of their own
	}
	panic("chat: no openers for " + f.String())
}

// Markers are the control tokens whose text a parser of this family needs to see: the detokenizer must show them.
func (f Family) Markers() []string {
	out := []string{"<think>", "</think>"}
	switch f {
	case Hermes:
		out = append(out, "<tool_call>", "</tool_call>", "<response>", "</response>")
	case CoderXML:
		out = append(out, "<tool_call>", "</tool_call>")
	case GLM:
		out = append(out, "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
	case DeepSeek:
		out = append(out, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
	case DSML:
		out = append(out, "｜DSML｜")
	case Kimi:
		out = append(out, "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>")
	case Harmony:
		out = []string{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"}
	case Mistral:
		out = append(out, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
	case MiniMax:
		out = append(out, "<minimax:tool_call>", "</minimax:tool_call>")
	case Llama:
		out = append(out, "<|python_tag|>")
	case Granite:
		out = append(out, "<|tool_call|>", "<tool_call>", "</tool_call>")
	case LFM2:
		out = append(out, "<|tool_call_start|>", "<|tool_call_end|>")
	case NemotronJSON:
		out = append(out, "<TOOLCALL>", "</TOOLCALL>")
	case Gemma4:
		out = []string{"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", `<|"|>`}
	}
	return out
}

// Stops are texts that end an answer of this family besides the vocabulary's own end tokens.
func (f Family) Stops() []string {
	switch f {
	case GLM:
		return []string{"<|user|>", "<|observation|>"}
	case Gemma4:
		return []string{"<|tool_response>"}
	}
	return nil
}
