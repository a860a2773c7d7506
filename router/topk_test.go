package router

import (
	"math"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// near compares weights with values worked out by hand in decimal.
func near(t *testing.T, got []float32, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d weights, want %d", len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-want[i]) <= tol) {
			t.Errorf("weight %d is %v, want %v (all: %v)", i, got[i], want[i], got)
		}
	}
}

func TestTopK(t *testing.T) {
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	logit := func(p float64) float32 { return float32(math.Log(p / (1 - p))) }
	for _, c := range []struct {
		name    string
		rule    Rule
		scores  []float32
		ids     []int32
		weights []float64
	}{
		{"softmax", Rule{Experts: 4, K: 2, Gating: Softmax},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{1, 3}, []float64{0.4, 0.3}},
		{"softmax, normalised", Rule{Experts: 4, K: 2, Gating: Softmax, Normalize: true},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{1, 3}, []float64{4. / 7, 3. / 7}},
		{"softmax, scaled", Rule{Experts: 4, K: 2, Gating: Softmax, Normalize: true, Scale: 2.5},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{1, 3}, []float64{10. / 7, 7.5 / 7}},
		{"softmax, experts scaled", Rule{Experts: 4, K: 2, Gating: Softmax, Normalize: true, Scale: 2.5, ExpertScale: []float32{9, 0.5, 9, -2}},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{1, 3}, []float64{5. / 7, -15. / 7}},
		{"softmax, far from zero", Rule{Experts: 3, K: 2, Gating: Softmax},
			[]float32{10000, 10001, -10000}, []int32{1, 0}, []float64{0.731058579, 0.268941421}},
		{"softmax, one score of -Inf", Rule{Experts: 3, K: 3, Gating: Softmax},
			[]float32{0, -inf, 0}, []int32{0, 2, 1}, []float64{0.5, 0.5, 0}},
		{"all chosen", Rule{Experts: 3, K: 3, Gating: Softmax},
			[]float32{ln(1), ln(2), ln(1)}, []int32{1, 0, 2}, []float64{0.5, 0.25, 0.25}},
		{"ties by lower number", Rule{Experts: 6, K: 4, Gating: Softmax, Normalize: true},
			[]float32{1, 2, 1, 2, 1, 1}, []int32{1, 3, 0, 2}, []float64{0.3655293, 0.3655293, 0.1344707, 0.1344707}},
		{"zeros of both signs tie", Rule{Experts: 3, K: 2, Gating: SoftmaxWeight},
			[]float32{float32(math.Copysign(0, -1)), 0, -1}, []int32{0, 1}, []float64{0.5, 0.5}},
		{"sigmoid", Rule{Experts: 3, K: 2, Gating: Sigmoid},
			[]float32{logit(0.2), logit(0.9), logit(0.6)}, []int32{1, 2}, []float64{0.9, 0.6}},
		{"sigmoid, normalised", Rule{Experts: 3, K: 2, Gating: Sigmoid, Normalize: true},
			[]float32{logit(0.2), logit(0.9), logit(0.6)}, []int32{1, 2}, []float64{0.6, 0.4}},
		{"bias chooses, probabilities weigh", Rule{Experts: 3, K: 2, Gating: Sigmoid, Bias: []float32{1, 0, 0}, Normalize: true},
			[]float32{logit(0.2), logit(0.9), logit(0.6)}, []int32{0, 1}, []float64{2. / 11, 9. / 11}},
		{"softmax-weight", Rule{Experts: 4, K: 3, Gating: SoftmaxWeight},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{1, 3, 2}, []float64{4. / 9, 3. / 9, 2. / 9}},
		{"softmax-weight, bias", Rule{Experts: 4, K: 2, Gating: SoftmaxWeight, Bias: []float32{9, 0, 0, 0}},
			[]float32{ln(1), ln(4), ln(2), ln(3)}, []int32{0, 1}, []float64{0.2, 0.8}},
		// Two groups of three: the best expert is alone in the first, the sum of two is larger in the second.
		{"groups", Rule{Experts: 6, K: 2, Gating: Sigmoid, Groups: 2, GroupsUsed: 1},
			[]float32{logit(0.9), logit(0.1), logit(0.1), logit(0.2), logit(0.6), logit(0.7)}, []int32{5, 4}, []float64{0.7, 0.6}},
		{"groups tie: the first", Rule{Experts: 4, K: 2, Gating: Sigmoid, Groups: 2, GroupsUsed: 1},
			[]float32{logit(0.3), logit(0.6), logit(0.6), logit(0.3)}, []int32{1, 0}, []float64{0.6, 0.3}},
		{"groups by biased values", Rule{Experts: 4, K: 1, Gating: Sigmoid, Groups: 2, GroupsUsed: 1, Bias: []float32{0, 0, 0.5, 0}},
			[]float32{logit(0.3), logit(0.6), logit(0.5), logit(0.3)}, []int32{2}, []float64{0.5}},
		{"a kept expert at -Inf beats an excluded one", Rule{Experts: 4, K: 2, Gating: SoftmaxWeight, Groups: 2, GroupsUsed: 1, Bias: []float32{0, 0, 3, 0}},
			[]float32{-inf, -inf, 1, -inf}, []int32{0, 1}, nil},
		{"small sums are not blown up", Rule{Experts: 2, K: 1, Gating: Sigmoid, Normalize: true},
			[]float32{-20, -21}, []int32{0}, []float64{2.0611536e-9 / 6.103515625e-5}},
		{"scale 1 and 0 do nothing", Rule{Experts: 2, K: 1, Gating: Sigmoid, Scale: 1},
			[]float32{logit(0.3), logit(0.25)}, []int32{0}, []float64{0.3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.rule.Validate(); err != nil {
				t.Fatal(err)
			}
			ids, weights := make([]int32, c.rule.K), make([]float32, c.rule.K)
			if c.weights == nil { // both groups' sums are -Inf: the tie goes to the first, where nothing can be weighed
				err := c.rule.TopK(c.scores, ids, weights, new(Scratch))
				if err == nil || !strings.Contains(err.Error(), "expert 0 is -Inf") {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err := c.rule.TopK(c.scores, ids, weights, new(Scratch)); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.ids, ids); d != "" {
				t.Error(d)
			}
			near(t, weights, c.weights, 2e-6*max(1, c.weights[0]))
		})
	}
}

// An excluded expert of higher value than the kept ones must not come back through a tie at -Inf.
func TestKeptAtMinusInf(t *testing.T) {
	r := Rule{Experts: 6, K: 3, Gating: SoftmaxWeight, Groups: 2, GroupsUsed: 1}
	ids, weights := make([]int32, 3), make([]float32, 3)
	if err := r.TopK([]float32{1, -inf, -inf, 2, 3, -inf}, ids, weights, new(Scratch)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]int32{4, 3, 5}, ids); d != "" {
		t.Error(d)
	}
	near(t, weights, []float64{0.731058579, 0.268941421, 0}, 1e-6)
}

func TestTopKBadScores(t *testing.T) {
	for _, g := range []Gating{Softmax, Sigmoid, SoftmaxWeight} {
		r := Rule{Experts: 5, K: 2, Gating: g}
		for _, bad := range []float32{nan, inf} {
			err := r.TopK([]float32{0, 1, 2, bad, 4}, make([]int32, 2), make([]float32, 2), new(Scratch))
			if err == nil || !strings.Contains(err.Error(), "expert 3 ") {
				t.Errorf("%v, score %v: error %v does not name expert 3", g, bad, err)
			}
		}
	}
	for _, g := range []Gating{Softmax, SoftmaxWeight} {
		r := Rule{Experts: 2, K: 1, Gating: g}
		if err := r.TopK([]float32{-inf, -inf}, make([]int32, 1), make([]float32, 1), new(Scratch)); err == nil {
			t.Errorf("%v: scores of -Inf alone were accepted", g)
		}
	}
}

func TestValidate(t *testing.T) {
	ok := Rule{Experts: 8, K: 2, Gating: Sigmoid, Groups: 4, GroupsUsed: 2, Bias: make([]float32, 8)}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Rule){
		"expert count 0":                        func(r *Rule) { r.Experts = 0 },
		"used expert count 9 is outside 1..8":   func(r *Rule) { r.K = 9 },
		"used expert count 0 is outside 1..8":   func(r *Rule) { r.K = 0 },
		"gating function 0 is outside 1..3":     func(r *Rule) { r.Gating = 0 },
		"gating function 4 is outside 1..3":     func(r *Rule) { r.Gating = 4 },
		"has 7 elements for 8 experts":          func(r *Rule) { r.Bias = r.Bias[:7] },
		"bias of expert 5 is NaN":               func(r *Rule) { r.Bias[5] = nan },
		"expert scale has 3 elements for 8":     func(r *Rule) { r.ExpertScale = make([]float32, 3) },
		"scale of expert 2 is -Inf":             func(r *Rule) { r.ExpertScale = []float32{0, 0, -inf, 0, 0, 0, 0, 0} },
		"weight scale is +Inf":                  func(r *Rule) { r.Scale = inf },
		"group count -1":                        func(r *Rule) { r.Groups = -1 },
		"8 experts cannot be cut into 3":        func(r *Rule) { r.Groups = 3 },
		"8 experts in 8 groups leave 1":         func(r *Rule) { r.Groups = 8 },
		"used group count 5 is outside 1..4":    func(r *Rule) { r.GroupsUsed = 5 },
		"used group count 0 is outside 1..4":    func(r *Rule) { r.GroupsUsed = 0 },
		"2 groups of 2 experts hold fewer than": func(r *Rule) { r.K = 5 },
	} {
		r := ok
		r.Bias = make([]float32, 8)
		change(&r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// reference is the rule in float64, by sorting and by masks: another road to the same choice.
func reference(r *Rule, scores []float32) (ids []int32, weights []float64, sel []float64) {
	probs := make([]float64, len(scores))
	sum := 0.0
	for i, v := range scores {
		switch r.Gating {
		case Softmax:
			probs[i] = math.Exp(float64(v))
			sum += probs[i]
		case Sigmoid:
			probs[i] = 1 / (1 + math.Exp(-float64(v)))
		case SoftmaxWeight:
			probs[i] = float64(v)
		}
	}
	sel = make([]float64, len(scores))
	for i := range probs {
		if r.Gating == Softmax {
			probs[i] /= sum
		}
		sel[i] = probs[i]
		if r.Bias != nil {
			sel[i] += float64(r.Bias[i])
		}
	}
	if r.Groups > 1 {
		size := r.Experts / r.Groups
		order := make([]int, r.Groups)
		score := make([]float64, r.Groups)
		for g := range order {
			order[g] = g
			run := slices.Clone(sel[g*size : (g+1)*size])
			sort.Float64s(run)
			score[g] = run[size-1] + run[size-2]
		}
		sort.SliceStable(order, func(a, b int) bool { return score[order[a]] > score[order[b]] })
		for _, g := range order[r.GroupsUsed:] {
			for i := g * size; i < (g+1)*size; i++ {
				sel[i] = math.Inf(-1)
			}
		}
	}
	all := make([]int32, r.Experts)
	for i := range all {
		all[i] = int32(i)
	}
	sort.SliceStable(all, func(a, b int) bool { return sel[all[a]] > sel[all[b]] })
	ids = all[:r.K]
	weights = make([]float64, r.K)
	sum = 0
	for i, id := range ids {
		weights[i] = probs[id]
		if r.Gating == SoftmaxWeight {
			weights[i] = math.Exp(probs[id])
		}
		sum += weights[i]
	}
	if r.Gating == SoftmaxWeight {
		for i := range weights {
			weights[i] /= sum
		}
		sum = 1
	}
	for i := range weights {
		if r.Normalize {
			weights[i] /= math.Max(sum, minSum)
		}
		if r.Scale != 0 {
			weights[i] *= float64(r.Scale)
		}
	}
	return ids, weights, sel
}

// Scores and biases are multiples of an eighth, so that values either tie in both precisions or lie apart by far more
// than a rounding.
func TestTopKAgainstReference(t *testing.T) {
	s := new(Scratch)
	rapid.Check(t, func(t *rapid.T) {
		r := Rule{Gating: Gating(rapid.IntRange(1, 3).Draw(t, "gating")), Normalize: rapid.Bool().Draw(t, "normalize"),
			Scale: rapid.SampledFrom([]float32{0, 1, 2.5, 0.5}).Draw(t, "scale")}
		if rapid.Bool().Draw(t, "grouped") {
			r.Groups = rapid.IntRange(2, 8).Draw(t, "groups")
			r.GroupsUsed = rapid.IntRange(1, r.Groups).Draw(t, "used groups")
			size := rapid.IntRange(2, 16).Draw(t, "group size")
			r.Experts = r.Groups * size
			r.K = rapid.IntRange(1, min(10, r.GroupsUsed*size)).Draw(t, "k")
		} else {
			r.Experts = rapid.IntRange(1, 130).Draw(t, "experts")
			r.K = rapid.IntRange(1, min(10, r.Experts)).Draw(t, "k")
		}
		eighths := rapid.SliceOfN(rapid.IntRange(-40, 40), r.Experts, r.Experts)
		scores := make([]float32, r.Experts)
		for i, v := range eighths.Draw(t, "scores") {
			scores[i] = float32(v) / 8
		}
		if rapid.Bool().Draw(t, "biased") {
			r.Bias = make([]float32, r.Experts)
			for i, v := range eighths.Draw(t, "bias") {
				r.Bias[i] = float32(v) / 8
			}
		}
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		ids, weights := make([]int32, r.K), make([]float32, r.K)
		if err := r.TopK(scores, ids, weights, s); err != nil {
			t.Fatal(err)
		}
		_, wantW, sel := reference(&r, scores)
		wantIDs, _, _ := reference(&r, scores)
		for i, id := range ids {
			// Sums of a probability and a bias can tie in float32 and not in float64, and the other way round.
			if id != wantIDs[i] && math.Abs(sel[id]-sel[wantIDs[i]]) > 1e-6*(1+math.Abs(sel[id])) {
				t.Fatalf("place %d: expert %d (%v), want %d (%v)", i, id, sel[id], wantIDs[i], sel[wantIDs[i]])
			}
		}
		if !slices.Equal(ids, wantIDs) {
			return // the weights belong to other experts of equal value
		}
		for i := range weights {
			if math.Abs(float64(weights[i])-wantW[i]) > 4e-6*math.Max(math.Abs(wantW[i]), 1e-3) {
				t.Fatalf("weight %d is %v, want %v", i, weights[i], wantW[i])
			}
		}
	})
}

func TestTopKAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("allocation counts mean nothing under the race detector")
	}
	r := Rule{Experts: 64, K: 8, Gating: Sigmoid, Groups: 8, GroupsUsed: 4, Bias: make([]float32, 64), Normalize: true, Scale: 2.5}
	scores := make([]float32, 64)
	for i := range scores {
		scores[i] = float32(i*37%64) / 10
	}
	s, ids, weights := new(Scratch), make([]int32, 8), make([]float32, 8)
	if n := testing.AllocsPerRun(50, func() {
		if err := r.TopK(scores, ids, weights, s); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func TestBrokenContractsPanic(t *testing.T) {
	r := Rule{Experts: 4, K: 2, Gating: Softmax}
	for name, f := range map[string]func(){
		"short scores": func() { r.TopK(make([]float32, 3), make([]int32, 2), make([]float32, 2), new(Scratch)) },
		"short ids":    func() { r.TopK(make([]float32, 4), make([]int32, 1), make([]float32, 2), new(Scratch)) },
		"no gating": func() {
			(&Rule{Experts: 4, K: 2}).TopK(make([]float32, 4), make([]int32, 2), make([]float32, 2), new(Scratch))
		},
		"behind": func() {
			new(GateAhead).Predict(make([]int32, 2), 3, 3, Signal{Scores: make([]float32, 4), Rows: 1, Rule: &r})
		},
		"rows": func() {
			new(GateAhead).Predict(make([]int32, 2), 3, 4, Signal{Scores: make([]float32, 4), Rows: 2, Rule: &r})
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func BenchmarkTopK(b *testing.B) {
	r := Rule{Experts: 128, K: 8, Gating: Softmax, Normalize: true}
	scores := make([]float32, 128)
	for i := range scores {
		scores[i] = float32(i*37%128) / 20
	}
	s, ids, weights := new(Scratch), make([]int32, 8), make([]float32, 8)
	for b.Loop() {
		if err := r.TopK(scores, ids, weights, s); err != nil {
			b.Fatal(err)
		}
	}
}
