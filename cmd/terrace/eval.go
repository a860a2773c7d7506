package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"terrace/bench"
	"terrace/engine"
	"terrace/gguf"
	"terrace/tokenizer"
)

func evalCommand(e env) *cli.Command {
	jsonFlag := &cli.BoolFlag{Name: "json", Usage: "one JSON document on standard output"}
	fileFlag := &cli.StringFlag{Name: "file", Aliases: []string{"f"}, Usage: "text or .jsonl `FILE`"}
	return &cli.Command{
		Name:  "eval",
		Usage: "measure what a model says: logits, ppl, qa, tokens, kld",
		Subcommands: []*cli.Command{
			{
				Name:  "logits",
				Usage: "logits after given tokens",
				Flags: append(modelFlags(), jsonFlag,
					&cli.StringFlag{Name: "tokens", Usage: "token ids, `1,2,3`"},
					&cli.StringFlag{Name: "positions", Usage: "positions whose logits are wanted, `0,2` (default: the last)"},
					&cli.IntFlag{Name: "decode", Usage: "go on greedily for `N` tokens"}),
				Action: func(c *cli.Context) error { return runEvalLogits(c, e) },
			},
			{
				Name:   "ppl",
				Usage:  `perplexity of a text, in pieces of at most 1024 tokens; each {"text"} of a .jsonl file counts up to its first 1024`,
				Flags:  append(modelFlags(), jsonFlag, fileFlag),
				Action: func(c *cli.Context) error { return runEvalPPL(c, e) },
			},
			{
				Name:   "qa",
				Usage:  `share of questions answered with the expected words (greedy, chat template); lines {"question", "expect"}`,
				Flags:  append(modelFlags(), jsonFlag, fileFlag, &cli.IntFlag{Name: "predict", Aliases: []string{"n"}, Value: 128, Usage: "tokens per answer at most"}),
				Action: func(c *cli.Context) error { return runEvalQA(c, e) },
			},
			{
				Name:  "kld",
				Usage: `how far a model's answers are from those of another with the same vocabulary, its original usually: mean Kullback-Leibler divergence over a text, cut as ppl does`,
				Flags: append(modelFlags(), jsonFlag, fileFlag,
					&cli.StringFlag{Name: "ref", Usage: "the model compared with, a GGUF `FILE`"},
					&cli.IntFlag{Name: "tokens", Usage: "compare `N` positions at most (0: all)"}),
				Action: func(c *cli.Context) error { return runEvalKLD(c, e) },
			},
			{
				Name:  "tokens",
				Usage: "token ids of JSON strings read from standard input, a line each",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "GGUF `FILE`"},
					&cli.BoolFlag{Name: "special", Usage: "recognise special tokens in the text"}, jsonFlag,
				},
				Action: func(c *cli.Context) error { return runEvalTokens(c, e) },
			},
		},
	}
}

// openSession opens the engine of a command that takes no positional arguments.
func openSession(c *cli.Context, e env) (*engine.Engine, *engine.Session, error) {
	if c.NArg() > 0 {
		return nil, nil, usagef("unexpected argument %q", c.Args().First())
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return nil, nil, err
	}
	eng, err := engine.Open(o)
	if err != nil {
		return nil, nil, err
	}
	s, err := eng.NewSession()
	if err != nil {
		eng.Close()
		return nil, nil, err
	}
	e.tell()
	return eng, s, nil
}

func parseInts(flag, s string) ([]int32, error) {
	if s == "" {
		return nil, nil
	}
	var out []int32
	for i, f := range strings.Split(s, ",") {
		v, err := strconv.ParseInt(strings.TrimSpace(f), 10, 32)
		if err != nil {
			return nil, usagef("--%s: item %d is %q, want a number", flag, i+1, f)
		}
		out = append(out, int32(v))
	}
	return out, nil
}

func printJSON(e env, v any) error { return json.NewEncoder(e.out).Encode(v) }

func runEvalLogits(c *cli.Context, e env) error {
	tokens, err := parseInts("tokens", c.String("tokens"))
	if err != nil {
		return err
	}
	positions, err := parseInts("positions", c.String("positions"))
	if err != nil {
		return err
	}
	if len(tokens) == 0 {
		return usagef("--tokens is empty: 0 ids, want at least 1")
	}
	if n := c.Int("decode"); n < 0 {
		return usagef("--decode is %d, want at least 0", n)
	}
	for _, p := range positions {
		if p < 0 || int(p) >= len(tokens) {
			return usagef("--positions has %d, the prompt's are 0 to %d", p, len(tokens)-1)
		}
	}
	eng, s, err := openSession(c, e)
	if err != nil {
		return err
	}
	defer eng.Close()
	defer s.Close()
	r, err := bench.Logits(c.Context, eng, s, bench.LogitsConfig{Tokens: tokens, Positions: positions, Decode: c.Int("decode")})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	for i, p := range r.Positions {
		id, v := bench.ArgMax(r.Logits[i])
		fmt.Fprintf(e.out, "position %d: token %d first, logit %g\n", p, id, v)
	}
	for _, d := range r.Decode {
		id, v := bench.ArgMax(d.Logits)
		fmt.Fprintf(e.out, "after token %d: token %d first, logit %g\n", d.Token, id, v)
	}
	return nil
}

func runEvalPPL(c *cli.Context, e env) error {
	if c.String("file") == "" {
		return usagef("give the text: -f FILE")
	}
	texts, err := bench.ReadTexts(c.String("file"))
	if err != nil {
		return err
	}
	eng, s, err := openSession(c, e)
	if err != nil {
		return err
	}
	defer eng.Close()
	defer s.Close()
	r, err := bench.Perplexity(c.Context, eng, s, texts, !strings.HasSuffix(c.String("file"), ".jsonl"))
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	fmt.Fprintf(e.out, "perplexity %.4f over %d tokens\n", r.PPL, r.Tokens)
	return nil
}

func runEvalQA(c *cli.Context, e env) error {
	if c.String("file") == "" {
		return usagef("give the questions: -f FILE.jsonl")
	}
	if n := c.Int("predict"); n < 1 {
		return usagef("--predict is %d, want at least 1", n)
	}
	qs, err := bench.ReadQuestions(c.String("file"))
	if err != nil {
		return err
	}
	eng, s, err := openSession(c, e)
	if err != nil {
		return err
	}
	defer eng.Close()
	defer s.Close()
	r, err := bench.Answers(c.Context, eng, s, qs, c.Int("predict"))
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(e, r)
	}
	for _, w := range r.Wrong {
		fmt.Fprintf(e.out, "wrong: %q answered %q, want %q\n", w.Question, w.Answer, w.Expect)
	}
	fmt.Fprintf(e.out, "%d of %d right (%.1f %%)\n", r.Correct, r.Asked, 100*r.Accuracy)
	return nil
}

func runEvalTokens(c *cli.Context, e env) error {
	if c.NArg() > 0 {
		return usagef("unexpected argument %q: texts come on standard input", c.Args().First())
	}
	path, err := modelPath(c, e)
	if err != nil {
		return err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	tok, err := tokenizer.New(f.Metadata)
	if err != nil {
		return err
	}
	e.tell()
	in := bufio.NewScanner(e.in)
	in.Buffer(make([]byte, 0, 1<<16), maxPrompt)
	out := bufio.NewWriter(e.out)
	var ids []int32
	for n := 1; in.Scan(); n++ {
		if len(strings.TrimSpace(in.Text())) == 0 {
			continue
		}
		var text string
		if err := json.Unmarshal(in.Bytes(), &text); err != nil {
			out.Flush()
			return fmt.Errorf("standard input, line %d: want a JSON string: %w", n, err)
		}
		ids = tok.Encode(ids[:0], text, false, c.Bool("special"))
		if ids == nil {
			ids = []int32{}
		}
		b, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		out.Write(append(b, '\n'))
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return out.Flush()
}
