package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"terrace/engine"
	"terrace/sample"
)

// CalibrateConfig asks for a predictor fitted on texts.
type CalibrateConfig struct {
	Engine engine.Options // its Lookahead, Predictor and Reserve are not looked at
	Dir    string         // folder in which the predictor is kept
	// Texts are what it is fitted on. Without any the model writes Tokens tokens itself.
	Texts    []string
	Tokens   int    // at most so many are used; 0: 32768, of texts that the model writes 8192
	Seed     uint64 // of what the model writes
	Progress func(line string)
}

// CalibrateReport says what became of it.
type CalibrateReport struct {
	Machine   Machine      `json:"machine"`
	Commit    string       `json:"commit"`
	Model     string       `json:"model"`
	Source    string       `json:"source"` // "texts" or "written by the model"
	FitTokens int          `json:"fit_tokens"`
	Tokens    int          `json:"tokens"` // judged on, of other pieces
	TopK      int          `json:"top_k"`
	Rows      [2]RecallRow `json:"rows"`  // gate-ahead, fitted; as the engine computes them
	Saved     bool         `json:"saved"` // the fitted one guesses better
	Path      string       `json:"path,omitempty"`
	Bytes     int64        `json:"bytes,omitempty"`
	Seconds   float64      `json:"seconds"`
}

const (
	calibratePiece   = 1024  // longest stretch of a text that is read at a time
	calibrateTokens  = 32768 // that a fit uses unless told otherwise: on tiny-moe more add less than a tenth of a point
	calibrateWritten = 8192  // the same of those that the model has to write one by one
	calibrateHeld    = 0.2   // share of the pieces kept for judging
	calibrateLeast   = 0.002 // recall that a fitted predictor must be better by
)

// Calibrate fits a predictor, judges it on tokens that it was not fitted on, and keeps it if it guesses better than the
// routers do by themselves.
func Calibrate(ctx context.Context, c CalibrateConfig) (*CalibrateReport, error) {
	start := time.Now()
	if c.Tokens < 0 {
		return nil, fmt.Errorf("%w: %d tokens, want at least 0", engine.ErrUsage, c.Tokens)
	}
	o := c.Engine
	o.Lookahead, o.Predictor, o.Reserve = 0, "gate-ahead", engine.FitMemory
	if o.Context == 0 {
		o.Context = calibratePiece
	}
	e, s, err := openRouted(o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer s.Close()
	cfg := e.Model().Config()
	rep := &CalibrateReport{Machine: ThisMachine(), Commit: Commit(), Model: e.Options().Path, Source: "texts", TopK: cfg.TopK}
	say := func(format string, args ...any) {
		if c.Progress != nil {
			c.Progress(fmt.Sprintf(format, args...))
		}
	}
	most, piece := c.Tokens, min(calibratePiece, e.Options().Context)
	var ids [][]int32
	if len(c.Texts) > 0 {
		if most == 0 {
			most = calibrateTokens
		}
		ids, err = e.TextsPieces(c.Texts, piece, most)
	} else {
		if most == 0 {
			most = calibrateWritten
		}
		rep.Source = "written by the model"
		ids, err = written(ctx, e, s, most, min(piece, 256), c.Seed, say)
	}
	if err != nil {
		return nil, err
	}
	var fit, held [][]int32
	every := int(math.Round(1 / calibrateHeld))
	for i, t := range ids {
		if i%every == every-1 || i == len(ids)-1 && len(held) == 0 {
			held = append(held, t)
			rep.Tokens += len(t)
		} else {
			fit = append(fit, t)
			rep.FitTokens += len(t)
		}
	}
	if rep.FitTokens < 2*cfg.TopK || rep.Tokens < 1 {
		return nil, fmt.Errorf("%d tokens to fit on and %d of other pieces to judge by: give more texts (a piece ends at %d tokens)", rep.FitTokens, rep.Tokens, piece)
	}
	maps, err := s.FitPredictor(ctx, fit, engine.AfterAttention, true, func(done, all int) { say("fitted %d of %d layers", done, all) })
	if err != nil {
		return nil, err
	}
	gate, err := routerMaps(e)
	if err != nil {
		return nil, err
	}
	var judges []*judge
	for _, m := range []struct {
		method string
		fitted bool
	}{{"gate-ahead", false}, {"fitted", true}} {
		use := maps
		if !m.fitted {
			use = nil
		}
		j, err := newJudge(e, gate, "after attention", m.method, engine.AfterAttention, use, true)
		if err != nil {
			return nil, err
		}
		judges = append(judges, j)
	}
	if err := judgeTexts(ctx, e, s, judges, fit[:min(len(fit), 4)], held); err != nil {
		return nil, err
	}
	rep.Rows = [2]RecallRow{judges[0].result(), judges[1].result()}
	better := func(a, b [3]float64) bool { return b[0] > a[0]+calibrateLeast }
	g, f := &rep.Rows[0], &rep.Rows[1]
	if better(g.Ahead1, f.Ahead1) && f.Ahead2[0] >= g.Ahead2[0] || better(g.Ahead2, f.Ahead2) && f.Ahead1[0] >= g.Ahead1[0] {
		if rep.Path, rep.Bytes, err = e.SavePredictor(c.Dir, maps); err != nil {
			return nil, err
		}
		rep.Saved = true
	}
	rep.Seconds = time.Since(start).Seconds()
	return rep, nil
}

// written lets the model write texts of so many tokens in all, each begun with its start token and drawn at temperature 1.
func written(ctx context.Context, e *engine.Engine, s *engine.Session, most, each int, seed uint64, say func(string, ...any)) ([][]int32, error) {
	begin, err := e.TextsTokens([]string{"\n"})
	if err != nil {
		return nil, err
	}
	begin[0] = begin[0][:1]
	var out [][]int32
	for n := 0; n < most; {
		p := sample.Defaults(e.Model().Config().Vocab)
		p.Temp, p.TopK, p.TopP, p.MinP, p.RepeatPenalty, p.Seed = 1, 0, 1, 0.02, 1, int64(seed)+int64(len(out))
		p.EOG = e.Tokenizer().EOG()
		sm, err := sample.New(p)
		if err != nil {
			return nil, err
		}
		s.Reset()
		r, err := s.Generate(ctx, engine.Request{Prompt: begin[0], Max: max(each-1, 1), Sampler: sm})
		if err != nil {
			return nil, err
		}
		t := append([]int32{begin[0][0]}, r.Tokens...)
		if n += len(t); len(r.Tokens) > 0 {
			out = append(out, t)
		}
		if len(out)%8 == 0 {
			say("the model has written %d of %d tokens", min(n, most), most)
		}
	}
	return out, nil
}
