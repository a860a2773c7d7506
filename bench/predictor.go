package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"terrace/engine"
	"terrace/router"
)

// PredictorConfig replays a routing trace's tokens through the model.
type PredictorConfig struct {
	Engine engine.Options // Lookahead is the largest depth compared
	Trace  string         // file of router.TraceLine, gzipped or plain
	Tokens int            // at most so many; 0: all
}

// PredictorReport says how good the guesses were.
type PredictorReport struct {
	Tokens    int     `json:"tokens"`
	Agreement float64 `json:"trace_agreement"` // share of the trace's experts that this run chose too
	Recall1   float64 `json:"recall_1"`        // share of the true top-k among the top-k guesses one layer ahead
	Recall2   float64 `json:"recall_2"`
	// At the time of need, share of the experts that were:
	Resident float64 `json:"resident"`
	InFlight float64 `json:"in_flight"`
	Absent   float64 `json:"absent"`

	Depth     int          `json:"depth"`
	Predictor string       `json:"predictor"` // "gate-ahead", "gate-ahead, refined", "fitted"; "" at depth 0
	Slots     int          `json:"expert_slots"`
	Total     int          `json:"experts_total"`
	Store     string       `json:"store"`
	Detail    engine.Stats `json:"stats"`
}

// Predictor feeds the trace's tokens one at a time, as decoding would, and scores the guesses made on the way: once without any
// and once for each predictor and depth up to the asked one, each from an empty arena of the same size.
func Predictor(ctx context.Context, c PredictorConfig) ([]*PredictorReport, error) {
	most := c.Engine.Lookahead
	if most == engine.LookaheadAuto {
		most = 2
	}
	if c.Tokens < 0 {
		return nil, fmt.Errorf("%w: %d tokens of the trace, want at least 0", engine.ErrUsage, c.Tokens)
	}
	var rs []*PredictorReport
	run := func(o engine.Options, suffix string) error {
		o.GuessAlways = true
		r, err := predictorRun(ctx, o, c)
		if err != nil {
			return err
		}
		if r.Predictor = r.Detail.Prefetch.Predictor; r.Predictor != "" {
			r.Predictor += suffix
		}
		rs = append(rs, r)
		return nil
	}
	o := c.Engine
	o.Lookahead, o.Refine = 0, false
	if err := run(o, ""); err != nil {
		return nil, err
	}
	for _, k := range predictorKinds(c.Engine) {
		for depth := 1; depth <= most; depth++ {
			o.Lookahead, o.Predictor, o.Refine = depth, k.predictor, k.refine
			if err := run(o, k.suffix); err != nil {
				return nil, err
			}
		}
	}
	return rs, nil
}

type predictorKind struct {
	predictor, suffix string
	refine            bool
}

// predictorKinds are the ways of guessing that are compared: the one asked for, or all that there are.
func predictorKinds(o engine.Options) []predictorKind {
	gate, refined := predictorKind{"gate-ahead", "", false}, predictorKind{"gate-ahead", ", refined", true}
	switch {
	case o.Predictor == "fitted":
		return []predictorKind{{"fitted", "", false}}
	case o.Predictor == "gate-ahead" && o.Refine:
		return []predictorKind{refined}
	case o.Predictor == "gate-ahead":
		return []predictorKind{gate}
	case engine.HasPredictor(o):
		return []predictorKind{gate, refined, {"fitted", "", false}}
	}
	return []predictorKind{gate, refined}
}

// openRouted opens a model that has experts to predict, and a timeline. The caller closes both.
func openRouted(o engine.Options) (*engine.Engine, *engine.Session, error) {
	e, err := engine.Open(o)
	if err != nil {
		return nil, nil, err
	}
	if e.Model().Config().Experts == 0 {
		err = fmt.Errorf("%s: the model has no routed experts to predict", e.Options().Path)
	}
	var s *engine.Session
	if err == nil {
		s, err = e.NewSession()
	}
	if err != nil {
		e.Close()
		return nil, nil, err
	}
	return e, s, nil
}

func predictorRun(ctx context.Context, o engine.Options, c PredictorConfig) (*PredictorReport, error) {
	e, s, err := openRouted(o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer s.Close()
	t, err := router.OpenTrace(c.Trace)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	layers := 0
	for _, l := range e.Model().Experts() {
		if len(l) > 0 {
			layers++
		}
	}
	r := &PredictorReport{}
	var line router.TraceLine
	var same, all int
	layer := 0
	s.OnRoute(func(_ int, choices []int32) {
		if layer < len(line.Experts) {
			for _, id := range choices {
				for _, want := range line.Experts[layer] {
					if id == want {
						same++
					}
				}
			}
			all += len(line.Experts[layer])
		}
		layer++
	})
	defer s.OnRoute(nil)
	m := s.Measure()
	seq := -1
	for c.Tokens == 0 || r.Tokens < c.Tokens {
		if err := t.Next(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if len(line.Experts) != layers {
			return nil, fmt.Errorf("%s: a line has %d layers, the model has %d with experts", c.Trace, len(line.Experts), layers)
		}
		if line.Seq != seq {
			s.Reset()
			seq = line.Seq
		}
		if line.Pos < s.Pos() { // a conversation went back to a common beginning
			s.Truncate(line.Pos)
		}
		if s.Pos() >= e.Options().Context {
			continue
		}
		layer = 0
		if err := s.Eval(ctx, int32(line.Token)); err != nil {
			return nil, err
		}
		r.Tokens++
	}
	if r.Tokens == 0 {
		return nil, fmt.Errorf("%s: no token, want at least 1", c.Trace)
	}
	st := m.End()
	r.Agreement = ratio(int64(same), int64(all))
	r.Recall1, r.Recall2, r.Depth = st.Prefetch.Recall1, st.Prefetch.Recall2, st.Prefetch.Depth
	r.Resident, r.InFlight, r.Absent = ratio(st.HitsRAM, st.Touches), ratio(st.HitsInflight, st.Touches), ratio(st.Misses, st.Touches)
	r.Slots, r.Total, r.Store, r.Detail = st.ExpertSlots, st.ExpertsTotal, st.Store, st
	return r, nil
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
