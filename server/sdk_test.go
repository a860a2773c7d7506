package server

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// OpenAI's own client for Go, in the ways in which programs use it.

func sdk(t *testing.T) openai.Client {
	h := newHost(t, Options{Keys: []string{"secret"}})
	return openai.NewClient(option.WithBaseURL(h.url+"/v1"), option.WithAPIKey("secret"), option.WithMaxRetries(0))
}

var petSchema = m{
	"type": "object",
	"properties": m{
		"name": m{"type": "string", "maxLength": 8}, "kind": m{"enum": []string{"cat", "dog"}}, "legs": m{"type": "integer", "minimum": 0, "maximum": 8},
	},
	"required": []string{"name", "kind", "legs"}, "additionalProperties": false,
}

func checkPet(t *testing.T, text string) {
	t.Helper()
	var v struct {
		Name *string
		Kind string
		Legs *int
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v.Name == nil || len([]rune(*v.Name)) > 8 || v.Kind != "cat" && v.Kind != "dog" || v.Legs == nil || *v.Legs < 0 || *v.Legs > 8 {
		t.Errorf("%q does not fit the schema: %v", text, err)
	}
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     "any",
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("A pet, please.")},
		MaxTokens: openai.Int(600),
		Seed:      openai.Int(7),
	}
}

func TestSDKStructuredOutput(t *testing.T) {
	c := sdk(t)
	p := chatParams()
	p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &openai.ResponseFormatJSONSchemaParam{
		JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{Name: "pet", Schema: petSchema, Strict: openai.Bool(true)},
	}}
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Choices[0].FinishReason; f != "stop" {
		t.Errorf("finish reason %q", f)
	}
	checkPet(t, r.Choices[0].Message.Content)
	if r.Usage.TotalTokens != r.Usage.PromptTokens+r.Usage.CompletionTokens || r.Usage.CompletionTokens == 0 || r.Model != "random" {
		t.Errorf("%+v by %q", r.Usage, r.Model)
	}

	s := c.Chat.Completions.NewStreaming(t.Context(), p)
	var acc openai.ChatCompletionAccumulator
	for s.Next() {
		if !acc.AddChunk(s.Current()) {
			t.Fatalf("a chunk does not fit: %s", s.Current().RawJSON())
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if got := acc.Choices[0].Message.Content; got != r.Choices[0].Message.Content { // the same seed
		t.Errorf("the stream says %q, the plain reply %q", got, r.Choices[0].Message.Content)
	}
}

func TestSDKStream(t *testing.T) {
	c := sdk(t)
	p := chatParams()
	p.MaxTokens, p.StreamOptions.IncludeUsage = openai.Int(12), openai.Bool(true)
	s := c.Chat.Completions.NewStreaming(t.Context(), p, option.WithJSONSet("ignore_eos", true))
	var acc openai.ChatCompletionAccumulator
	n := 0
	for s.Next() {
		acc.AddChunk(s.Current())
		n++
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if n < 4 || acc.Usage.CompletionTokens != 12 || acc.Choices[0].FinishReason != "length" || acc.Choices[0].Message.Role != "assistant" {
		t.Errorf("%d chunks: %s", n, acc.RawJSON())
	}
}

func TestSDKTools(t *testing.T) {
	c := sdk(t)
	p := chatParams()
	p.Tools = []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "keep", Description: openai.String("Keeps a pet"), Parameters: openai.FunctionParameters(petSchema)}),
		openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "nothing"}),
	}
	off := option.WithJSONSet("chat_template_kwargs", m{"enable_thinking": false})
	for _, c2 := range []struct {
		choice openai.ChatCompletionToolChoiceOptionUnionParam
		names  []string
	}{
		{openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}, []string{"keep", "nothing"}},
		{openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "keep"}), []string{"keep"}},
		{openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "nothing"}), []string{"nothing"}},
	} {
		p.ToolChoice = c2.choice
		p.ParallelToolCalls = openai.Bool(false)
		r, err := c.Chat.Completions.New(t.Context(), p, off)
		if err != nil {
			t.Fatal(err)
		}
		calls := r.Choices[0].Message.ToolCalls
		if r.Choices[0].FinishReason != "tool_calls" || len(calls) != 1 || !slices.Contains(c2.names, calls[0].Function.Name) || calls[0].ID == "" {
			t.Fatalf("%s", r.RawJSON())
		}
		if calls[0].Function.Name == "keep" {
			checkPet(t, calls[0].Function.Arguments)
		}
		s := c.Chat.Completions.NewStreaming(t.Context(), p, off)
		var acc openai.ChatCompletionAccumulator
		for s.Next() {
			acc.AddChunk(s.Current())
		}
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
		got := acc.Choices[0].Message.ToolCalls
		if len(got) != 1 || got[0].Function.Name != calls[0].Function.Name || got[0].Function.Arguments != calls[0].Function.Arguments {
			t.Errorf("the stream gives %+v, the plain reply %+v", got, calls)
		}
	}
	p.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "missing"})
	_, err := c.Chat.Completions.New(t.Context(), p)
	if e := (*openai.Error)(nil); !errors.As(err, &e) || e.StatusCode != 400 || e.Type != "invalid_request_error" {
		t.Errorf("a function that is not there: %v", err)
	}
}

func TestSDKCompletions(t *testing.T) {
	c := sdk(t)
	r, err := c.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "any", MaxTokens: openai.Int(4), Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"One, two,", "Cat, dog,"}},
	}, option.WithJSONSet("ignore_eos", true))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Choices) != 2 || r.Choices[1].Index != 1 || r.Usage.CompletionTokens != 8 {
		t.Errorf("%s", r.RawJSON())
	}
	list, err := c.Models.List(t.Context())
	if err != nil || len(list.Data) != 1 || list.Data[0].ID != "random" {
		t.Errorf("%+v %v", list, err)
	}
}
