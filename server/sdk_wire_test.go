package server

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	claude "github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	openaishared "github.com/openai/openai-go/v3/shared"

	"terrace/engine"
)

// The clients that Anthropic and OpenAI publish for Go, against this server.

var sizes = map[string]any{"size": map[string]any{"type": "string", "enum": []string{"small", "large"}}, "count": map[string]any{"type": "integer", "minimum": 1, "maximum": 9}}

// sized checks an object by the schema of sizes.
func sized(t *testing.T, b []byte) {
	t.Helper()
	var v struct {
		Size  string
		Count int
	}
	if err := json.Unmarshal(b, &v); err != nil || v.Size != "small" && v.Size != "large" || v.Count < 1 || v.Count > 9 {
		t.Errorf("%s: %v", b, err)
	}
}

func anthropicClient(url string) claude.Client {
	return claude.NewClient(anthropicoption.WithBaseURL(url), anthropicoption.WithAPIKey("secret"), anthropicoption.WithMaxRetries(0))
}

func TestAnthropicSDK(t *testing.T) {
	_, url := serveModel(t, Options{Keys: []string{"secret"}}, engine.Options{Path: tinyMoE})
	client, ctx := anthropicClient(url), context.Background()
	ask := claude.MessageNewParams{
		Model: "any", MaxTokens: 40, Temperature: claude.Float(0), System: []claude.TextBlockParam{{Text: "Be brief."}},
		Messages: []claude.MessageParam{claude.NewUserMessage(claude.NewTextBlock("What is the capital of France?"))},
	}
	whole, err := client.Messages.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Content) != 1 || !strings.Contains(whole.Content[0].Text, "Paris") || whole.StopReason != claude.StopReasonEndTurn || whole.Usage.OutputTokens < 2 {
		t.Errorf("%s", whole.RawJSON())
	}
	stream := client.Messages.NewStreaming(ctx, ask)
	var got claude.Message
	for stream.Next() {
		if err := got.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(got.Content) != 1 || got.Content[0].Text != whole.Content[0].Text || got.StopReason != whole.StopReason || got.Usage.OutputTokens != whole.Usage.OutputTokens {
		t.Errorf("streamed %+v, whole %s", got, whole.RawJSON())
	}
	n, err := client.Messages.CountTokens(ctx, claude.MessageCountTokensParams{Model: "any", Messages: ask.Messages, System: claude.MessageCountTokensParamsSystemUnion{OfTextBlockArray: ask.System}})
	if err != nil {
		t.Fatal(err)
	}
	if in := whole.Usage.InputTokens + whole.Usage.CacheReadInputTokens; n.InputTokens != in {
		t.Errorf("%d tokens counted, %d used", n.InputTokens, in)
	}
	ask.MaxTokens = -3
	var fault *claude.Error
	if _, err := client.Messages.New(ctx, ask); !errors.As(err, &fault) || fault.StatusCode != 400 {
		t.Errorf("a request that cannot be: %v", err)
	}
}

// TestAnthropicSDKConstrained: calls and structured answers that the caller can rely on, of a model of random weights.
func TestAnthropicSDKConstrained(t *testing.T) {
	_, url := serveModel(t, Options{Keys: []string{"secret"}}, engine.Options{Path: randomModel, Context: 4096})
	client, ctx := anthropicClient(url), context.Background()
	ask := claude.MessageNewParams{
		Model: "any", MaxTokens: 600, Thinking: claude.ThinkingConfigParamUnion{OfDisabled: &claude.ThinkingConfigDisabledParam{}},
		Messages: []claude.MessageParam{claude.NewUserMessage(claude.NewTextBlock("Pick."))},
		Tools: []claude.ToolUnionParam{
			{OfTool: &claude.ToolParam{Name: "pick", InputSchema: claude.ToolInputSchemaParam{Properties: sizes, Required: []string{"size", "count"}}}},
			{OfTool: &claude.ToolParam{Name: "drop", InputSchema: claude.ToolInputSchemaParam{Properties: map[string]any{}}}},
		},
		ToolChoice: claude.ToolChoiceParamOfTool("pick"),
	}
	use := func(m *claude.Message) claude.ToolUseBlock {
		t.Helper()
		for _, b := range m.Content {
			if u, ok := b.AsAny().(claude.ToolUseBlock); ok {
				if u.Name != "pick" || u.ID == "" {
					t.Errorf("%+v", u)
				}
				sized(t, u.Input)
				return u
			}
		}
		t.Fatalf("no call: %s", m.RawJSON())
		return claude.ToolUseBlock{}
	}
	m, err := client.Messages.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if m.StopReason != claude.StopReasonToolUse {
		t.Errorf("stop reason %s: %s", m.StopReason, m.RawJSON())
	}
	u := use(m)
	stream := client.Messages.NewStreaming(ctx, ask)
	var got claude.Message
	for stream.Next() {
		if err := got.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if stream.Err() != nil || got.StopReason != claude.StopReasonToolUse {
		t.Errorf("%v, %s", stream.Err(), got.StopReason)
	}
	use(&got)
	// The call's result goes back; without a choice the model answers as it likes.
	ask.Messages = append(ask.Messages, m.ToParam(), claude.NewUserMessage(claude.NewToolResultBlock(u.ID, "done", false)))
	ask.ToolChoice, ask.MaxTokens = claude.ToolChoiceUnionParam{OfNone: &claude.ToolChoiceNoneParam{}}, 8
	if m, err = client.Messages.New(ctx, ask); err != nil || slices.ContainsFunc(m.Content, func(b claude.ContentBlockUnion) bool { return b.Type == "tool_use" }) {
		t.Errorf("%v %v", m, err)
	}
	ask = claude.MessageNewParams{
		Model: "any", MaxTokens: 600, Messages: ask.Messages[:1], Thinking: ask.Thinking,
		OutputConfig: claude.OutputConfigParam{Format: claude.JSONOutputFormatParam{Schema: map[string]any{
			"type": "object", "properties": sizes, "required": []string{"size", "count"}, "additionalProperties": false,
		}}},
	}
	if m, err = client.Messages.New(ctx, ask); err != nil || len(m.Content) != 1 || m.StopReason != claude.StopReasonEndTurn {
		t.Fatalf("%v %v", m, err)
	}
	sized(t, []byte(m.Content[0].Text))
}

func openaiClient(url string) openai.Client {
	return openai.NewClient(openaioption.WithBaseURL(url+"/v1"), openaioption.WithAPIKey("secret"), openaioption.WithMaxRetries(0))
}

func TestResponsesSDK(t *testing.T) {
	_, url := serveModel(t, Options{Keys: []string{"secret"}}, engine.Options{Path: tinyMoE})
	client, ctx := openaiClient(url), context.Background()
	ask := responses.ResponseNewParams{
		Model: "any", MaxOutputTokens: openai.Int(40), Temperature: openai.Float(0), Instructions: openai.String("Be brief."), Store: openai.Bool(false),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What is the capital of France?")},
	}
	whole, err := client.Responses.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(whole.OutputText(), "Paris") || whole.Status != responses.ResponseStatusCompleted || whole.Usage.TotalTokens != whole.Usage.InputTokens+whole.Usage.OutputTokens {
		t.Errorf("%s", whole.RawJSON())
	}
	stream := client.Responses.NewStreaming(ctx, ask)
	text, last := "", int64(-1)
	var final responses.Response
	for stream.Next() {
		e := stream.Current()
		if e.SequenceNumber != last+1 {
			t.Errorf("event %d after %d", e.SequenceNumber, last)
		}
		last = e.SequenceNumber
		switch e := e.AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			text += e.Delta
		case responses.ResponseCompletedEvent:
			final = e.Response
		}
	}
	if stream.Err() != nil || text != whole.OutputText() || final.OutputText() != text {
		t.Errorf("%v: streamed %q, at the end %q, whole %q", stream.Err(), text, final.OutputText(), whole.OutputText())
	}
	var fault *openai.Error
	ask.PreviousResponseID = openai.String("resp_1")
	if _, err := client.Responses.New(ctx, ask); !errors.As(err, &fault) || fault.StatusCode != 400 || !strings.Contains(fault.Message, "previous_response_id") {
		t.Errorf("a response that is not kept: %v", err)
	}
}

func TestResponsesSDKConstrained(t *testing.T) {
	_, url := serveModel(t, Options{Keys: []string{"secret"}}, engine.Options{Path: randomModel, Context: 4096})
	client, ctx := openaiClient(url), context.Background()
	schema := map[string]any{"type": "object", "properties": sizes, "required": []string{"size", "count"}, "additionalProperties": false}
	think := openaioption.WithJSONSet("chat_template_kwargs", map[string]any{"enable_thinking": false})
	ask := responses.ResponseNewParams{
		Model: "any", MaxOutputTokens: openai.Int(600), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Pick.")},
		Tools: []responses.ToolUnionParam{
			responses.ToolParamOfFunction("pick", schema, true),
			responses.ToolParamOfFunction("drop", map[string]any{"type": "object"}, false),
			{OfWebSearch: &responses.WebSearchToolParam{Type: "web_search"}}, // nothing here runs it: skipped
		},
		ToolChoice: responses.ResponseNewParamsToolChoiceUnion{OfFunctionTool: &responses.ToolChoiceFunctionParam{Name: "pick"}},
	}
	call := func(r *responses.Response) responses.ResponseFunctionToolCall {
		t.Helper()
		for _, o := range r.Output {
			if c, ok := o.AsAny().(responses.ResponseFunctionToolCall); ok {
				if c.Name != "pick" || c.CallID == "" {
					t.Errorf("%+v", c)
				}
				sized(t, []byte(c.Arguments))
				return c
			}
		}
		t.Fatalf("no call: %s", r.RawJSON())
		return responses.ResponseFunctionToolCall{}
	}
	r, err := client.Responses.New(ctx, ask, think)
	if err != nil {
		t.Fatal(err)
	}
	c := call(r)
	stream := client.Responses.NewStreaming(ctx, ask, think)
	arguments := ""
	for stream.Next() {
		switch e := stream.Current().AsAny().(type) {
		case responses.ResponseFunctionCallArgumentsDeltaEvent:
			arguments += e.Delta
		case responses.ResponseCompletedEvent:
			if got := call(&e.Response); got.Arguments != arguments {
				t.Errorf("streamed %s, at the end %s", arguments, got.Arguments)
			}
		}
	}
	if stream.Err() != nil || arguments == "" {
		t.Errorf("%v, %q", stream.Err(), arguments)
	}
	history := responses.ResponseInputParam{
		responses.ResponseInputItemParamOfMessage("Pick.", responses.EasyInputMessageRoleUser),
		responses.ResponseInputItemParamOfFunctionCall(c.Arguments, c.CallID, c.Name),
		responses.ResponseInputItemParamOfFunctionCallOutput("done"),
	}
	history[2].OfFunctionCallOutput.CallID = openai.String(c.CallID)
	ask.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: history}
	ask.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsNone)}
	ask.Text = responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigParamOfJSONSchema("sized", schema)}
	if r, err = client.Responses.New(ctx, ask, think); err != nil {
		t.Fatal(err)
	}
	sized(t, []byte(r.OutputText()))
	ask.Reasoning = openaishared.ReasoningParam{Effort: openaishared.ReasoningEffortNone}
	if _, err = client.Responses.New(ctx, ask); err != nil {
		t.Error(err)
	}
}
