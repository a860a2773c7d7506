// Package bench measures: what a model says (logits, perplexity, answers) and what the machine does with it. Every scenario
// is a function over a config struct, so that commands and tests call the same code.
//
// It prints nothing; cmd shows its reports.
package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strings"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
)

// LogitsConfig asks for the logits after some positions of a token list.
type LogitsConfig struct {
	Tokens    []int32
	Positions []int32 // empty: the last
	Decode    int     // tokens to go on greedily, past end tokens
}

// LogitsReport holds one row of vocabulary size per position.
type LogitsReport struct {
	Positions []int32      `json:"positions"`
	Logits    [][]float32  `json:"logits"`
	Decode    []DecodeStep `json:"decode"`
}

// DecodeStep is one token fed and what came out.
type DecodeStep struct {
	Token  int32     `json:"token"`
	Logits []float32 `json:"logits"`
}

// logitsRows bounds the rows of logits held at once to about 16 MiB.
func logitsRows(e *engine.Engine) int {
	return max(1, min(e.Options().Batch, 4<<20/e.Model().Config().Vocab))
}

// ArgMax returns the first largest logit and its index.
func ArgMax(v []float32) (int32, float32) {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return int32(best), v[best]
}

// Logits evaluates the tokens from an empty timeline.
func Logits(ctx context.Context, e *engine.Engine, s *engine.Session, c LogitsConfig) (*LogitsReport, error) {
	if c.Decode > e.Options().Context-len(c.Tokens) || c.Decode < 0 {
		return nil, fmt.Errorf("%w has %d tokens and %d to decode, the context holds %d", engine.ErrPrompt, len(c.Tokens), c.Decode, e.Options().Context)
	}
	pos := c.Positions
	if len(pos) == 0 {
		pos = []int32{int32(len(c.Tokens) - 1)}
	}
	r := &LogitsReport{Positions: pos, Logits: make([][]float32, len(pos)), Decode: []DecodeStep{}}
	vocab := e.Model().Config().Vocab
	rows := logitsRows(e)
	out := make([]float32, rows*vocab)
	s.Reset()
	var last []float32
	for at := 0; at < len(c.Tokens); at += rows {
		n := min(rows, len(c.Tokens)-at)
		err := s.EvalAll(ctx, c.Tokens[at:at+n], out[:n*vocab])
		if err != nil {
			return nil, err
		}
		for i, p := range pos {
			if int(p) >= at && int(p) < at+n {
				k := int(p) - at
				if r.Logits[i], err = finite(out[k*vocab:(k+1)*vocab], int(p)); err != nil {
					return nil, err
				}
			}
		}
		last = out[(n-1)*vocab : n*vocab]
	}
	for range c.Decode {
		id, _ := ArgMax(last)
		if err := s.Eval(ctx, id); err != nil {
			return nil, err
		}
		last = s.Logits()
		row, err := finite(last, s.Pos()-1)
		if err != nil {
			return nil, err
		}
		r.Decode = append(r.Decode, DecodeStep{id, row})
	}
	return r, nil
}

// finite copies the logits after position pos. Those of a damaged file can be no numbers, and a report of such would mean
// nothing.
func finite(logits []float32, pos int) ([]float32, error) {
	for id, v := range logits {
		if v-v != 0 {
			return nil, fmt.Errorf("position %d: logit of token %d is %g", pos, id, v)
		}
	}
	return slices.Clone(logits), nil
}

// readLines decodes each line of a .jsonl file by f.
func readLines(path string, f func(line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	in.Buffer(make([]byte, 0, 1<<16), 64<<20)
	for n := 1; in.Scan(); n++ {
		if len(strings.TrimSpace(in.Text())) == 0 {
			continue
		}
		if err := f(in.Bytes()); err != nil {
			return fmt.Errorf("%s: line %d: %w", path, n, err)
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// ReadTexts reads a text file as one text, or the "text" of each line of a .jsonl file.
func ReadTexts(path string) ([]string, error) {
	if !strings.HasSuffix(path, ".jsonl") {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return []string{string(b)}, nil
	}
	var texts []string
	err := readLines(path, func(line []byte) error {
		var v struct{ Text *string }
		if err := json.Unmarshal(line, &v); err != nil {
			return err
		}
		if v.Text == nil {
			return fmt.Errorf(`no "text"`)
		}
		texts = append(texts, *v.Text)
		return nil
	})
	if err == nil && len(texts) == 0 {
		err = fmt.Errorf("%s: 0 texts, want at least 1", path)
	}
	return texts, err
}

// PPLReport is the perplexity over all texts.
type PPLReport struct {
	Tokens int     `json:"tokens"` // scored
	NLL    float64 `json:"nll"`    // mean negative log-likelihood of a token, natural logarithm
	PPL    float64 `json:"ppl"`
}

// pplCut is the longest stretch that is scored of a text, its leading end-of-text token included.
const pplCut = 1024

// startToken is what a text is scored after: the end-of-text token, else the one that begins texts.
func startToken(e *engine.Engine) (int32, error) {
	tok := e.Tokenizer()
	start, ok := tok.Lookup("<|endoftext|>")
	if !ok {
		start = tok.EOT()
	}
	if start < 0 {
		start = tok.BOS()
	}
	if start < 0 {
		return 0, fmt.Errorf("the model has no end-of-text token to score a text after")
	}
	return start, nil
}

// scoredPieces cuts the tokens of a text into what is scored at once: start and at most piece tokens each. Without whole, what
// is beyond the first piece is left out.
func scoredPieces(all []int32, start int32, piece int, whole bool) iter.Seq[[]int32] {
	return func(yield func([]int32) bool) {
		for len(all) > 0 {
			n := min(len(all), piece)
			if !yield(append([]int32{start}, all[:n]...)) || !whole {
				return
			}
			all = all[n:]
		}
	}
}

// scoredLength is how many tokens are scored after one end-of-text token.
func scoredLength(es ...*engine.Engine) (int, error) {
	n := pplCut
	for _, e := range es {
		n = min(n, e.Options().Context)
	}
	if n < 2 {
		return 0, fmt.Errorf("the context holds %d tokens, scoring needs at least 2", n)
	}
	return n - 1, nil
}

// Perplexity scores each text by itself after one end-of-text token, cut at the smaller of the context and 1024 tokens.
// With whole set, what is cut off is scored too: as further pieces, each after an end-of-text token of its own.
func Perplexity(ctx context.Context, e *engine.Engine, s *engine.Session, texts []string, whole bool) (*PPLReport, error) {
	start, err := startToken(e)
	if err != nil {
		return nil, err
	}
	piece, err := scoredLength(e)
	if err != nil {
		return nil, err
	}
	vocab := e.Model().Config().Vocab
	rows := logitsRows(e)
	out := make([]float32, rows*vocab)
	r := &PPLReport{}
	for i, text := range texts {
		for ids := range scoredPieces(e.Tokenizer().Encode(nil, text, false, false), start, piece, whole) {
			s.Reset()
			for at := 0; at < len(ids)-1; at += rows {
				n := min(rows, len(ids)-1-at)
				if err := s.EvalAll(ctx, ids[at:at+n], out[:n*vocab]); err != nil {
					return nil, fmt.Errorf("text %d: %w", i+1, err)
				}
				for k := range n {
					r.NLL -= logProb(out[k*vocab:(k+1)*vocab], ids[at+k+1])
					r.Tokens++
				}
			}
		}
	}
	if r.Tokens == 0 {
		return nil, fmt.Errorf("no token to score in %d texts", len(texts))
	}
	r.NLL /= float64(r.Tokens)
	if r.PPL = math.Exp(r.NLL); math.IsNaN(r.PPL) || math.IsInf(r.PPL, 0) {
		return nil, fmt.Errorf("the perplexity of %d tokens is %g: the model's logits are no numbers, or absurd", r.Tokens, r.PPL)
	}
	return r, nil
}

// logProb is the natural logarithm of the softmax of logits at id.
func logProb(logits []float32, id int32) float64 {
	_, m := ArgMax(logits)
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v - m))
	}
	return float64(logits[id]-m) - math.Log(sum)
}

// Question is one line of an evaluation set.
type Question struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
	Expect   string `json:"expect"`
}

// ReadQuestions reads an evaluation set.
func ReadQuestions(path string) ([]Question, error) {
	var qs []Question
	err := readLines(path, func(line []byte) error {
		var q Question
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		if q.Question == "" || q.Expect == "" {
			return fmt.Errorf(`"question" or "expect" is empty`)
		}
		qs = append(qs, q)
		return nil
	})
	if err == nil && len(qs) == 0 {
		err = fmt.Errorf("%s: 0 questions, want at least 1", path)
	}
	return qs, err
}

// QAReport counts right answers.
type QAReport struct {
	Asked    int     `json:"asked"`
	Correct  int     `json:"correct"`
	Accuracy float64 `json:"accuracy"`
	Wrong    []Wrong `json:"wrong"`
}

// Wrong is an answer without the expected words.
type Wrong struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
	Expect   string `json:"expect"`
}

// Answers asks each question by itself, greedily; a reply is right when it holds the expected words.
func Answers(ctx context.Context, e *engine.Engine, s *engine.Session, qs []Question, most int) (*QAReport, error) {
	r := &QAReport{Wrong: []Wrong{}}
	p := sample.Defaults(e.Model().Config().Vocab)
	p.Temp = 0
	for _, q := range qs {
		prompt, err := e.Chat(chat.Conversation{Messages: []chat.Message{{Role: "user", Content: q.Question}}, AddGenerationPrompt: true})
		if err != nil {
			return nil, err
		}
		sm, err := sample.New(p)
		if err != nil {
			return nil, err
		}
		var reply strings.Builder
		_, err = s.Generate(ctx, engine.Request{Prompt: prompt, Max: most, Sampler: sm, Emit: func(b []byte) error { reply.Write(b); return nil }})
		if err != nil {
			return nil, fmt.Errorf("question %q: %w", q.Question, err)
		}
		r.Asked++
		if strings.Contains(reply.String(), q.Expect) {
			r.Correct++
		} else {
			r.Wrong = append(r.Wrong, Wrong{q.Question, reply.String(), q.Expect})
		}
	}
	if r.Asked > 0 {
		r.Accuracy = float64(r.Correct) / float64(r.Asked)
	}
	return r, nil
}
