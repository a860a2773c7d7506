package router

import (
	"fmt"
	"math"
)

// Chance turns the place of a guess among its layer's scores into the probability that the router will choose the expert,
// learnt as the truth comes in. A guess is described by its margin: the guessed score less the middle between the K-th and
// the K+1-th largest, in standard deviations of the layer's scores, so that nothing has to be known about the model.
// Margins fall into bins of equal width, and a bin's chance is the share of its guesses that came true; bins that saw little
// lean on a logistic prior. Old guesses count less and less, so a change of text is followed.
//
// The zero value is ready. One goroutine at a time may use it.
type Chance struct {
	bins  [chanceBins]chanceBin
	ready bool
}

type chanceBin struct{ hit, all float64 }

const (
	chanceBins  = 48
	chanceRange = 3.0  // margins beyond it fall into the outermost bins
	chanceSpan  = 4000 // guesses of a bin after which older ones count half
	chancePrior = 8    // guesses that the prior is worth
)

func chanceBinOf(margin float32) int {
	b := int(math.Floor((float64(margin) + chanceRange) * chanceBins / (2 * chanceRange)))
	return min(max(b, 0), chanceBins-1)
}

func (c *Chance) prepare() {
	if c.ready {
		return
	}
	c.ready = true
	for i := range c.bins {
		mid := (float64(i)+0.5)*2*chanceRange/chanceBins - chanceRange
		p := 1 / (1 + math.Exp(-3*mid))
		c.bins[i] = chanceBin{hit: p * chancePrior, all: chancePrior}
	}
}

// Of is the chance of a guess of that margin.
func (c *Chance) Of(margin float32) float32 {
	c.prepare()
	b := &c.bins[chanceBinOf(margin)]
	return float32(b.hit / b.all)
}

// Learn tells whether a guess of that margin came true.
func (c *Chance) Learn(margin float32, hit bool) {
	c.prepare()
	b := &c.bins[chanceBinOf(margin)]
	if b.all >= chanceSpan {
		b.hit, b.all = b.hit/2, b.all/2
	}
	b.all++
	if hit {
		b.hit++
	}
}

// Margins sets dst[i] to the margin of expert ids[i] among the scores of one row: its score less the middle between the
// k-th and the next largest, in standard deviations of the scores. 0 where all scores are equal.
func Margins(dst []float32, ids []int32, scores []float32, k int, s *Scratch) {
	if len(dst) != len(ids) || k < 1 || k > len(scores) {
		panic(fmt.Sprintf("router: %d margins for %d experts, the %d best of %d", len(dst), len(ids), k, len(scores)))
	}
	var sum, sq float64
	for _, x := range scores {
		sum += float64(x)
		sq += float64(x) * float64(x)
	}
	n := float64(len(scores))
	mean := sum / n
	dev := math.Sqrt(max(sq/n-mean*mean, 0))
	if len(s.top) < k+1 {
		s.top = make([]int32, k+1)
	}
	top := s.top[:min(k+1, len(scores))]
	got := best(top, scores, nil, len(scores))
	edge := float64(scores[top[min(k, got)-1]])
	if got > k {
		edge = (edge + float64(scores[top[k]])) / 2
	}
	for i, e := range ids {
		dst[i] = 0
		if dev > 0 {
			dst[i] = float32((float64(scores[e]) - edge) / dev)
		}
	}
}
