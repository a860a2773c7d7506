package engine

import (
	"context"
	"fmt"
)

// Pooling says how the vectors of a text's tokens become the text's.
type Pooling uint8

// The ways.
const (
	PoolNone  Pooling = iota // not at all: a vector for each token
	PoolMean                 // their mean, summed in the order of the tokens in float64
	PoolFirst                // the first one's
	PoolLast                 // the last one's
)

// Pooling is what the model's file asks for, the mean where it asks for nothing. A model that is made to rank texts wraps
// ErrUnsupported.
func (e *Engine) Pooling() (Pooling, error) {
	key := e.model.Config().Arch + ".pooling_type"
	n, err := e.file.Metadata.UintOr(key, uint64(PoolMean))
	if err != nil {
		return 0, err
	}
	if n > uint64(PoolLast) {
		return 0, fmt.Errorf("embedding texts %w: %s is %d, want 0 to %d", ErrUnsupported, key, n, PoolLast)
	}
	return Pooling(n), nil
}

// embedding gathers the vectors of a text: what the output matrix would make logits of.
type embedding struct {
	how   Pooling
	width int
	rows  []float32 // of a pass
	sum   []float64
	n     int // tokens so far
	out   [][]float32
}

// begin forgets what was gathered.
func (v *embedding) begin() {
	clear(v.sum)
	v.n, v.out = 0, nil
}

// wants is the number of the last rows of a piece of n tokens that are needed; last says that the text ends with it.
func (v *embedding) wants(n int, last bool) int {
	switch {
	case v.how != PoolLast && (v.how != PoolFirst || v.n == 0):
		return n
	case v.how == PoolLast && last:
		return 1
	}
	return 0
}

// room is where the rows go.
func (v *embedding) room(rows int) []float32 {
	if need := rows * v.width; cap(v.rows) < need {
		v.rows = make([]float32, need)
	}
	v.rows = v.rows[:rows*v.width]
	return v.rows
}

// took takes a piece of n tokens whose rows were read.
func (v *embedding) took(n int) {
	row := func(i int) []float32 { return append([]float32(nil), v.rows[i*v.width:(i+1)*v.width]...) }
	have := len(v.rows) / v.width
	switch v.how {
	case PoolNone:
		for i := range have {
			v.out = append(v.out, row(i))
		}
	case PoolMean:
		for i, x := range v.rows {
			v.sum[i%v.width] += float64(x)
		}
	case PoolFirst:
		if v.n == 0 {
			v.out = [][]float32{row(0)}
		}
	case PoolLast:
		if have > 0 {
			v.out = [][]float32{row(0)}
		}
	}
	v.n += n
}

// end is what became of it.
func (v *embedding) end() [][]float32 {
	if v.how != PoolMean {
		return v.out
	}
	mean := make([]float32, v.width)
	for i, x := range v.sum {
		mean[i] = float32(x / float64(v.n))
	}
	return [][]float32{mean}
}

// Embed makes the vector of a text, or with PoolNone one for each of its tokens. It takes its turn as a Job does, and its
// vectors do not depend on what else runs; nothing of it is kept. Vectors are as the model has them, not normalised.
func (s *Scheduler) Embed(ctx context.Context, tokens []int32, how Pooling) ([][]float32, error) {
	if how > PoolLast {
		panic(fmt.Sprintf("engine: pooling %d", how))
	}
	width := s.e.model.Config().Embd
	v := &embedding{how: how, width: width}
	if how == PoolMean {
		v.sum = make([]float64, width)
	}
	if _, err := s.Do(ctx, Job{Prompt: tokens, Slot: -1, NoCache: true, embed: v}); err != nil {
		return nil, err
	}
	return v.end(), nil
}
