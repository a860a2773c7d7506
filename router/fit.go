package router

import (
	"errors"
	"fmt"
	"math"
)

// Normal collects the normal equations of a linear least-squares fit of Targets values on Features numbers (the constant
// among them, if one is wanted): sums over samples in float64.
type Normal struct {
	Features, Targets int
	Samples           int
	xx                []float64 // Features x Features, the lower triangle counts
	xy                []float64 // Features x Targets
}

// NewNormal makes empty sums.
func NewNormal(features, targets int) *Normal {
	return &Normal{Features: features, Targets: targets, xx: make([]float64, features*features), xy: make([]float64, features*targets)}
}

// Add adds the products of n samples: xx is X transposed times X (Features x Features), xy X transposed times Y.
func (q *Normal) Add(n int, xx, xy []float32) {
	if len(xx) != len(q.xx) || len(xy) != len(q.xy) {
		panic(fmt.Sprintf("router: products of %d and %d numbers for sums of %d and %d", len(xx), len(xy), len(q.xx), len(q.xy)))
	}
	q.Samples += n
	for i, x := range xx {
		q.xx[i] += float64(x)
	}
	for i, x := range xy {
		q.xy[i] += float64(x)
	}
}

// errFit says that no fit came of the samples.
var errFit = errors.New("router: the samples allow no fit")

// Solve returns the coefficients, Targets x Features, of the fit that minimises the squared error plus ridge times the
// mean squared feature times the squared coefficients (Hoerl and Kennard, 1970), by Cholesky decomposition.
func (q *Normal) Solve(ridge float64) ([]float32, error) {
	d, t := q.Features, q.Targets
	if q.Samples == 0 {
		return nil, fmt.Errorf("%w: there are none", errFit)
	}
	trace := 0.0
	for i := range d {
		trace += q.xx[i*d+i]
	}
	add := ridge * trace / float64(d)
	l := make([]float64, d*d)
	for i := range d {
		li := l[i*d : i*d+i+1]
		for j := range li {
			lj := l[j*d : j*d+j+1]
			s := q.xx[i*d+j]
			if i == j {
				s += add
			}
			for k := range j {
				s -= li[k] * lj[k]
			}
			if i != j {
				li[j] = s / lj[j]
				continue
			}
			if !(s > 0) {
				return nil, fmt.Errorf("%w: pivot %d of %d is %g", errFit, i, d, s)
			}
			li[i] = math.Sqrt(s)
		}
	}
	out := make([]float32, t*d)
	x := make([]float64, d)
	for c := range t {
		for i := range d {
			s := q.xy[i*t+c]
			for k := range i {
				s -= l[i*d+k] * x[k]
			}
			x[i] = s / l[i*d+i]
		}
		for i := d - 1; i >= 0; i-- {
			s := x[i]
			for k := i + 1; k < d; k++ {
				s -= l[k*d+i] * x[k]
			}
			x[i] = s / l[i*d+i]
			if math.IsNaN(x[i]) || math.Abs(x[i]) > math.MaxFloat32 {
				return nil, fmt.Errorf("%w: a coefficient is %g", errFit, x[i])
			}
			out[c*d+i] = float32(x[i])
		}
	}
	return out, nil
}

// Part keeps some features and targets.
func (q *Normal) Part(features, targets []int) *Normal {
	p := NewNormal(len(features), len(targets))
	p.Samples = q.Samples
	for i, f := range features {
		for j, g := range features {
			p.xx[i*p.Features+j] = q.xx[f*q.Features+g]
		}
		for j, t := range targets {
			p.xy[i*p.Targets+j] = q.xy[f*q.Targets+t]
		}
	}
	return p
}
