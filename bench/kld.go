package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"terrace/engine"
)

// KLDReport says how far the next-token distributions Q of a model are from those P of a reference, over the same positions.
// Divergences are the sum over the vocabulary of P ln(P/Q), in natural units.
type KLDReport struct {
	Model  string  `json:"model"` // the files
	Ref    string  `json:"ref"`
	Tokens int     `json:"tokens"`      // positions compared
	Mean   float64 `json:"kld"`         // of the divergences
	Error  float64 `json:"kld_error"`   // standard error of Mean
	Median float64 `json:"kld_median"`  // of the divergences
	P99    float64 `json:"kld_99"`      // 99 of 100 positions are not above
	Max    float64 `json:"kld_max"`     //
	Top1   float64 `json:"top1"`        // share of positions at which both find the same token likeliest
	PPL    float64 `json:"ppl"`         // of the model
	RefPPL float64 `json:"ref_ppl"`     // of the reference
	Ratio  float64 `json:"ppl_ratio"`   // PPL / RefPPL
	Delta  float64 `json:"mean_dlogp"`  // mean of ln Q - ln P of the token that came
	RMS    float64 `json:"rms_dp_top1"` // root mean square of Q - P of the reference's likeliest token
}

// KLDConfig asks for a comparison.
type KLDConfig struct {
	Texts  []string
	Whole  bool                  // what a context does not hold is scored too, as Perplexity does
	Most   int                   // positions at most; 0: all
	Report func(tokens int) bool // told now and then; false ends it there; nil: not wanted
}

// KLD evaluates texts with a model and its reference side by side, some rows of logits at a time, so that it needs no
// more memory for a long text than for a short one. The vocabularies must be the same.
func KLD(ctx context.Context, e, ref *engine.Engine, s, refS *engine.Session, c KLDConfig) (*KLDReport, error) {
	vocab := e.Model().Config().Vocab
	name, refName := e.Options().Path, ref.Options().Path
	if n := ref.Model().Config().Vocab; n != vocab {
		return nil, fmt.Errorf("%s has a vocabulary of %d tokens, %s one of %d: there is nothing to compare", name, vocab, refName, n)
	}
	start, err := startToken(ref)
	if err != nil {
		return nil, err
	}
	piece, err := scoredLength(e, ref)
	if err != nil {
		return nil, err
	}
	rows := min(logitsRows(e), logitsRows(ref))
	q, p := make([]float32, rows*vocab), make([]float32, rows*vocab)
	r := &KLDReport{Model: name, Ref: refName}
	var all []float64
	var nll, refNLL, sq float64
	same := 0
texts:
	for i, text := range c.Texts {
		ids := ref.Tokenizer().Encode(nil, text, false, false)
		if mine := e.Tokenizer().Encode(nil, text, false, false); !slices.Equal(mine, ids) {
			return nil, fmt.Errorf("text %d: %s makes %d tokens of it, %s %d, and they are not the same: the vocabularies differ", i+1, name, len(mine), refName, len(ids))
		}
		for ids := range scoredPieces(ids, start, piece, c.Whole) {
			s.Reset()
			refS.Reset()
			for at := 0; at < len(ids)-1; at += rows {
				n := min(rows, len(ids)-1-at)
				if c.Most > 0 {
					if n = min(n, c.Most-len(all)); n == 0 {
						break texts
					}
				}
				if err := errors.Join(s.EvalAll(ctx, ids[at:at+n], q[:n*vocab]), refS.EvalAll(ctx, ids[at:at+n], p[:n*vocab])); err != nil {
					return nil, fmt.Errorf("text %d: %w", i+1, err)
				}
				for k := range n {
					d := compareLogits(q[k*vocab:(k+1)*vocab], p[k*vocab:(k+1)*vocab], ids[at+k+1])
					if d.kl-d.kl != 0 {
						return nil, fmt.Errorf("text %d, token %d: the divergence is %g: logits of %s or %s are no numbers", i+1, at+k, d.kl, name, refName)
					}
					all = append(all, d.kl)
					nll -= d.q
					refNLL -= d.p
					sq += d.top * d.top
					if d.same {
						same++
					}
				}
				if c.Report != nil && !c.Report(len(all)) {
					break texts
				}
			}
		}
	}
	n := float64(len(all))
	if r.Tokens = len(all); n == 0 {
		return nil, fmt.Errorf("no token to score in %d texts", len(c.Texts))
	}
	for _, d := range all {
		r.Mean += d / n
	}
	for _, d := range all {
		r.Error += (d - r.Mean) * (d - r.Mean)
	}
	r.Error = math.Sqrt(r.Error/max(n-1, 1)) / math.Sqrt(n)
	slices.Sort(all)
	at := func(share float64) float64 { return all[min(int(share*n), len(all)-1)] }
	r.Median, r.P99, r.Max = at(0.5), at(0.99), all[len(all)-1]
	r.Top1, r.RMS = float64(same)/n, math.Sqrt(sq/n)
	r.PPL, r.RefPPL, r.Delta = math.Exp(nll/n), math.Exp(refNLL/n), (refNLL-nll)/n
	r.Ratio = math.Exp((nll - refNLL) / n)
	return r, nil
}

// logitsDistance is what two rows of logits have to do with one another.
type logitsDistance struct {
	kl   float64 // sum of P ln(P/Q)
	q, p float64 // ln Q and ln P of the token that came
	top  float64 // Q - P of P's likeliest token
	same bool    // it is Q's too
}

// compareLogits compares the logits q with the reference's p, before token next. Rounding may leave a divergence of equal
// distributions a little below 0, which no divergence is.
func compareLogits(q, p []float32, next int32) logitsDistance {
	qTop, qMax := ArgMax(q)
	pTop, pMax := ArgMax(p)
	var qSum, pSum, cross float64
	for i := range p {
		qi, pi := float64(q[i])-float64(qMax), float64(p[i])-float64(pMax)
		w := math.Exp(pi)
		qSum += math.Exp(qi)
		pSum += w
		if w > 0 {
			cross += w * (pi - qi)
		}
	}
	qLog, pLog := math.Log(qSum), math.Log(pSum)
	at := func(v []float32, i int32, top float32, log float64) float64 {
		return float64(v[i]) - float64(top) - log
	}
	return logitsDistance{
		kl: max(cross/pSum-pLog+qLog, 0),
		q:  at(q, next, qMax, qLog), p: at(p, next, pMax, pLog),
		top:  math.Exp(at(q, pTop, qMax, qLog)) - math.Exp(at(p, pTop, pMax, pLog)),
		same: qTop == pTop,
	}
}
