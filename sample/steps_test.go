package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// toy is a vocabulary for breakers: token i is toy[i].
var toy = []string{"a", "b", "c", "\n", ":", "x\n", "ab", "<|", "en", "d|>", "q<"}

func toyEncode(text string) []int32 {
	var ids []int32
	for text != "" {
		best := -1
		for i, p := range toy {
			if strings.HasPrefix(text, p) && (best < 0 || len(p) > len(toy[best])) {
				best = i
			}
		}
		if best < 0 {
			return ids
		}
		ids, text = append(ids, int32(best)), text[len(toy[best]):]
	}
	return ids
}

func toyBreakers(texts ...string) *Breakers {
	return NewBreakers(texts, len(toy), func(id int32) []byte { return []byte(toy[id]) }, toyEncode)
}

func TestDry(t *testing.T) {
	run := func(set func(*Params), accepted string) []float32 {
		p := bare(len(toy))
		p.DryMultiplier, p.DryBase, p.DryAllowedLength, p.DryPenaltyLastN = 1, 2, 2, 64
		set(&p)
		s := mustNew(t, p)
		for _, id := range toyEncode(accepted) {
			s.Accept(id)
		}
		if _, err := s.Next(make([]float32, len(toy))); err != nil {
			t.Fatal(err)
		}
		out := make([]float32, len(toy))
		for _, c := range s.cands {
			out[c.id] = c.logit
		}
		return out
	}
	with := func(at int, v float32) []float32 {
		out := make([]float32, len(toy))
		out[at] = v
		return out
	}
	for name, c := range map[string]struct {
		set      func(*Params)
		accepted string
		want     []float32
	}{
		"nothing twice":          {func(*Params) {}, "acb", make([]float32, len(toy))},
		"too short":              {func(*Params) {}, "acbbcaa", make([]float32, len(toy))}, // only "a" came before
		"two":                    {func(*Params) {}, "cbacb", with(0, -1)},                 // "cb" was followed by a
		"three":                  {func(*Params) {}, "acb:acb", with(4, -2)},
		"four, base 3":           {func(p *Params) { p.DryBase = 3 }, "aacb:aacb", with(4, -9)},
		"multiplier":             {func(p *Params) { p.DryMultiplier = 0.5 }, "acb:acb", with(4, -1)},
		"base below 1":           {func(p *Params) { p.DryBase = 0.5 }, "acb:acb", with(4, -1.75)},
		"allowed length 3":       {func(p *Params) { p.DryAllowedLength = 3 }, "acb:acb", with(4, -1)},
		"allowed length 4":       {func(p *Params) { p.DryAllowedLength = 4 }, "acb:acb", make([]float32, len(toy))},
		"window":                 {func(p *Params) { p.DryPenaltyLastN = 6 }, "acb:acb", with(4, -1)}, // cb:acb
		"window full":            {func(p *Params) { p.DryPenaltyLastN = 5 }, "acb:acb", make([]float32, len(toy))},
		"window without end":     {func(p *Params) { p.DryPenaltyLastN = -1 }, "acb:acb", with(4, -2)},
		"off":                    {func(p *Params) { p.DryPenaltyLastN = 0 }, "acb:acb", make([]float32, len(toy))},
		"not named":              {func(p *Params) { p.Samplers = []string{"top_k"} }, "acb:acb", make([]float32, len(toy))},
		"overlap":                {func(*Params) {}, "cccc", with(2, -2)}, // ccc before the last c
		"breaker is never":       {func(p *Params) { p.DryBreakers = toyBreakers(":") }, "acb:acb", make([]float32, len(toy))},
		"breaker in between":     {func(p *Params) { p.DryBreakers = toyBreakers("\n") }, "a\ncba\ncb", with(0, -1)}, // cb, not \ncb
		"breaker within a token": {func(p *Params) { p.DryBreakers = toyBreakers("\n") }, "ax\ncbax\ncb", with(0, -1)},
		"breaker of tokens":      {func(p *Params) { p.DryBreakers = toyBreakers("<|end|>") }, "a<|end|>cba<|end|>cb", with(0, -1)},
		"begun in a token":       {func(p *Params) { p.DryBreakers = toyBreakers("<|>") }, "cbacb", with(0, -1)},
		"after a cut":            {func(p *Params) { p.TopK, p.Samplers = 20, []string{"top_k", "dry"} }, "acb:acb", with(4, -2)},
	} {
		if got := run(c.set, c.accepted); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// Penalties stay finite, and greedy sampling obeys them.
	p := bare(len(toy))
	p.Temp, p.DryMultiplier, p.DryBase, p.DryPenaltyLastN = 0, 5, 100, -1
	s := mustNew(t, p)
	for range 400 {
		s.Accept(2)
	}
	logits := make([]float32, len(toy))
	logits[2], logits[1] = 1e9, 1
	if id, err := s.Next(logits); id != 1 || err != nil {
		t.Error(id, err)
	}
}

// TestDryAgainstPlain compares with a search for repetitions by comparing everything with everything.
func TestDryAgainstPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		p := bare(4)
		p.DryMultiplier, p.DryBase, p.DryAllowedLength, p.DryPenaltyLastN = 1, 1.5, r.IntN(4), 1+r.IntN(30)
		p.DryBreakers = NewBreakers([]string{"d"}, 4, func(id int32) []byte { return []byte{"abcd"[id]} }, nil)
		s := mustNew(t, p)
		var all []int32
		for range 1 + r.IntN(60) {
			id := int32(r.IntN(3))
			if r.IntN(12) == 0 {
				id = 3
			}
			all = append(all, id)
			s.Accept(id)
		}
		last := all[max(0, len(all)-p.DryPenaltyLastN):]
		want := make([]int32, 4)
		for at, next := range last[1:] { // last[:at+1] is followed by next
			n := int32(0)
			for i := at; i >= 0 && last[i] == last[len(last)-1-(at-i)] && last[len(last)-1-(at-i)] != 3; i-- {
				n++
			}
			if n > 0 && int(n) >= p.DryAllowedLength && next != 3 {
				want[next] = max(want[next], n)
			}
		}
		if len(last) <= p.DryAllowedLength {
			want = make([]int32, 4)
		}
		s.dry.look()
		if !slices.Equal(s.dry.longest, want) {
			t.Fatalf("%v, allowed %d: %v, want %v", last, p.DryAllowedLength, s.dry.longest, want)
		}
	}
}

func TestDynatemp(t *testing.T) {
	temp := func(logits []float32, set func(*Params)) float64 {
		p := bare(len(logits))
		p.Temp, p.DynatempRange, p.DynatempExponent = 1, 0.5, 1
		set(&p)
		s := mustNew(t, p)
		if _, err := s.Next(logits); err != nil {
			t.Fatal(err)
		}
		c := s.cands
		return float64(logits[c[0].id]-logits[c[1].id]) / float64(c[0].logit-c[1].logit)
	}
	entropy := func(p ...float64) float64 {
		h := 0.0
		for _, x := range p {
			h -= x * math.Log(x)
		}
		return h / math.Log(float64(len(p)))
	}
	for name, c := range map[string]struct {
		probs []float64
		set   func(*Params)
		want  float64
	}{
		"some":               {[]float64{0.5, 0.3, 0.2}, func(*Params) {}, 0.5 + entropy(0.5, 0.3, 0.2)},
		"certain":            {[]float64{0.9998, 0.0001, 0.0001}, func(*Params) {}, 0.5 + entropy(0.9998, 0.0001, 0.0001)},
		"exponent 2":         {[]float64{0.5, 0.3, 0.2}, func(p *Params) { p.DynatempExponent = 2 }, 0.5 + math.Pow(entropy(0.5, 0.3, 0.2), 2)},
		"exponent 0":         {[]float64{0.5, 0.3, 0.2}, func(p *Params) { p.DynatempExponent = 0 }, 1.5},
		"wide":               {[]float64{0.5, 0.3, 0.2}, func(p *Params) { p.DynatempRange = 3 }, 4 * entropy(0.5, 0.3, 0.2)},
		"of what top_k left": {[]float64{0.5, 0.3, 0.2}, func(p *Params) { p.TopK = 2 }, 0.5 + entropy(0.625, 0.375)},
		"off":                {[]float64{0.5, 0.3, 0.2}, func(p *Params) { p.DynatempRange = 0 }, 1},
	} {
		if got := temp(logs(c.probs...), c.set); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("%s: temperature %g, want %g", name, got, c.want)
		}
	}
}

// TestMirostat draws from a fixed distribution: the mean surprise must come to the target.
func TestMirostat(t *testing.T) {
	logits := make([]float32, 2000)
	for i := range logits {
		logits[i] = -1.1 * float32(math.Log(float64(i+1))) // Zipf
	}
	for _, version := range []int{1, 2} {
		for _, tau := range []float32{2, 3, 4} {
			p := bare(2000)
			p.Mirostat, p.MirostatTau, p.MirostatEta, p.TopK = version, tau, 0.1, 1 // no cuts
			s := mustNew(t, p)
			sum, n := 0.0, 0
			for i := range 3000 {
				id, err := s.Next(logits)
				if err != nil {
					t.Fatal(err)
				}
				seen := s.mirostat.seen
				s.Accept(id)
				if i >= 300 {
					sum += float64(seen)
					n++
				}
			}
			if got := sum / float64(n); math.Abs(got-float64(tau)) > 0.15 {
				t.Errorf("version %d: mean surprise %.2f bits, want %g", version, got, tau)
			}
		}
		p := bare(2000)
		p.Mirostat, p.MirostatTau, p.MirostatEta, p.Temp = version, 3, 0.1, 0
		if id, err := mustNew(t, p).Next(logits); id != 0 || err != nil {
			t.Error("temperature 0 is not greedy", id, err)
		}
		p.Temp, p.RepeatPenalty, p.RepeatLastN, p.PresencePenalty, p.MirostatTau = 1, 1, 64, 100, 0
		s := mustNew(t, p)
		s.Accept(0)
		if id, err := s.Next(logits); id == 0 || err != nil {
			t.Error("penalties have no effect", id, err)
		}
	}
}

func TestAdaptive(t *testing.T) {
	logits := logs(0.5, 0.2, 0.1, 0.1, 0.05, 0.05)
	mean := func(target float32) float64 {
		p := bare(6)
		p.AdaptiveTarget, p.AdaptiveDecay = target, 0.9
		s := mustNew(t, p)
		sum := 0.0
		for range 3000 {
			id, err := s.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
			sum += math.Exp(float64(logits[id]))
		}
		return sum / 3000
	}
	low, mid, high := mean(0.1), mean(0.25), mean(0.45)
	if !(low < mid && mid < high) || math.Abs(mid-0.25) > 0.05 || high < 0.38 || low > 0.15 {
		t.Errorf("mean probabilities %.3f, %.3f, %.3f for targets 0.1, 0.25, 0.45", low, mid, high)
	}
}

func TestProbs(t *testing.T) {
	p := bare(5)
	p.Probs, p.TopK, p.Temp = 2, 3, 0.5
	s := mustNew(t, p)
	if len(s.Probs()) != 0 {
		t.Error("probabilities before the first choice")
	}
	for range 20 {
		id, err := s.Next(logs(0.05, 0.4, 0.1, 0.25, 0.2))
		if err != nil {
			t.Fatal(err)
		}
		want := map[int32]float64{1: 0.16, 3: 0.0625, 4: 0.04} // squares, of 0.2625
		got := s.Probs()
		if got[0].ID != 1 || got[1].ID != 3 || len(got) != 2 && (len(got) != 3 || id != 4 || got[2].ID != 4) {
			t.Fatalf("%d was chosen: %v", id, got)
		}
		for _, q := range got {
			if math.Abs(float64(q.P)-want[q.ID]/0.2625) > 1e-5 {
				t.Errorf("token %d: %g, want %g", q.ID, q.P, want[q.ID]/0.2625)
			}
		}
	}
	s.Sure(0)
	if got := s.Probs(); !slices.Equal(got, []Prob{{0, 1}}) {
		t.Error(got)
	}
	p.Temp = 0
	s = mustNew(t, p)
	_, _ = s.Next(logs(0.05, 0.4, 0.1, 0.25, 0.2))
	if got := s.Probs(); !slices.Equal(got, []Prob{{1, 1}}) || !s.Greedy() {
		t.Error(got, s.Greedy())
	}
}

func TestTopLogprobs(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		logits := make([]float32, 1+r.IntN(300))
		for i := range logits {
			logits[i] = float32(r.IntN(60)) / 8
		}
		logits[r.IntN(len(logits))] = float32(math.Inf(-1))
		sum := 0.0
		ids := make([]int32, len(logits))
		for i, l := range logits {
			sum += math.Exp(float64(l))
			ids[i] = int32(i)
		}
		if sum == 0 {
			continue
		}
		slices.SortStableFunc(ids, func(a, b int32) int {
			if logits[a] > logits[b] {
				return -1
			} else if logits[a] < logits[b] {
				return 1
			}
			return 0
		})
		n := r.IntN(30)
		got := TopLogprobs(nil, logits, n, ids[len(ids)-1])
		if len(got) != min(n, len(ids))+1 {
			t.Fatal(len(got), n)
		}
		for i, g := range got {
			id := ids[len(ids)-1]
			if i < len(got)-1 {
				id = ids[i]
			}
			want := max(-math.MaxFloat32, float64(logits[id])-math.Log(sum))
			if g.ID != id || math.Abs(g.Logprob-want) > 1e-6 {
				t.Fatalf("place %d: %v, want token %d, %g", i, g, id, want)
			}
		}
	}
	inf := float32(math.Inf(-1))
	if got := TopLogprobs(nil, []float32{inf, inf}, 1); len(got) != 1 || got[0].Logprob != -math.MaxFloat32 {
		t.Error(got)
	}
}

func TestNames(t *testing.T) {
	if got, err := SamplersByLetters("edskypmxt"); !slices.Equal(got, DefaultSamplers()) || err != nil {
		t.Error(got, err)
	}
	if _, err := SamplersByLetters("kz"); err == nil || !strings.Contains(err.Error(), "'z'") {
		t.Error(err)
	}
	p := bare(3)
	p.Samplers = []string{"nucleus", "temp", "typical", "top-k", "min-p", "top-n-sigma"}
	mustNew(t, p)
	for want, set := range map[string]func(*Params){
		"mirostat is 3":            func(p *Params) { p.Mirostat = 3 },
		"dry_allowed_length is -1": func(p *Params) { p.DryAllowedLength = -1 },
		"dry_penalty_last_n is -2": func(p *Params) { p.DryPenaltyLastN = -2 },
		"dynatemp_range is -1":     func(p *Params) { p.DynatempRange = -1 },
		"adaptive_decay is 1":      func(p *Params) { p.AdaptiveDecay = 1 },
	} {
		p := bare(3)
		set(&p)
		if _, err := New(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ...%s...", err, want)
		}
	}
}

func TestStepAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	logits := randomLogits(5000, 1)
	for name, set := range map[string]func(*Params){
		"dry":        func(p *Params) { p.DryMultiplier, p.DryAllowedLength = 0.8, 0 },
		"dynatemp":   func(p *Params) { p.DynatempRange = 0.5 },
		"mirostat 1": func(p *Params) { p.Mirostat = 1 },
		"mirostat 2": func(p *Params) { p.Mirostat = 2 },
		"adaptive":   func(p *Params) { p.AdaptiveTarget = 0.3 },
	} {
		p := Defaults(5000)
		p.Seed, p.Probs = 1, 10
		set(&p)
		s := mustNew(t, p)
		tops := make([]Logprob, 0, 20)
		step := func() {
			id, err := s.Next(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
			s.Probs()
			tops = TopLogprobs(tops[:0], logits, 10, id)
		}
		for range 200 {
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%s: %g allocations a token", name, n)
		}
	}
}
