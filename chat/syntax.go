package chat

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Syntax tells how a family writes calls, for whoever makes a model write one: an answer's calls are Begin, the calls with
// Between in between, End. A call is Open, the name, Number and the call's number if Number is not empty, Sep, the
// arguments, Close. The parser reads what Write writes.
type Syntax struct {
	Begin, End        string
	Open, Sep, Close  string
	Between           string // "" with Single: one call is all there can be
	Single            bool
	Number            string
	Arguments         ArgumentStyle
	Param             string // ArgumentsTagged: before a key
	TextSep, JSONSep  string // between the key and a value that is a string, or of another type
	ParamEnd          string
	Triggers          []string // texts by which calls are recognised within an answer
	TriggersOnlyFirst bool     // they are only as an answer's first visible text
}

// ArgumentStyle is how the arguments of a call are spelt.
type ArgumentStyle uint8

// The spellings.
const (
	ArgumentsJSON   ArgumentStyle = iota // a JSON object
	ArgumentsTagged                      // for each parameter Param, key, TextSep or JSONSep, value, ParamEnd; strings bare, the rest JSON
	ArgumentsGemma                       // a JSON object with bare keys, and <|"|> on both sides of a string without escapes
	ArgumentsPython                      // KEY=VALUE joined by commas, values as Python literals
)

// Syntax is how a model with this template writes calls, read as family f.
func (t *Template) Syntax(f Family) Syntax {
	s := f.syntax(t.source)
	for _, o := range f.openers() {
		s.Triggers = append(s.Triggers, o.text)
		s.TriggersOnlyFirst = s.TriggersOnlyFirst || o.atStart
	}
	if f == Harmony {
		s.Triggers = []string{"to=functions."}
	}
	return s
}

func (f Family) syntax(source string) Syntax {
	object := Syntax{Open: `{"name": "`, Sep: `", "arguments": `, Close: "}", Between: ", "}
	tagged := func(t *taggedForm, nl string) Syntax {
		return Syntax{Begin: t.open + nl, End: t.close, Open: t.callOpen, Sep: t.nameEnd + nl, Close: t.callClose + nl, Arguments: ArgumentsTagged,
			Param: t.paramOpen, TextSep: t.keyEnd, JSONSep: t.keyEnd, ParamEnd: t.paramClose + nl}
	}
	switch f {
	case Granite:
		object.Begin, object.End = "<|tool_call|>[", "]"
	case NemotronJSON:
		object.Begin, object.End = "<TOOLCALL>[", "]</TOOLCALL>"
	case Llama:
		object.Sep, object.Between, object.Single = `", "parameters": `, "", true
	case Mistral:
		if strings.Contains(source, mistralForm.sep) {
			return Syntax{Open: mistralForm.callOpen, Sep: mistralForm.sep}
		}
		object.Begin, object.End = mistralForm.callOpen+"[", "]"
	case CoderXML:
		s := tagged(taggedForms[f][0], "\n")
		s.Open, s.Close, s.Between = s.Begin+s.Open, s.Close+s.End, "\n"
		s.Begin, s.End = "", ""
		s.TextSep, s.ParamEnd = s.TextSep+"\n", "\n"+s.ParamEnd
		s.JSONSep = s.TextSep
		return s
	case GLM:
		s := tagged(taggedForms[f][0], "\n")
		s.Open, s.Close, s.Between = "<tool_call>", "</tool_call>", "\n"
		s.Begin, s.End = "", ""
		s.TextSep += "\n<arg_value>"
		s.JSONSep = s.TextSep
		return s
	case MiniMax:
		return tagged(taggedForms[f][0], "\n")
	case DSML:
		form := taggedForms[f][0]
		switch {
		case strings.Contains(source, "function_calls"):
		case strings.Contains(source, " invoke name="):
			form = taggedForms[f][2]
		case strings.Contains(source, "tool_calls>"):
			form = taggedForms[f][1]
		}
		s := tagged(form, "\n")
		s.TextSep, s.JSONSep = `" string="true">`, `" string="false">`
		return s
	case DeepSeek, Kimi:
		form := deepseekForm
		if f == Kimi {
			form = kimiForm
		}
		s := Syntax{Begin: form.open, End: form.close, Open: form.callOpen, Sep: form.sep, Close: form.callClose}
		if f == Kimi {
			s.Open, s.Number = s.Open+"functions.", ":"
		} else if strings.Contains(source, "```json") {
			s.Open, s.Sep, s.Close = s.Open+"function"+s.Sep, "\n```json\n", "\n```"+s.Close
		}
		return s
	case Harmony:
		return Syntax{Open: markChannel + "commentary to=functions.", Sep: " " + markConstrain + "json" + markMessage, Close: "<|call|>",
			Between: markStart + "assistant"}
	case LFM2:
		return Syntax{Begin: "<|tool_call_start|>[", End: "]" + pythonClose, Sep: "(", Close: ")", Between: ", ", Arguments: ArgumentsPython}
	case Gemma4:
		return Syntax{Open: "<|tool_call>call:", Close: "<tool_call|>", Arguments: ArgumentsGemma}
	default:
		object.Open, object.Close, object.Between = "<tool_call>\n"+object.Open, "}\n</tool_call>", "\n"
	}
	return object
}

// Write writes calls, whose arguments must be JSON objects.
func (s Syntax) Write(calls []ToolCall) (string, error) {
	var b strings.Builder
	b.WriteString(s.Begin)
	for i, c := range calls {
		if i > 0 {
			b.WriteString(s.Between)
		}
		b.WriteString(s.Open + c.Name)
		if s.Number != "" {
			b.WriteString(s.Number + strconv.Itoa(i))
		}
		b.WriteString(s.Sep)
		args, err := decodeJSON([]byte(c.Arguments), func(t string) string { return t })
		if err != nil || !args.IsDict() {
			return "", oneLine("arguments of tool call %d are no JSON object: %v", i, err)
		}
		if s.Arguments == ArgumentsJSON {
			b.WriteString(c.Arguments)
		} else if err := s.writeArguments(&b, args); err != nil {
			return "", err
		}
		b.WriteString(s.Close)
	}
	b.WriteString(s.End)
	return b.String(), nil
}

func (s Syntax) writeArguments(b *strings.Builder, args Value) error {
	if s.Arguments == ArgumentsGemma {
		return s.writeValue(b, args)
	}
	for i, k := range args.AsDict().Keys {
		v := args.AsDict().Data[k]
		if s.Arguments == ArgumentsPython {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(k + "=")
			if err := s.writeValue(b, v); err != nil {
				return err
			}
			continue
		}
		b.WriteString(s.Param + k)
		if v.IsString() {
			b.WriteString(s.TextSep + v.AsString())
		} else {
			b.WriteString(s.JSONSep)
			if err := s.writeValue(b, v); err != nil {
				return err
			}
		}
		b.WriteString(s.ParamEnd)
	}
	return nil
}

// writeValue writes v as JSON, as Gemma's form of it or as a Python literal.
func (s Syntax) writeValue(b *strings.Builder, v Value) error {
	python := s.Arguments == ArgumentsPython
	switch {
	case v.IsDict():
		b.WriteByte('{')
		for i, k := range v.AsDict().Keys {
			if i > 0 {
				b.WriteByte(',')
			}
			if s.Arguments == ArgumentsGemma {
				b.WriteString(k)
			} else {
				b.WriteString(quoteJSON(k))
			}
			b.WriteByte(':')
			if err := s.writeValue(b, v.AsDict().Data[k]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case v.IsList():
		b.WriteByte('[')
		for i, e := range v.AsList().Items {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := s.writeValue(b, e); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case v.IsString() && s.Arguments == ArgumentsGemma:
		b.WriteString(gemmaQuote + v.AsString() + gemmaQuote)
	case v.IsString():
		b.WriteString(quoteJSON(v.AsString()))
	case v.IsBool() && python:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v.AsBool()])
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsNone() && python:
		b.WriteString("None")
	case v.IsNone():
		b.WriteString("null")
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		text, err := json.Marshal(v.AsFloat())
		if err != nil {
			return oneLine("a number of the arguments: %v", err)
		}
		b.Write(text)
	default:
		digits, ok := bigInt(v)
		if !ok {
			return oneLine("an argument is %s", kindOf(v))
		}
		b.WriteString(digits)
	}
	return nil
}

// Thoughts are the tags of reasoning of a model with this template, read as family f; "" for Harmony, which has channels.
// Unless anywhere, thoughts stand only before all visible text or behind a call.
func (t *Template) Thoughts(f Family) (open, close string, anywhere bool) {
	if f == Harmony {
		return "", "", false
	}
	tags := f.thoughts(t.source)
	return tags.open, tags.close, tags.anywhere
}

// ParameterTypes tells as what the parser reads the parameters of each tool that a family writes as bare text: the letters
// of the types that the schema allows, { object, [ array, " string, 0 number, t boolean, n null. For one that is missing, or
// empty, text is taken for a string only if it is no other JSON value.
func ParameterTypes(definitions json.RawMessage) (map[string]map[string]string, error) {
	set, err := newToolSet(definitions)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for name, t := range set.all {
		all[name] = t.params
	}
	return all, nil
}
