package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// bare has every step off and temperature 1.
func bare(vocab int) Params {
	return Params{Vocab: vocab, Seed: 1, Temp: 1, TopP: 1, TypicalP: 1, TopNSigma: -1, XTCThreshold: 0.1, RepeatPenalty: 1}
}

func mustNew(t testing.TB, p Params) *Sampler {
	t.Helper()
	s, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// left runs the steps on logits and returns the ids that can be drawn, sorted.
func left(t testing.TB, p Params, logits []float32, accepted ...int32) []int32 {
	t.Helper()
	s := mustNew(t, p)
	for _, id := range accepted {
		s.Accept(id)
	}
	if _, err := s.Next(logits); err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, c := range s.cands {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	return ids
}

// logs gives logits whose probabilities are these.
func logs(p ...float64) []float32 {
	out := make([]float32, len(p))
	for i, x := range p {
		out[i] = float32(math.Log(x))
	}
	return out
}

func TestCuts(t *testing.T) {
	probs := logs(0.05, 0.4, 0.1, 0.25, 0.2)
	for name, c := range map[string]struct {
		set    func(*Params)
		logits []float32
		want   []int32
	}{
		"nothing":            {func(*Params) {}, probs, []int32{0, 1, 2, 3, 4}},
		"top_k 2":            {func(p *Params) { p.TopK = 2 }, probs, []int32{1, 3}},
		"top_k 9":            {func(p *Params) { p.TopK = 9 }, probs, []int32{0, 1, 2, 3, 4}},
		"top_k ties":         {func(p *Params) { p.TopK = 2 }, []float32{0, 1, 1, 1, 2}, []int32{1, 4}},
		"top_k equal":        {func(p *Params) { p.TopK = 3 }, []float32{7, 7, 7, 7, 7}, []int32{0, 1, 2}},
		"top_p 0.6":          {func(p *Params) { p.TopP = 0.6 }, probs, []int32{1, 3}},    // 0.4 + 0.25 = 0.65
		"top_p 0.7":          {func(p *Params) { p.TopP = 0.7 }, probs, []int32{1, 3, 4}}, // 0.65 + 0.2 = 0.85
		"top_p 0":            {func(p *Params) { p.TopP = 0 }, probs, []int32{1}},         // never empty
		"top_p 0 min_keep 3": {func(p *Params) { p.TopP, p.MinKeep = 0, 3 }, probs, []int32{1, 3, 4}},
		"top_k 3 top_p 0.75": {func(p *Params) { p.TopK, p.TopP = 3, 0.75 }, probs, []int32{1, 3}}, // of 0.85: 0.4/0.85 + 0.25/0.85 = 0.765
		"min_p 0.3":          {func(p *Params) { p.MinP = 0.3 }, probs, []int32{1, 3, 4}},          // 0.12 and more
		"min_p 0.6":          {func(p *Params) { p.MinP = 0.6 }, probs, []int32{1, 3}},             // 0.24 and more
		"min_p 1 min_keep 2": {func(p *Params) { p.MinP, p.MinKeep = 1, 2 }, probs, []int32{1, 3}},
		// logits 0 1 2 3 4: mean 2, deviation sqrt(2) = 1.41
		"top_n_sigma 1":        {func(p *Params) { p.TopNSigma = 1 }, []float32{0, 1, 2, 3, 4}, []int32{3, 4}},
		"top_n_sigma 1.5":      {func(p *Params) { p.TopNSigma = 1.5 }, []float32{0, 1, 2, 3, 4}, []int32{2, 3, 4}},
		"top_n_sigma and -inf": {func(p *Params) { p.TopNSigma = 1 }, []float32{0, 4, float32(math.Inf(-1)), 2, 3}, []int32{1, 4}},
		// 0.05 0.4 0.1 0.25 0.2: entropy 0.15+0.367+0.23+0.347+0.322 = 1.415; surprises 3.0 0.92 2.3 1.39 1.61,
		// distances 1.58 0.5 0.89 0.03 0.19: order 3, 4, 1, 2, 0
		"typ_p 0.2":            {func(p *Params) { p.TypicalP = 0.2 }, probs, []int32{3}},
		"typ_p 0.4":            {func(p *Params) { p.TypicalP = 0.4 }, probs, []int32{3, 4}},
		"typ_p 0.5":            {func(p *Params) { p.TypicalP = 0.5 }, probs, []int32{1, 3, 4}},
		"typ_p 0.9":            {func(p *Params) { p.TypicalP = 0.9 }, probs, []int32{1, 2, 3, 4}},
		"typ_p 0.2 top_p 0.99": {func(p *Params) { p.TypicalP, p.TopP = 0.5, 0.7 }, probs, []int32{1, 3}}, // of 0.85: 0.47 + 0.29 = 0.76
		// at or above 0.15: 1, 3, 4; the least of them stays
		"xtc":           {func(p *Params) { p.XTCProbability, p.XTCThreshold = 1, 0.15 }, probs, []int32{0, 2, 4}},
		"xtc one above": {func(p *Params) { p.XTCProbability, p.XTCThreshold = 1, 0.3 }, probs, []int32{0, 1, 2, 3, 4}},
		"xtc off":       {func(p *Params) { p.XTCProbability, p.XTCThreshold = 1, 0.51 }, probs, []int32{0, 1, 2, 3, 4}},
		"xtc min_keep":  {func(p *Params) { p.XTCProbability, p.XTCThreshold, p.MinKeep = 1, 0.15, 4 }, probs, []int32{0, 1, 2, 3, 4}},
		// the order of steps: top_k 2 leaves 1 and 3 of equal weight nearly, so top_p 0.6 keeps 1 alone; were top_p
		// first, it would keep 1 and 3
		"top_k before top_p":   {func(p *Params) { p.TopK, p.TopP = 2, 0.6 }, probs, []int32{1}}, // 0.4/0.65 = 0.615
		"top_p before top_k":   {func(p *Params) { p.TopK, p.TopP, p.Samplers = 2, 0.6, []string{"top_p", "top_k"} }, probs, []int32{1, 3}},
		"temperature last":     {func(p *Params) { p.Temp, p.TopP = 100, 0.6 }, probs, []int32{1, 3}},
		"temperature first":    {func(p *Params) { p.Temp, p.TopP, p.Samplers = 100, 0.6, []string{"temperature", "top_p"} }, probs, []int32{1, 3, 4}},
		"not named, not used":  {func(p *Params) { p.TopK, p.Samplers = 1, []string{"top_p"} }, probs, []int32{0, 1, 2, 3, 4}},
		"banned":               {func(p *Params) { p.LogitBias = map[int32]float32{1: float32(math.Inf(-1)), 2: 3}; p.TopK = 2 }, probs, []int32{2, 3}},
		"ignore_eos":           {func(p *Params) { p.IgnoreEOS, p.EOG = true, []int32{1, 3} }, probs, []int32{0, 2, 4}},
		"eog without ignoring": {func(p *Params) { p.EOG = []int32{1, 3} }, probs, []int32{0, 1, 2, 3, 4}},
	} {
		p := bare(5)
		c.set(&p)
		if got := left(t, p, c.logits); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestPenalties(t *testing.T) {
	run := func(set func(*Params), accepted ...int32) []float32 {
		p := bare(4)
		p.RepeatLastN = 3
		set(&p)
		s := mustNew(t, p)
		for _, id := range accepted {
			s.Accept(id)
		}
		if _, err := s.Next([]float32{2, -2, 0, 1}); err != nil {
			t.Fatal(err)
		}
		out := make([]float32, 4)
		for _, c := range s.cands {
			out[c.id] = c.logit
		}
		return out
	}
	for name, c := range map[string]struct {
		set      func(*Params)
		accepted []int32
		want     []float32
	}{
		"repeat":              {func(p *Params) { p.RepeatPenalty = 2 }, []int32{0, 1, 2}, []float32{1, -4, 0, 1}},
		"presence":            {func(p *Params) { p.PresencePenalty = 0.5 }, []int32{0, 0, 1}, []float32{1.5, -2.5, 0, 1}},
		"frequency":           {func(p *Params) { p.FrequencyPenalty = 0.5 }, []int32{0, 0, 1}, []float32{1, -2.5, 0, 1}},
		"all":                 {func(p *Params) { p.RepeatPenalty, p.PresencePenalty, p.FrequencyPenalty = 2, 1, 0.5 }, []int32{3, 3, 1}, []float32{2, -5.5, 0, -1.5}},
		"window passed":       {func(p *Params) { p.RepeatPenalty = 2 }, []int32{0, 1, 2, 2, 2}, []float32{2, -2, 0, 1}},
		"window edge":         {func(p *Params) { p.RepeatPenalty = 2 }, []int32{0, 1, 2, 2}, []float32{2, -4, 0, 1}},
		"frequency in window": {func(p *Params) { p.FrequencyPenalty = 1 }, []int32{0, 0, 0, 0, 0}, []float32{-1, -2, 0, 1}},
		"window without end":  {func(p *Params) { p.RepeatPenalty, p.RepeatLastN = 2, -1 }, []int32{0, 2, 2, 2, 2, 2}, []float32{1, -2, 0, 1}},
		"window off":          {func(p *Params) { p.RepeatPenalty, p.RepeatLastN = 2, 0 }, []int32{0, 1}, []float32{2, -2, 0, 1}},
		"after a cut":         {func(p *Params) { p.RepeatPenalty, p.TopK, p.Samplers = 2, 3, []string{"top_k", "penalties"} }, []int32{0}, []float32{1, 0, 0, 1}},
		"bias first":          {func(p *Params) { p.RepeatPenalty, p.LogitBias = 2, map[int32]float32{1: 6} }, []int32{1}, []float32{2, 2, 0, 1}},
	} {
		if got := run(c.set, c.accepted...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWindow compares the counts of a long run with a count of the last tokens.
func TestWindow(t *testing.T) {
	p := bare(20)
	p.RepeatLastN = 7
	s := mustNew(t, p)
	var all []int32
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		id := r.Int32N(20)
		s.Accept(id)
		all = append(all, id)
		want := make([]int32, 20)
		for _, id := range all[max(0, len(all)-7):] {
			want[id]++
		}
		if !slices.Equal(s.counts, want) {
			t.Fatalf("counts %v, want %v", s.counts, want)
		}
		n := 0
		for id, c := range want {
			if c > 0 {
				n++
				if s.seen[s.place[id]-1] != int32(id) {
					t.Fatalf("token %d is not where it should be", id)
				}
			}
		}
		if len(s.seen) != n {
			t.Fatalf("%d tokens seen, want %d", len(s.seen), n)
		}
	}
}

func TestGreedy(t *testing.T) {
	for _, temp := range []float32{0, -1} {
		p := Defaults(5)
		p.Temp = temp
		s := mustNew(t, p)
		for _, c := range []struct {
			logits []float32
			want   int32
		}{{[]float32{1, 3, 2, 3, 0}, 1}, {[]float32{-5, -5, -5, -5, -5}, 0}, {[]float32{float32(math.Inf(-1)), -9, -8, -8, -9}, 2}} {
			if got, err := s.Next(c.logits); got != c.want || err != nil {
				t.Errorf("%v: %d, %v, want %d", c.logits, got, err, c.want)
			}
		}
		p.RepeatPenalty, p.LogitBias = 10, map[int32]float32{3: -2}
		s = mustNew(t, p)
		s.Accept(1)
		if got, err := s.Next([]float32{1, 3, 2, 3, 0}); got != 2 || err != nil {
			t.Errorf("penalised: %d, %v, want 2", got, err)
		}
		p = bare(5)
		p.Temp, p.TypicalP = temp, 0.2
		if got, err := mustNew(t, p).Next(logs(0.05, 0.4, 0.1, 0.25, 0.2)); got != 3 || err != nil { // see TestCuts
			t.Errorf("typical: %d, %v, want 3", got, err)
		}
	}
}

// TestDraw compares how often each token is drawn with its probability.
func TestDraw(t *testing.T) {
	for _, temp := range []float32{1, 0.5, 2} {
		p := bare(4)
		p.Temp = temp
		s := mustNew(t, p)
		probs := []float64{0.1, 0.2, 0.3, 0.4}
		want := make([]float64, 4)
		sum := 0.0
		for i, x := range probs {
			want[i] = math.Pow(x, 1/float64(temp))
			sum += want[i]
		}
		const n = 10000
		var got [4]float64
		for range n {
			id, err := s.Next(logs(probs...))
			if err != nil {
				t.Fatal(err)
			}
			got[id]++
		}
		for i := range got {
			w := want[i] / sum
			if d := math.Abs(got[i]/n - w); d > 4*math.Sqrt(w*(1-w)/n) {
				t.Errorf("temperature %g, token %d: drawn %.4f, probability %.4f", temp, i, got[i]/n, w)
			}
		}
	}
}

func TestSeed(t *testing.T) {
	logits := randomLogits(1000, 5)
	text := func(seed int64) ([]int32, int64) {
		p := Defaults(1000)
		p.Seed, p.Temp = seed, 3
		s := mustNew(t, p)
		var out []int32
		for range 40 {
			id, err := s.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
			out = append(out, id)
		}
		return out, s.Seed()
	}
	a, seed := text(42)
	b, _ := text(42)
	c, _ := text(43)
	if !slices.Equal(a, b) || slices.Equal(a, c) || seed != 42 {
		t.Errorf("seed 42 gave %v and %v, seed 43 %v, reported %d", a, b, c, seed)
	}
	for _, random := range []int64{-1, math.MaxUint32} {
		d, seed := text(random)
		if seed < 0 || seed >= math.MaxUint32 {
			t.Errorf("random seed is reported as %d", seed)
		}
		if e, _ := text(seed); !slices.Equal(d, e) {
			t.Errorf("reported seed %d gives %v, not %v", seed, e, d)
		}
	}
	// These ids must never change: they are the promise that a seed gives one text on every machine.
	if want := []int32{75, 75, 144, 75, 921, 493, 326, 469}; !slices.Equal(a[:8], want) {
		t.Errorf("seed 42 gives %v, want %v", a[:8], want)
	}
}

// TestAgainstSort compares the heaps with a full sort on many random cases, ties and banned tokens included.
func TestAgainstSort(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		n := 1 + r.IntN(2000)
		logits := make([]float32, n)
		for i := range logits {
			logits[i] = float32(r.IntN(50)) / 4
			if r.IntN(10) == 0 {
				logits[i] = float32(math.Inf(-1))
			}
		}
		logits[r.IntN(n)] = 1
		var ids []int32
		for i, l := range logits {
			if !math.IsInf(float64(l), -1) {
				ids = append(ids, int32(i))
			}
		}
		slices.SortStableFunc(ids, func(a, b int32) int {
			switch {
			case logits[a] > logits[b]:
				return -1
			case logits[a] < logits[b]:
				return 1
			}
			return 0
		})
		p := bare(n)
		p.TopK = 1 + r.IntN(n+10)
		want := slices.Clone(ids[:min(p.TopK, len(ids))])
		if r.IntN(2) == 0 {
			p.Samplers = []string{"min_p", "top_k"} // not dense
			p.MinP = 1e-30
		}
		slices.Sort(want)
		if got := left(t, p, logits); !slices.Equal(got, want) {
			t.Fatalf("n %d, k %d: %v, want %v", n, p.TopK, got, want)
		}
		p = bare(n)
		p.TopP = r.Float32()
		sum, got := 0.0, 0.0
		for _, id := range ids {
			sum += math.Exp(float64(logits[id]))
		}
		k := 0
		for k < len(ids) && (k == 0 || got/sum < float64(p.TopP)) {
			got += math.Exp(float64(logits[ids[k]]))
			k++
		}
		if have := len(left(t, p, logits)); have < k-1 || have > k+1 { // float32 exponentials may tip the last one
			t.Fatalf("n %d, p %g: %d left, want %d", n, p.TopP, have, k)
		}
	}
}

func TestErrors(t *testing.T) {
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	for _, greedy := range []bool{false, true} {
		p := Defaults(3)
		if greedy {
			p.Temp = 0
		}
		s := mustNew(t, p)
		for want, logits := range map[string][]float32{
			"logit of token 1 is NaN":  {0, nan, 0},
			"logit of token 2 is +Inf": {0, 0, inf},
		} {
			if _, err := s.Next(logits); err == nil || err.Error() != want {
				t.Errorf("%v: %v, want %s", logits, err, want)
			}
		}
		if _, err := s.Next([]float32{-inf, -inf, -inf}); !errors.Is(err, ErrBanned) {
			t.Errorf("all -Inf: %v", err)
		}
		p.LogitBias = map[int32]float32{0: -inf, 1: -inf, 2: -inf}
		if _, err := mustNew(t, p).Next([]float32{1, 2, 3}); !errors.Is(err, ErrBanned) {
			t.Errorf("all banned: %v", err)
		}
		for _, steps := range [][]string{{"top_p"}, {"typ_p"}, {"min_p"}, {"xtc"}, {"top_n_sigma"}, {"temperature"}, {"penalties"}, {}} {
			p.Samplers, p.TopP, p.TypicalP, p.MinP, p.XTCProbability, p.TopNSigma = steps, 0.5, 0.5, 0.5, 1, 1
			if _, err := mustNew(t, p).Next([]float32{1, 2, 3}); !errors.Is(err, ErrBanned) {
				t.Errorf("all banned, %v: %v", steps, err)
			}
		}
	}
	// Extremes stay finite.
	p := bare(3)
	p.Temp, p.LogitBias, p.RepeatPenalty, p.RepeatLastN, p.TypicalP = 1e-38, map[int32]float32{1: math.MaxFloat32}, 0.001, 5, 0.5
	s := mustNew(t, p)
	s.Accept(1)
	if id, err := s.Next([]float32{-math.MaxFloat32, math.MaxFloat32, 3}); id != 1 || err != nil {
		t.Errorf("extremes: %d, %v", id, err)
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "2 logits for a vocabulary of 3") {
			t.Errorf("wrong length: %v", r)
		}
	}()
	_, _ = s.Next(make([]float32, 2))
}

func TestValidate(t *testing.T) {
	if err := Defaults(10).Validate(); err != nil {
		t.Error(err)
	}
	nan := float32(math.NaN())
	for want, set := range map[string]func(*Params){
		"vocabulary has 0 tokens":                func(p *Params) { p.Vocab = 0 },
		"seed is -2":                             func(p *Params) { p.Seed = -2 },
		"repeat_last_n is -2":                    func(p *Params) { p.RepeatLastN = -2 },
		"min_keep is -1":                         func(p *Params) { p.MinKeep = -1 },
		"temperature is NaN":                     func(p *Params) { p.Temp = nan },
		"top_p is 1.5, the limits are 0 and 1":   func(p *Params) { p.TopP = 1.5 },
		"min_p is -0.1":                          func(p *Params) { p.MinP = -0.1 },
		"typical_p is NaN":                       func(p *Params) { p.TypicalP = nan },
		"top_n_sigma is +Inf":                    func(p *Params) { p.TopNSigma = float32(math.Inf(1)) },
		"xtc_probability is 2":                   func(p *Params) { p.XTCProbability = 2 },
		"xtc_threshold is 2":                     func(p *Params) { p.XTCThreshold = 2 },
		"repeat_penalty is 0":                    func(p *Params) { p.RepeatPenalty = 0 },
		"presence_penalty is 2000":               func(p *Params) { p.PresencePenalty = 2000 },
		"frequency_penalty is NaN":               func(p *Params) { p.FrequencyPenalty = nan },
		"token 10, the vocabulary has 10 tokens": func(p *Params) { p.LogitBias = map[int32]float32{10: 1} },
		"logit_bias of token 3 is NaN":           func(p *Params) { p.LogitBias = map[int32]float32{3: nan} },
		"token -1 is outside the vocabulary":     func(p *Params) { p.IgnoreEOS, p.EOG = true, []int32{-1} },
		`samplers: "dri"`:                        func(p *Params) { p.Samplers = []string{"top_k", "dri"} },
	} {
		p := Defaults(10)
		set(&p)
		if _, err := New(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ...%s...", err, want)
		}
	}
}

func randomLogits(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 0))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64() * 3)
	}
	return out
}

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	logits := randomLogits(5000, 1)
	for name, set := range map[string]func(*Params){
		"defaults": func(*Params) {},
		"greedy":   func(p *Params) { p.Temp = 0 },
		"all": func(p *Params) {
			p.TopK, p.TypicalP, p.TopNSigma, p.XTCProbability, p.RepeatPenalty, p.MinKeep = 0, 0.9, 3, 0.5, 1.1, 3
			p.LogitBias = map[int32]float32{1: 2}
		},
	} {
		p := Defaults(5000)
		p.Seed = 1
		set(&p)
		s := mustNew(t, p)
		step := func() {
			id, err := s.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
		}
		for range 200 {
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s: %g allocations a token", name, n)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	logits := randomLogits(151936, 1)
	for name, set := range map[string]func(*Params){
		"defaults": func(*Params) {},
		"greedy":   func(p *Params) { p.Temp = 0 },
		"no top_k": func(p *Params) { p.TopK = 0 },
	} {
		p := Defaults(151936)
		p.Seed = 1
		set(&p)
		b.Run(name, func(b *testing.B) {
			s := mustNew(b, p)
			for b.Loop() {
				if _, err := s.Next(logits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
