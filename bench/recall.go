package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"terrace/engine"
	"terrace/gguf"
	"terrace/model"
	"terrace/quant"
	"terrace/router"
)

// RecallConfig compares predictors on texts: maps are fitted on the first texts and judged on the rest.
type RecallConfig struct {
	Engine   engine.Options
	Texts    []string
	FitShare float64 // of the texts that maps are fitted on; 0: 0.6
	Progress func(done, all int)
}

// RecallRow is one predictor on one signal. Recall is the share of the true top-k found among the first k, 1.5 k and 2 k
// guesses, mean over the layers, one and two layers ahead.
type RecallRow struct {
	Signal string         `json:"signal"`
	Method string         `json:"method"`
	Ahead1 [3]float64     `json:"ahead_1"`
	Ahead2 [3]float64     `json:"ahead_2"`
	ECE    [2]float64     `json:"expected_calibration_error"` // of the first 2 k guesses' chances
	Bins   [2][]ChanceBin `json:"reliability,omitempty"`
}

// ChanceBin is one bar of a reliability diagram.
type ChanceBin struct {
	Said    float64 `json:"said"` // mean chance given
	True    float64 `json:"true"` // share that came true
	Guesses int     `json:"guesses"`
}

// RecallReport is what Recall finds.
type RecallReport struct {
	Machine   Machine     `json:"machine"`
	Commit    string      `json:"commit"`
	Model     string      `json:"model"`
	TopK      int         `json:"top_k"`
	FitTexts  int         `json:"fit_texts"`
	FitTokens int         `json:"fit_tokens"`
	Texts     int         `json:"texts"`
	Tokens    int         `json:"tokens"`
	Rows      []RecallRow `json:"rows"`
}

// reliabilityBins is the number of bars of equal width between chance 0 and 1.
const reliabilityBins = 10

// judge scores one predictor on one signal.
type judge struct {
	row     RecallRow
	signal  engine.FitSignal
	weights map[[2]int]linear
	coarse  bool // weights and residual go through Q8_0, as they do when the engine guesses
	pred    router.Predictor
	chance  map[[2]int]*router.Chance
	hits    [2][3]int
	all     [2]int
	said    [2][reliabilityBins]float64
	came    [2][reliabilityBins]int
	count   [2][reliabilityBins]int
}

// Recall measures recall and calibration.
func Recall(ctx context.Context, c RecallConfig) (*RecallReport, error) {
	if c.FitShare == 0 {
		c.FitShare = 0.6
	}
	if !(c.FitShare > 0 && c.FitShare < 1) || len(c.Texts) < 2 {
		return nil, fmt.Errorf("%w: %d texts, %g of them to be fitted on: want some for each", engine.ErrUsage, len(c.Texts), c.FitShare)
	}
	e, s, err := openRouted(c.Engine)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer s.Close()
	cfg := e.Model().Config()
	ids, err := e.TextsTokens(c.Texts)
	if err != nil {
		return nil, err
	}
	cut := min(max(int(math.Round(c.FitShare*float64(len(ids)))), 1), len(ids)-1)
	fit, held := ids[:cut], ids[cut:]
	rep := &RecallReport{Machine: ThisMachine(), Commit: Commit(), Model: e.Options().Path, TopK: cfg.TopK, FitTexts: len(fit), Texts: len(held)}
	for _, t := range fit {
		rep.FitTokens += len(t)
	}
	for _, t := range held {
		rep.Tokens += len(t)
	}
	judges, err := makeJudges(ctx, e, s, fit, c.Progress)
	if err != nil {
		return nil, err
	}
	if err := judgeTexts(ctx, e, s, judges, fit, held); err != nil {
		return nil, err
	}
	for _, j := range judges {
		rep.Rows = append(rep.Rows, j.result())
	}
	return rep, nil
}

// judgeTexts scores the judges on held-out texts. Chances are learnt on the texts of the fit, then go on learning as they
// would live.
func judgeTexts(ctx context.Context, e *engine.Engine, s *engine.Session, judges []*judge, fit, held [][]int32) error {
	cfg := e.Model().Config()
	n, k := cfg.Experts, cfg.TopK
	choices := make([][]int32, cfg.Layers)
	weights := make([]float32, k)
	var sc router.Scratch
	for _, part := range []struct {
		texts [][]int32
		count bool
	}{{fit, false}, {held, true}} {
		err := s.Scan(ctx, part.texts, func(seen []*model.Watched, rows int, first bool) error {
			for l, w := range seen {
				choices[l] = choices[l][:0]
				if w == nil {
					continue
				}
				choices[l] = slices.Grow(choices[l], rows*k)[:rows*k]
				for r := range rows {
					if err := e.Model().Rule(l).TopK(w.Scores[r*n:(r+1)*n], choices[l][r*k:(r+1)*k], weights, &sc); err != nil {
						return fmt.Errorf("layer %d: %w", l, err)
					}
				}
			}
			for _, j := range judges {
				j.batch(e, seen, choices, rows, part.count)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// linear is a matrix, experts x embd, and what is added to the product, nil where nothing is.
type linear struct{ w, bias []float32 }

// routerMaps are what gate-ahead makes scores with, by pair of layers.
func routerMaps(e *engine.Engine) (map[[2]int]linear, error) {
	gate := map[[2]int]linear{}
	for l := range e.Model().Config().Layers {
		if e.Model().Rule(l) == nil {
			continue
		}
		w, bias, err := e.RouterMap(l)
		if err != nil {
			return nil, err
		}
		for k := 1; k <= 2 && l-k >= 0; k++ {
			gate[[2]int{l - k, l}] = linear{w, bias}
		}
	}
	return gate, nil
}

// coarsened are weights after a way through Q8_0.
func coarsened(weights map[[2]int]linear) (map[[2]int]linear, error) {
	out := make(map[[2]int]linear, len(weights))
	for at, m := range weights {
		m.w = slices.Clone(m.w)
		if err := throughQ8(m.w); err != nil {
			return nil, err
		}
		out[at] = m
	}
	return out, nil
}

// throughQ8 encodes and decodes x where its length allows.
func throughQ8(x []float32) error {
	if len(x)%gguf.Q8_0.BlockSize() != 0 {
		return nil
	}
	b := make([]byte, gguf.Q8_0.RowBytes(len(x)))
	if err := quant.Encode(gguf.Q8_0, b, x); err != nil {
		return err
	}
	return quant.Decode(gguf.Q8_0, x, b)
}

// newJudge makes a judge of maps, or of the routers ahead where maps is nil.
func newJudge(e *engine.Engine, gate map[[2]int]linear, signal, method string, which engine.FitSignal, maps []router.Map, coarse bool) (*judge, error) {
	cfg := e.Model().Config()
	p, err := router.NewLinear(cfg.Layers, cfg.Experts, maps)
	if err != nil {
		return nil, err
	}
	j := &judge{row: RecallRow{Signal: signal, Method: method}, signal: which, pred: p, weights: gate, coarse: coarse, chance: map[[2]int]*router.Chance{}}
	if maps != nil {
		j.weights = map[[2]int]linear{}
		for i := range maps {
			j.weights[[2]int{maps[i].At, maps[i].Target}] = linear{w: maps[i].State} // the map adds its own bias
		}
	}
	if coarse {
		j.weights, err = coarsened(j.weights)
	}
	return j, err
}

func makeJudges(ctx context.Context, e *engine.Engine, s *engine.Session, fit [][]int32, progress func(int, int)) ([]*judge, error) {
	cfg := e.Model().Config()
	gate, err := routerMaps(e)
	if err != nil {
		return nil, err
	}
	var out []*judge
	add := func(signal, method string, which engine.FitSignal, maps []router.Map, coarse bool) error {
		j, err := newJudge(e, gate, signal, method, which, maps, coarse)
		out = append(out, j)
		return err
	}
	prior := func(signal, method string, which engine.FitSignal, gateAhead, last, pairs float32) {
		out = append(out, &judge{row: RecallRow{Signal: signal, Method: method}, signal: which, weights: gate, chance: map[[2]int]*router.Chance{},
			pred: router.NewPrior(cfg.Layers, cfg.Experts, gateAhead, last, pairs)})
	}
	prior("none", "the previous token's scores", engine.AfterAttention, 0, 1, 0)
	prior("none", "experts chosen together", engine.AfterAttention, 0, 0, 1)
	prior("none", "both", engine.AfterAttention, 0, 1, 1)
	for _, sig := range []struct {
		name  string
		which engine.FitSignal
	}{{"before attention", engine.BeforeAttention}, {"after attention", engine.AfterAttention}, {"output of the layer", engine.LayerOutput}} {
		if err := add(sig.name, "gate-ahead", sig.which, nil, false); err != nil {
			return nil, err
		}
		if err := add(sig.name, "gate-ahead, Q8_0", sig.which, nil, true); err != nil {
			return nil, err
		}
		prior(sig.name, "gate-ahead with both priors", sig.which, 1, 0.1, 0.1)
		for _, more := range []bool{false, true} {
			maps, err := s.FitPredictor(ctx, fit, sig.which, more, progress)
			if err != nil {
				return nil, err
			}
			method := "ridge"
			if more {
				method = "ridge, more features"
			}
			if err := add(sig.name, method, sig.which, maps, false); err != nil {
				return nil, err
			}
			if more {
				if err := add(sig.name, method+", Q8_0", sig.which, maps, true); err != nil {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

// batch guesses for each row as decoding would, and scores the guesses if count says so.
func (j *judge) batch(e *engine.Engine, seen []*model.Watched, choices [][]int32, rows int, count bool) {
	cfg := e.Model().Config()
	h, n, k := cfg.Embd, cfg.Experts, cfg.TopK
	u, scores := make([]float32, h), make([]float32, n)
	guesses, margins := make([]int32, min(2*k, n)), make([]float32, min(2*k, n))
	for r := range rows {
		for at, w := range seen {
			if w == nil {
				continue
			}
			j.pred.Observe(at, choices[at][r*k:(r+1)*k], w.Scores[r*n:(r+1)*n])
			state := j.signal.State(seen, at)
			if state == nil {
				continue
			}
			e.Normalised(u, state[r*h:(r+1)*h])
			if j.coarse && throughQ8(u) != nil { // not finite: the layer itself reports it
				continue
			}
			for d := 1; d <= 2 && at+d < len(seen); d++ {
				t := seen[at+d]
				m := j.weights[[2]int{at, at + d}]
				if t == nil || m.w == nil {
					continue
				}
				truth := choices[at+d][r*k : (r+1)*k]
				for i := range scores {
					scores[i] = dot(m.w[i*h:(i+1)*h], u)
					if m.bias != nil {
						scores[i] += m.bias[i]
					}
				}
				sig := router.Signal{Scores: scores, Rows: 1, Rule: e.Model().Rule(at + d)}
				got := j.pred.Predict(guesses, at, at+d, sig)
				j.pred.Margins(margins[:len(got)], got, at, at+d, sig)
				ch := j.chance[[2]int{at, at + d}]
				if ch == nil {
					ch = new(router.Chance)
					j.chance[[2]int{at, at + d}] = ch
				}
				for i, g := range got {
					hit := false
					for _, x := range truth {
						hit = hit || x == g
					}
					if count {
						if hit {
							for b, most := range []int{k, k + k/2, 2 * k} {
								if i < most {
									j.hits[d-1][b]++
								}
							}
						}
						p := ch.Of(margins[i])
						bin := min(int(p*reliabilityBins), reliabilityBins-1)
						j.said[d-1][bin] += float64(p)
						j.count[d-1][bin]++
						if hit {
							j.came[d-1][bin]++
						}
					}
					ch.Learn(margins[i], hit)
				}
				if count {
					j.all[d-1] += k
				}
			}
		}
	}
}

func (j *judge) result() RecallRow {
	for d := range 2 {
		for b := range 3 {
			v := ratio(int64(j.hits[d][b]), int64(j.all[d]))
			if d == 0 {
				j.row.Ahead1[b] = v
			} else {
				j.row.Ahead2[b] = v
			}
		}
		total := 0
		for _, n := range j.count[d] {
			total += n
		}
		for b, n := range j.count[d] {
			if n == 0 {
				continue
			}
			bin := ChanceBin{Said: j.said[d][b] / float64(n), True: float64(j.came[d][b]) / float64(n), Guesses: n}
			j.row.Bins[d] = append(j.row.Bins[d], bin)
			j.row.ECE[d] += math.Abs(bin.Said-bin.True) * float64(n) / float64(total)
		}
	}
	return j.row
}

func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	for i := 0; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for i := len(a) &^ 3; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + (s2 + s3)
}
