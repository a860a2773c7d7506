package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/chat"
	"terrace/engine"
	"terrace/internal/host"
	"terrace/router"
	"terrace/sample"
)

func runCommand(e env) *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "answer one prompt, streamed; without PROMPT (or with -) it is read from standard input, on a terminal it is a chat",
		ArgsUsage: "[PROMPT]",
		Flags: append(append(append(append(modelFlags(), samplingFlags()...), chatFlags()...), answerFlags()...),
			&cli.StringFlag{Name: "prompt", Aliases: []string{"p"}, Usage: "the prompt, instead of the argument"},
			&cli.BoolFlag{Name: "raw", Usage: "no chat template: the prompt is continued as it is, and spellings of special tokens in it are these tokens"},
		),
		Action: func(c *cli.Context) error { return runRun(c.Context, c, e) },
	}
}

// answerFlags are those of commands that answer a person.
func answerFlags() []cli.Flag {
	return []cli.Flag{
		heatFlag(), stallFlag(),
		&cli.BoolFlag{Name: "verify", Usage: "compare the first read of each expert with its checksum (terrace inspect --checksum makes them)"},
		&cli.StringFlag{Name: "system-prompt", Aliases: []string{"sys"}, Usage: "system message"},
		&cli.IntFlag{Name: "predict", Aliases: []string{"n", "n-predict"}, Value: -1, Usage: "tokens to generate at most (-1: until the model ends or the context is full)"},
		&cli.BoolFlag{Name: "no-think", Usage: "ask the template for no thinking"},
		&cli.StringFlag{Name: "trace", Usage: "record the routing of every token, and the guesses made for it, to `FILE` (.jsonl, .jsonl.gz), for bench cache and bench predictor"},
		&cli.StringFlag{Name: "stats", Value: "off", Usage: "what was done, on standard error: off, text or json"},
		&cli.StringFlag{Name: "stats-file", Usage: "write the statistics to `FILE` instead"},
		&cli.BoolFlag{Name: "hash-logits", Usage: "SHA-256 over the logits of every generated position, in the statistics or, without them, on standard error"},
	}
}

func runRun(ctx context.Context, c *cli.Context, e env) (failed error) {
	if a := c.Args().First(); c.String("model") == "" && strings.HasSuffix(a, ".gguf") {
		return usagef("%q looks like a model file, and here the prompt is wanted: write -m %s", a, a)
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	if o.HeatDir, err = heatDir(c, e); err != nil {
		return err
	}
	if o.StallReport, err = stallReport(c); err != nil {
		return err
	}
	if c.Bool("verify") {
		if o.SumsDir, err = needCacheDir(e); err != nil {
			return fmt.Errorf("--verify: %w", err)
		}
	}
	p := samplerParams(c)
	if err := p.Validate(); err != nil { // before the model is loaded; the vocabulary comes with it
		return usageError{err}
	}
	stats := c.String("stats")
	if stats != "off" && stats != "text" && stats != "json" {
		return usagef("--stats is %q, want off, text or json", stats)
	}
	if c.String("stats-file") != "" && stats == "off" {
		stats = "json"
	}
	if n := c.Int("predict"); n < -1 || n == 0 {
		return usagef("--predict is %d, want at least 1, or -1 for no limit", n)
	}
	if c.Bool("raw") && c.String("system-prompt") != "" {
		return usagef("--system-prompt needs the chat template, and --raw takes none")
	}
	if c.Bool("raw") && c.Bool("no-think") {
		return usagef("--no-think needs the chat template, and --raw takes none")
	}
	prompt, chatting, more, err := readPrompt(c, e)
	if err != nil {
		return err
	}
	statsTo := e.err
	if path := c.String("stats-file"); path != "" { // before the work whose figures would be lost
		f, undo, err := openStats(path)
		if err != nil {
			return err
		}
		defer func() {
			f.Close()
			if failed != nil {
				undo()
			}
		}()
		statsTo = f
	}
	var trace *router.TraceWriter
	if path := c.String("trace"); path != "" {
		if trace, err = router.CreateTrace(path); err != nil {
			return fmt.Errorf("--trace: %w", err)
		}
		defer func() {
			if err := trace.Close(); err != nil && failed == nil {
				failed = fmt.Errorf("--trace: %w", err)
			}
		}()
		o.GuessAlways = true
	}
	var cache engine.PromptCacheOptions
	if chatting {
		if c.Bool("raw") {
			return usagef("--raw needs a prompt: a conversation needs the chat template")
		}
		if cache, err = cacheOptions(c, e, &o); err != nil {
			return err
		}
		o.SlotFiles = true
	} else if name := setOf(c, chatFlags()); name != "" {
		return usagef("--%s is for conversations, and there is a prompt: terrace chat", name)
	}
	view := newLoadView(e)
	o.Progress = view.progress
	eng, err := engine.Open(o)
	view.end()
	if err != nil {
		return err
	}
	defer eng.Close()
	s, err := eng.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	if trace != nil {
		s.SetTrace(trace)
		defer func() {
			if err := s.SetTrace(nil); err != nil && failed == nil {
				failed = fmt.Errorf("--trace: %w", err)
			}
		}()
	}
	e.tell()
	p.Vocab, p.EOG = eng.Model().Config().Vocab, eng.Tokenizer().EOG()
	r := &runner{c: c, e: e, eng: eng, s: s, params: p, stats: stats, statsTo: statsTo}
	if chatting {
		return r.chat(ctx, cache)
	}
	if more {
		if prompt, err = readRest(prompt, e, eng); err != nil {
			return err
		}
		if prompt == "" {
			return usagef("the prompt is empty: it has line ends only")
		}
	}
	return r.answer(ctx, []chat.Message{userMessage(prompt)}, prompt)
}

// setOf is the name of the first of some flags that was given, "" if none was.
func setOf(c *cli.Context, flags []cli.Flag) string {
	for _, f := range flags {
		if name := f.Names()[0]; c.IsSet(name) {
			return name
		}
	}
	return ""
}

// readPrompt takes the prompt from the flag, the arguments or standard input. chatting says that standard input is a
// terminal and nothing was given; more, that prompt is only what readPrompt reads of standard input, and readRest goes on.
func readPrompt(c *cli.Context, e env) (prompt string, chatting, more bool, err error) {
	switch {
	case c.Command.Name == "chat":
		return "", true, false, nil
	case c.IsSet("prompt") && c.NArg() > 0:
		return "", false, false, usagef("the prompt is given twice: by --prompt and as an argument")
	case c.IsSet("prompt"):
		prompt = c.String("prompt")
	case c.NArg() == 1 && c.Args().First() != "-":
		prompt = c.Args().First()
	case c.NArg() > 1:
		return "", false, false, usagef("%d arguments, want one prompt, in quotes; the model goes to -m FILE", c.NArg())
	default:
		if e.terminal && c.NArg() == 0 {
			return "", true, false, nil
		}
		b, err := io.ReadAll(io.LimitReader(e.in, firstRead))
		if err != nil {
			return "", false, false, fmt.Errorf("standard input: %w", err)
		}
		if len(b) == firstRead {
			return string(b), false, true, nil
		}
		prompt = strings.TrimRight(string(b), "\r\n")
	}
	if prompt == "" {
		return "", false, false, usagef("the prompt is empty: 0 bytes, want at least 1")
	}
	return prompt, false, false, nil
}

// firstRead is how much of standard input is read before the model is open. More is read only if the context can hold it.
const firstRead = 1 << 20

// maxPrompt bounds what is read from standard input in any case.
const maxPrompt = 64 << 20

// readRest reads what is left of a prompt on standard input of which readPrompt took firstRead bytes.
func readRest(prompt string, e env, eng *engine.Engine) (string, error) {
	limit := min(maxPrompt, eng.MaxText())
	b, err := io.ReadAll(io.LimitReader(e.in, int64(max(0, limit+1-len(prompt)))))
	if err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	if len(prompt)+len(b) > limit {
		return "", fmt.Errorf("%w on standard input has more than %d bytes, which the context of %d tokens cannot hold", engine.ErrPrompt, limit, eng.Options().Context)
	}
	return strings.TrimRight(prompt+string(b), "\r\n"), nil
}

// decimal is the float64 that prints as short as f does.
func decimal(f float32) float64 { return math.Round(float64(f)*1e6) / 1e6 }

func samplerParams(c *cli.Context) sample.Params {
	p := sample.Defaults(1)
	p.Temp, p.TopK, p.TopP, p.MinP = float32(c.Float64("temp")), c.Int("top-k"), float32(c.Float64("top-p")), float32(c.Float64("min-p"))
	p.RepeatPenalty, p.RepeatLastN = float32(c.Float64("repeat-penalty")), c.Int("repeat-last-n")
	p.PresencePenalty, p.FrequencyPenalty = float32(c.Float64("presence-penalty")), float32(c.Float64("frequency-penalty"))
	p.Seed, p.IgnoreEOS = c.Int64("seed"), c.Bool("ignore-eos")
	return p
}

func userMessage(text string) chat.Message {
	return chat.Message{Role: "user", Content: text}
}

// runner holds one command's engine and session.
type runner struct {
	c      *cli.Context
	e      env
	eng    *engine.Engine
	s      *engine.Session
	params sample.Params

	stats   string    // off, text or json
	statsTo io.Writer // standard error or the file
}

// answer renders the conversation, streams the reply to standard output and prints the statistics.
func (r *runner) answer(ctx context.Context, msgs []chat.Message, raw string) error {
	prompt, err := r.tokens(msgs, raw)
	if err != nil {
		return err
	}
	sm, err := sample.New(r.params)
	if err != nil {
		return usageError{err}
	}
	for _, id := range prompt {
		sm.Accept(id)
	}
	w := bufio.NewWriter(r.e.out)
	res, err := r.s.Generate(ctx, engine.Request{
		Prompt: prompt, Max: max(0, r.c.Int("predict")), Sampler: sm, HashLogits: r.c.Bool("hash-logits"), StopLoops: r.c.Bool("stop-loops"),
		Emit: func(text []byte) error {
			if _, err := w.Write(text); err != nil {
				return fmt.Errorf("standard output: %w", err)
			}
			return w.Flush()
		},
	})
	if len(res.Tokens) > 0 {
		fmt.Fprintln(r.e.out)
	}
	if err != nil {
		return err
	}
	if l := res.Stats.Loop; l != nil && res.Finish == engine.FinishLength && r.c.Bool("stop-loops") {
		fmt.Fprintf(r.e.err, "terrace: the answer repeats %d tokens over and over from its token %d on and is ended (--stop-loops)\n", l.Period, l.At)
	} else if n := r.eng.Options().Context; res.Finish == engine.FinishLength && r.s.Pos() >= n {
		fmt.Fprintf(r.e.err, "terrace: the context of %d tokens is full and the answer is cut; -c N makes it larger\n", n)
	}
	return r.printStats(r.statsTo, &res.Stats)
}

// tokens makes the prompt's tokens: the conversation by the model's template, or with --raw the text as it is.
func (r *runner) tokens(msgs []chat.Message, raw string) ([]int32, error) {
	if r.c.Bool("raw") {
		return r.eng.Text(raw)
	}
	if sys := r.c.String("system-prompt"); sys != "" {
		msgs = append([]chat.Message{{Role: "system", Content: sys}}, msgs...)
	}
	conv := chat.Conversation{Messages: msgs, AddGenerationPrompt: true}
	if r.c.Bool("no-think") {
		off := false
		conv.EnableThinking = &off
	}
	return r.eng.Chat(conv)
}

// openStats opens the file that statistics are added to. undo removes it again if it was not there before.
func openStats(path string) (f *os.File, undo func(), err error) {
	_, err = os.Stat(path)
	created := errors.Is(err, os.ErrNotExist)
	if f, err = host.AppendLines(path); err != nil {
		return nil, nil, fmt.Errorf("--stats-file: %w", err)
	}
	return f, func() {
		if st, err := os.Stat(path); created && err == nil && st.Size() == 0 {
			os.Remove(path)
		}
	}, nil
}

// printStats writes the statistics where they were asked for. A hash that was asked for alone is printed alone.
func (r *runner) printStats(to io.Writer, st *engine.Stats) error {
	if r.stats == "off" {
		if st.LogitsSHA256 != "" {
			fmt.Fprintf(to, "logits    sha256 %s\n", st.LogitsSHA256)
		}
		return nil
	}
	r.s.Bound(st)
	if r.stats == "json" {
		return json.NewEncoder(to).Encode(st)
	}
	return statsText(to, st)
}
