// Package router says which experts a token goes to: the exact top-k rule, guesses about the layers ahead, and routing
// traces. It knows no storage, no tensors and no model: it speaks of expert numbers in a layer.
package router

import (
	"fmt"
	"math"

	"terrace/internal/fmath"
)

// Gating turns router scores (logits) into probabilities. The values are those of the GGUF key
// {arch}.expert_gating_func; zero is no gating function and Validate refuses it.
type Gating uint8

// Gating functions.
const (
	Softmax       Gating = 1 // softmax over all experts
	Sigmoid       Gating = 2 // a sigmoid for each expert
	SoftmaxWeight Gating = 3 // selection by the raw score, weights by softmax over the selected scores
)

func (g Gating) String() string {
	switch g {
	case Softmax:
		return "softmax"
	case Sigmoid:
		return "sigmoid"
	case SoftmaxWeight:
		return "softmax-weight"
	}
	return fmt.Sprintf("gating %d", uint8(g))
}

// minSum bounds the divisor of the normalisation from below: 2^-14, the smallest normal half-precision number.
const minSum = 6.103515625e-5

// Rule is one layer's way from router scores to experts and their weights. It is read-only once in use, so any number
// of goroutines may share it.
type Rule struct {
	Experts int // experts of the layer (expert_count)
	K       int // experts chosen for each token (expert_used_count)
	Gating  Gating
	Bias    []float32 // added to the probabilities for the selection only, one an expert; nil: none (exp_probs_b.bias)

	// Groups > 1 cuts the experts into that many runs of equal length, and only the experts of the GroupsUsed best runs
	// can be chosen. 0 and 1 mean no groups; GroupsUsed is not looked at then.
	Groups, GroupsUsed int

	Normalize bool    // divide the weights by their sum
	Scale     float32 // multiplies the weights after that; 0 and 1 leave them alone

	ExpertScale []float32 // multiplies each expert's weight at the end, one an expert; nil: none (ffn_down_exps.scale)
}

// Validate checks the rule against itself; the error names the field and both numbers.
func (r *Rule) Validate() error {
	switch {
	case r.Experts < 1 || r.Experts > math.MaxInt32:
		return fmt.Errorf("router: expert count %d is outside 1..%d", r.Experts, math.MaxInt32)
	case r.K < 1 || r.K > r.Experts:
		return fmt.Errorf("router: used expert count %d is outside 1..%d, the expert count", r.K, r.Experts)
	case r.Gating < Softmax || r.Gating > SoftmaxWeight:
		return fmt.Errorf("router: gating function %d is outside %d..%d", r.Gating, Softmax, SoftmaxWeight)
	case r.Bias != nil && len(r.Bias) != r.Experts:
		return fmt.Errorf("router: selection bias has %d elements for %d experts", len(r.Bias), r.Experts)
	case r.ExpertScale != nil && len(r.ExpertScale) != r.Experts:
		return fmt.Errorf("router: expert scale has %d elements for %d experts", len(r.ExpertScale), r.Experts)
	case r.Groups < 0:
		return fmt.Errorf("router: expert group count %d is below 0", r.Groups)
	case !finite(r.Scale):
		return fmt.Errorf("router: weight scale is %v, not a finite number", r.Scale)
	}
	for i, b := range r.Bias {
		if !finite(b) {
			return fmt.Errorf("router: selection bias of expert %d is %v, not a finite number", i, b)
		}
	}
	for i, s := range r.ExpertScale {
		if !finite(s) {
			return fmt.Errorf("router: scale of expert %d is %v, not a finite number", i, s)
		}
	}
	if r.Groups <= 1 {
		return nil
	}
	size := r.Experts / r.Groups
	switch {
	case size*r.Groups != r.Experts:
		return fmt.Errorf("router: %d experts cannot be cut into %d equal groups", r.Experts, r.Groups)
	case size < 2:
		return fmt.Errorf("router: %d experts in %d groups leave %d a group, and a group's score needs 2", r.Experts, r.Groups, size)
	case r.GroupsUsed < 1 || r.GroupsUsed > r.Groups:
		return fmt.Errorf("router: used group count %d is outside 1..%d, the group count", r.GroupsUsed, r.Groups)
	case r.GroupsUsed*size < r.K:
		return fmt.Errorf("router: %d groups of %d experts hold fewer than the %d to be chosen", r.GroupsUsed, size, r.K)
	}
	return nil
}

// Scratch is the working memory of TopK and of predictors: the zero value is ready, grows to the largest rule it meets
// and allocates nothing after that. One goroutine at a time may use it.
type Scratch struct {
	probs, sel []float32 // one an expert
	group      []float32 // one a group
	kept       []bool    // one a group
	best       []int32   // best groups
	top        []int32   // best experts, for margins
}

func (s *Scratch) grow(r *Rule) {
	if len(s.probs) < r.Experts {
		s.probs = make([]float32, r.Experts)
		s.sel = make([]float32, r.Experts)
	}
	if len(s.group) < r.Groups {
		s.group = make([]float32, r.Groups)
		s.kept = make([]bool, r.Groups)
		s.best = make([]int32, r.Groups)
	}
}

// TopK chooses the K best experts for one token. scores holds one router score (logit) an expert; ids and weights
// receive K entries each, in the order of falling selection value, ties by lower expert number. That order is also the
// order in which the experts' outputs have to be summed.
//
// All arithmetic is float32 in a fixed order, products and sums rounded separately: softmax subtracts the largest score
// and sums in expert order; the sums over the chosen run in the order of ids.
//
// A score that is NaN or +Inf is an error that names the expert; so is a layer whose scores are all -Inf where they
// would have to be compared with each other. Slices of another length and a rule that Validate would refuse break the
// contract.
func (r *Rule) TopK(scores []float32, ids []int32, weights []float32, s *Scratch) error {
	if len(ids) != r.K || len(weights) != r.K {
		panic(fmt.Sprintf("router: TopK got room for %d ids and %d weights, the rule chooses %d", len(ids), len(weights), r.K))
	}
	n, err := r.rank(scores, ids, s)
	if err != nil {
		return err
	}
	if n != r.K {
		panic(fmt.Sprintf("router: %d experts stand for choice where %d are wanted: the rule was not validated", n, r.K))
	}
	if r.Gating == SoftmaxWeight {
		top := float32(math.Inf(-1))
		for _, id := range ids {
			top = max(top, scores[id])
		}
		if math.IsInf(float64(top), -1) {
			return fmt.Errorf("router: score of expert %d is -Inf, and so are those of all %d chosen", ids[0], r.K)
		}
		sum := float32(0)
		for i, id := range ids {
			weights[i] = fmath.Exp(scores[id] - top)
			sum += weights[i]
		}
		for i := range weights {
			weights[i] /= sum
		}
	} else {
		for i, id := range ids {
			weights[i] = s.probs[id]
		}
	}
	if r.Normalize {
		sum := float32(0)
		for _, w := range weights {
			sum += w
		}
		sum = max(sum, minSum)
		for i := range weights {
			weights[i] /= sum
		}
	}
	if r.Scale != 0 && r.Scale != 1 {
		for i := range weights {
			weights[i] *= r.Scale
		}
	}
	if r.ExpertScale != nil {
		for i, id := range ids {
			weights[i] *= r.ExpertScale[id]
		}
	}
	return nil
}

// rank fills ids with the experts of the highest selection values in falling order and returns how many there are: all
// of ids, or fewer where the groups kept hold fewer. It leaves the probabilities in s.probs.
func (r *Rule) rank(scores []float32, ids []int32, s *Scratch) (int, error) {
	if len(scores) != r.Experts {
		panic(fmt.Sprintf("router: %d scores for %d experts", len(scores), r.Experts))
	}
	s.grow(r)
	probs, sel := s.probs[:r.Experts], s.sel[:r.Experts]
	if err := r.gate(probs, scores); err != nil {
		return 0, err
	}
	if r.Bias == nil {
		copy(sel, probs)
	} else {
		for i, p := range probs {
			sel[i] = p + r.Bias[i]
		}
	}
	if r.Groups <= 1 {
		return best(ids, sel, nil, r.Experts), nil
	}
	size := r.Experts / r.Groups
	group, kept := s.group[:r.Groups], s.kept[:r.Groups]
	for g := range group {
		group[g] = twoLargest(sel[g*size : (g+1)*size])
		kept[g] = false
	}
	used := s.best[:r.GroupsUsed]
	for _, g := range used[:best(used, group, nil, r.Groups)] {
		kept[g] = true
	}
	// Experts of other groups are passed over rather than given -Inf: an expert kept with a score of -Inf must not lose
	// a tie to one that cannot be chosen.
	return best(ids, sel, kept, size), nil
}

// gate sets probs to the gating function of scores.
func (r *Rule) gate(probs, scores []float32) error {
	top := float32(math.Inf(-1))
	for i, v := range scores {
		if v != v || v > math.MaxFloat32 {
			return fmt.Errorf("router: score of expert %d is %v", i, v)
		}
		top = max(top, v)
	}
	switch r.Gating {
	case Softmax:
		if math.IsInf(float64(top), -1) {
			return fmt.Errorf("router: score of expert 0 is -Inf, and so are those of all %d experts", len(scores))
		}
		sum := float32(0)
		for i, v := range scores {
			probs[i] = fmath.Exp(v - top)
			sum += probs[i]
		}
		for i := range probs {
			probs[i] /= sum
		}
	case Sigmoid:
		for i, v := range scores {
			probs[i] = fmath.Sigmoid(v)
		}
	case SoftmaxWeight:
		copy(probs, scores)
	default:
		panic(fmt.Sprintf("router: %v is no gating function: the rule was not validated", r.Gating))
	}
	return nil
}

// best fills dst with the indices of the largest values in falling order, equal ones by rising index, and returns how
// many it found. Values stand in runs of size; a run whose kept is false is passed over (nil: none is).
func best(dst []int32, v []float32, kept []bool, size int) int {
	if len(dst) == 0 {
		return 0
	}
	n := 0
	for run := 0; run*size < len(v); run++ {
		if kept != nil && !kept[run] {
			continue
		}
		for i := run * size; i < (run+1)*size; i++ {
			x := v[i]
			if n == len(dst) {
				if !(x > v[dst[n-1]]) {
					continue
				}
				n--
			}
			j := n
			for ; j > 0 && x > v[dst[j-1]]; j-- {
				dst[j] = dst[j-1]
			}
			dst[j] = int32(i)
			n++
		}
	}
	return n
}

// twoLargest is the sum of the two largest values of v, which has at least two.
func twoLargest(v []float32) float32 {
	a, b := v[0], v[1]
	if b > a {
		a, b = b, a
	}
	for _, x := range v[2:] {
		if x > a {
			a, b = x, a
		} else if x > b {
			b = x
		}
	}
	return a + b
}

func finite(x float32) bool { return x == x && x >= -math.MaxFloat32 && x <= math.MaxFloat32 }
