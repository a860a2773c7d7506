// Package sample chooses the next token from a model's logits: penalties, cuts, temperature and a seeded draw, in
// llama.cpp's order and with its defaults.
//
// It knows no text, no model and no tensor: tokens are numbers, logits a slice. What it computes is defined bit for bit
// (float32 with fmath.Exp, sums in float64 in a fixed order), so one seed gives one text on every machine.
package sample

import (
	"fmt"
	"math"
	"slices"
)

// Params are the settings of one request. The names and defaults are llama.cpp's; Defaults gives them.
type Params struct {
	Vocab int // tokens in the vocabulary, the length of every logits slice

	Seed             int64   // >= 0; -1 or 4294967295: chosen at random, see Sampler.Seed
	Temp             float32 // <= 0: the most probable token
	TopK             int     // keep the k most probable tokens; <= 0: off
	TopP             float32 // keep the fewest tokens whose probabilities reach p; 1: off
	MinP             float32 // keep tokens at least this fraction as probable as the best; 0: off
	TypicalP         float32 // as TopP, but the tokens closest to the expected surprise first; 1: off
	TopNSigma        float32 // keep logits within n standard deviations below the best; <= 0: off
	XTCProbability   float32 // chance to drop all but the least of the tokens above the threshold; 0: off
	XTCThreshold     float32 // above 0.5: off
	RepeatLastN      int     // accepted tokens that penalties look back on; 0: off, -1: all
	RepeatPenalty    float32 // divides positive and multiplies negative logits of seen tokens; 1: off
	PresencePenalty  float32 // subtracted once from seen tokens; 0: off
	FrequencyPenalty float32 // subtracted for each time a token was seen; 0: off
	MinKeep          int     // tokens that TopP, MinP, TypicalP and XTC leave at least

	DynatempRange    float32 // the temperature moves within this of Temp, by how uncertain the model is; 0: off
	DynatempExponent float32 // of the uncertainty, 0 to 1

	DryMultiplier    float32   // factor of the penalty on repeated sequences; 0: off
	DryBase          float32   // the penalty grows by this with each token repeated; below 1: 1.75
	DryAllowedLength int       // repetitions shorter than this are free
	DryPenaltyLastN  int       // tokens to look back on; 0: off, -1: all
	DryBreakers      *Breakers // texts that repetitions do not reach over; nil: none

	Mirostat    int     // 1 or 2: this version in place of all cuts, see Next; 0: off
	MirostatTau float32 // surprise to aim at, in bits
	MirostatEta float32 // how fast

	AdaptiveTarget float32 // probability that drawn tokens are to have; <= 0: off
	AdaptiveDecay  float32 // how long drawn tokens count, below 1

	LogitBias map[int32]float32 // added first; -Inf bans a token
	IgnoreEOS bool              // ban the tokens of EOG
	EOG       []int32           // end-of-generation tokens
	Samplers  []string          // steps in their order; nil: DefaultSamplers
	Probs     int               // tokens that Sampler.Probs gives; 0: none
}

// Defaults returns llama.cpp's defaults for a vocabulary of that many tokens.
func Defaults(vocab int) Params {
	return Params{
		Vocab: vocab, Seed: -1, Temp: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, TypicalP: 1, TopNSigma: -1,
		XTCThreshold: 0.1, RepeatLastN: 64, RepeatPenalty: 1, DynatempExponent: 1,
		DryBase: dryBase, DryAllowedLength: 2, DryPenaltyLastN: 64, MirostatTau: 5, MirostatEta: 0.1, AdaptiveTarget: -1, AdaptiveDecay: 0.9,
	}
}

// DefaultSamplers are the steps in llama.cpp's default order.
func DefaultSamplers() []string {
	return []string{"penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"}
}

type step uint8

const (
	penalties step = iota
	topNSigma
	topK
	typicalP
	topP
	minP
	xtc
	temperature
	dryStep
)

// stepNames are the names that llama.cpp knows; those of DefaultSamplers come first in its reports.
var stepNames = map[string]step{
	"penalties": penalties, "dry": dryStep, "top_n_sigma": topNSigma, "top-n-sigma": topNSigma, "top_k": topK, "top-k": topK,
	"typ_p": typicalP, "typ-p": typicalP, "typical_p": typicalP, "typical-p": typicalP, "typical": typicalP, "typ": typicalP,
	"top_p": topP, "top-p": topP, "nucleus": topP, "min_p": minP, "min-p": minP, "xtc": xtc, "temperature": temperature, "temp": temperature,
}

var stepLetters = map[rune]string{
	'e': "penalties", 'd': "dry", 's': "top_n_sigma", 'k': "top_k", 'y': "typ_p", 'p': "top_p", 'm': "min_p", 'x': "xtc", 't': "temperature",
}

// SamplersByLetters reads the short form of a list of steps: e penalties, d dry, s top_n_sigma, k top_k, y typ_p, p top_p,
// m min_p, x xtc, t temperature. Spaces are skipped; an error names a letter that stands for nothing.
func SamplersByLetters(letters string) ([]string, error) {
	names := []string{}
	for _, r := range letters {
		name, ok := stepLetters[r]
		switch {
		case ok:
			names = append(names, name)
		case r != ' ':
			return nil, fmt.Errorf("samplers: letter %q is none of edskypmxt", r)
		}
	}
	return names, nil
}

// Validate tells the first setting that is out of its limits, by its name and both numbers.
func (p Params) Validate() error {
	if p.Vocab < 1 {
		return fmt.Errorf("vocabulary has %d tokens, at least 1 is needed", p.Vocab)
	}
	if p.Seed < -1 {
		return fmt.Errorf("seed is %d, at least -1 is allowed", p.Seed)
	}
	if p.RepeatLastN < -1 {
		return fmt.Errorf("repeat_last_n is %d, at least -1 is allowed", p.RepeatLastN)
	}
	if p.MinKeep < 0 {
		return fmt.Errorf("min_keep is %d, at least 0 is allowed", p.MinKeep)
	}
	if p.DryAllowedLength < 0 {
		return fmt.Errorf("dry_allowed_length is %d, at least 0 is allowed", p.DryAllowedLength)
	}
	if p.DryPenaltyLastN < -1 {
		return fmt.Errorf("dry_penalty_last_n is %d, at least -1 is allowed", p.DryPenaltyLastN)
	}
	if p.Mirostat < 0 || p.Mirostat > 2 {
		return fmt.Errorf("mirostat is %d, want 0, 1 or 2", p.Mirostat)
	}
	const most = math.MaxFloat32
	for _, f := range []struct {
		name   string
		v      float32
		lo, hi float32
	}{
		{"temperature", p.Temp, -most, most},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"typical_p", p.TypicalP, 0, 1},
		{"top_n_sigma", p.TopNSigma, -most, most},
		{"xtc_probability", p.XTCProbability, 0, 1},
		{"xtc_threshold", p.XTCThreshold, 0, 1},
		{"repeat_penalty", p.RepeatPenalty, 0.001, 1000},
		{"presence_penalty", p.PresencePenalty, -1000, 1000},
		{"frequency_penalty", p.FrequencyPenalty, -1000, 1000},
		{"dynatemp_range", p.DynatempRange, 0, most},
		{"dynatemp_exponent", p.DynatempExponent, 0, 100},
		{"dry_multiplier", p.DryMultiplier, 0, 1000},
		{"dry_base", p.DryBase, -most, 1000},
		{"mirostat_tau", p.MirostatTau, 0, 1000},
		{"mirostat_eta", p.MirostatEta, 0, 1000},
		{"adaptive_target", p.AdaptiveTarget, -most, 1},
		{"adaptive_decay", p.AdaptiveDecay, 0, 0.99},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) { // NaN is outside too
			return fmt.Errorf("%s is %g, the limits are %g and %g", f.name, f.v, f.lo, f.hi)
		}
	}
	for _, id := range sortedKeys(p.LogitBias) {
		b := p.LogitBias[id]
		if id < 0 || int(id) >= p.Vocab {
			return fmt.Errorf("logit_bias has token %d, the vocabulary has %d tokens", id, p.Vocab)
		}
		if !(b <= most) {
			return fmt.Errorf("logit_bias of token %d is %g, at most %g is allowed", id, b, float32(most))
		}
	}
	for _, id := range p.EOG {
		if p.IgnoreEOS && (id < 0 || int(id) >= p.Vocab) {
			return fmt.Errorf("end-of-generation token %d is outside the vocabulary of %d tokens", id, p.Vocab)
		}
	}
	for _, s := range p.Samplers {
		if _, ok := stepNames[s]; !ok {
			return fmt.Errorf("samplers: %.40q is none of %v", s, DefaultSamplers())
		}
	}
	return nil
}

func sortedKeys(m map[int32]float32) []int32 {
	keys := make([]int32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
