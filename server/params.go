package server

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"terrace/sample"
	"terrace/tokenizer"
)

// params are the effective settings of one completion: what the request says, else the server's defaults.
type params struct {
	sample    sample.Params
	predict   int // tokens to generate at most; -1: no limit
	stream    bool
	usage     bool // stream_options.include_usage
	stop      []string
	n         int  // completions of a prompt
	stopLoops bool // end an answer that repeats itself
	cache     bool
	slot      int // -1: any
	keep      int
	discard   int
	indent    int
	maxMS     int // t_max_predict_ms
	tokens    bool
	probs     int // alternatives of each token; 0: none
	postProbs bool
	timings   bool // in every chunk
	progress  bool
	fields    []string // response_fields
	ping      time.Duration
	grammar   string
	schema    json.RawMessage
	verbose   bool
	breakers  []string // of the DRY penalty
}

// Defaults are what requests leave open.
type Defaults struct {
	Sample    sample.Params // Vocab and EOG are filled in by the server
	Predict   int           // 0: no limit, as -1
	Keep      int
	NoCache   bool
	StopLoops bool // end answers that repeat themselves
	Grammar   string
	Schema    json.RawMessage
}

// samplerNames are the names by which requests may call the samplers, other spellings included.
var samplerNames = map[string]string{
	"penalties": "penalties", "dry": "dry", "top_n_sigma": "top_n_sigma", "top-n-sigma": "top_n_sigma", "top_k": "top_k", "top-k": "top_k",
	"typ_p": "typ_p", "typ-p": "typ_p", "typical_p": "typ_p", "typical": "typ_p", "typ": "typ_p", "top_p": "top_p", "top-p": "top_p", "nucleus": "top_p",
	"min_p": "min_p", "min-p": "min_p", "xtc": "xtc", "temperature": "temperature", "temp": "temperature",
}

// defaultBreakers are the texts over which the DRY penalty sees no repetition.
var defaultBreakers = []string{"\n", ":", "\"", "*"}

// maxFields is how many names response_fields may have: each is looked up in the reply.
const maxFields = 128

// breakers makes those of a request ready for its sampler; the latest ones are kept, since that looks at the whole vocabulary.
func (m *Model) breakers(texts []string) *sample.Breakers {
	key := strings.Join(texts, "\x00")
	m.dry.mu.Lock()
	defer m.dry.mu.Unlock()
	if m.dry.b == nil || m.dry.key != key {
		t := m.Engine.Tokenizer()
		m.dry.b = sample.NewBreakers(texts, m.Engine.Model().Config().Vocab, t.Piece, func(text string) []int32 { return t.Encode(nil, text, false, false) })
		m.dry.key = key
	}
	return m.dry.b
}

// Samplers reads a list of sampler names as llama-server's option has it: names between semicolons.
func Samplers(list string) ([]string, error) {
	out := []string{}
	for _, n := range strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == ',' }) {
		name, ok := samplerNames[strings.TrimSpace(n)]
		if !ok {
			return nil, invalid("sampler %.40q is none of %s", n, strings.Join(sample.DefaultSamplers(), ", "))
		}
		out = append(out, name)
	}
	return out, nil
}

// params reads the settings of a request. chatty is the dialect in which logprobs is a boolean.
func (c *call) params(f *fields, chatty bool) (*params, error) {
	d := &c.s.opt.Defaults
	p := &params{sample: d.Sample, n: 1, slot: -1, cache: !d.NoCache, keep: d.Keep, grammar: d.Grammar, schema: d.Schema, predict: d.Predict, stopLoops: d.StopLoops}
	if p.predict == 0 {
		p.predict = -1
	}
	t := c.m.Engine.Tokenizer()
	p.sample.Vocab, p.sample.EOG = c.m.Engine.Model().Config().Vocab, t.EOG()
	p.sampling(f, t)
	if k := f.first("n_predict", "max_tokens", "max_completion_tokens"); k != "" {
		if p.predict = f.integer(k, -1); p.predict < -1 {
			f.fail("%s is %d, want -1 or more", k, p.predict)
		}
	}
	p.stream = f.boolean("stream", false)
	if o := f.object("stream_options"); o != nil {
		p.usage = o.boolean("include_usage", false)
		if o.err != nil && f.err == nil {
			f.err = o.err
		}
	}
	p.stop = f.stops("stop")
	if k := f.first("n_cmpl", "n"); k != "" {
		slots := c.m.Slots
		if p.n = f.integer(k, 1); p.n < 1 || p.n > slots {
			f.fail("%s is %d, want 1 to %d, the number of slots", k, p.n, slots)
		}
	}
	p.stopLoops, p.cache = f.boolean("stop_loops", p.stopLoops), f.boolean("cache_prompt", p.cache)
	if p.slot = f.integer("id_slot", -1); p.slot < -1 || p.slot >= c.m.Slots {
		f.fail("id_slot is %d, want -1 to %d", p.slot, c.m.Slots-1)
	}
	if p.keep = f.integer("n_keep", p.keep); p.keep < -1 {
		f.fail("n_keep is %d, want -1 or more", p.keep)
	}
	if p.discard = f.integer("n_discard", 0); p.discard < 0 {
		f.fail("n_discard is %d, want 0 or more", p.discard)
	}
	p.indent, p.maxMS = f.integer("n_indent", 0), f.integer("t_max_predict_ms", 0)
	p.tokens = f.boolean("return_tokens", false)
	if chatty {
		if f.boolean("logprobs", false) {
			p.probs = f.integer("top_logprobs", 20)
			if p.probs == 0 { // entries without alternatives are asked for; one is the least that is kept
				p.probs = 1
			}
		} else if f.integer("top_logprobs", 0) > 0 {
			f.fail("top_logprobs is given, and logprobs is not true")
		}
		p.probs = f.integer("n_probs", p.probs)
	} else if k := f.first("n_probs", "logprobs"); k != "" {
		p.probs = f.integer(k, 0)
	}
	if p.probs < 0 {
		f.fail("the number of alternatives of a token is %d, want 0 or more", p.probs)
	}
	p.probs = min(p.probs, p.sample.Vocab)
	p.postProbs = f.boolean("post_sampling_probs", false)
	p.timings, p.progress = f.boolean("timings_per_token", false), f.boolean("return_progress", false)
	p.fields = f.strings("response_fields")
	if n := len(p.fields); n > maxFields {
		f.fail("response_fields has %d names, at most %d are taken", n, maxFields)
	}
	p.ping = c.s.opt.Ping
	if f.has("sse_ping_interval") {
		p.ping = time.Duration(max(-1, min(f.number("sse_ping_interval", 30), 1e6)) * float64(time.Second))
		if p.ping == 0 {
			p.ping = -1
		}
	}
	p.verbose = f.boolean("verbose", false)
	if f.has("lora") {
		f.array("lora")
	}
	grammar, schema := f.has("grammar"), f.has("json_schema")
	if grammar && schema && f.str("grammar", "") != "" {
		f.fail("Cannot use both json_schema and grammar")
	}
	if grammar {
		p.grammar, p.schema = f.str("grammar", ""), nil
	}
	if schema {
		p.grammar, p.schema = "", f.raw("json_schema")
	}
	if f.err == nil {
		if err := p.sample.Validate(); err != nil {
			f.err = invalid("%s", err)
		}
	}
	return p, f.err
}

// sampling reads the fields of sampling; numbers out of range become the nearest in range.
func (p *params) sampling(f *fields, t *tokenizer.Tokenizer) {
	s := &p.sample
	real := func(v *float32, key string, lo, hi float64) {
		if f.has(key) {
			*v = float32(max(lo, min(hi, f.number(key, 0))))
		}
	}
	const most = math.MaxFloat32
	real(&s.Temp, "temperature", -most, most)
	s.TopK = max(0, f.integer("top_k", s.TopK))
	real(&s.TopP, "top_p", 0, 1)
	real(&s.MinP, "min_p", 0, 1)
	real(&s.TopNSigma, "top_n_sigma", -1, most)
	real(&s.TypicalP, "typical_p", 0, 1)
	real(&s.XTCProbability, "xtc_probability", 0, 1)
	real(&s.XTCThreshold, "xtc_threshold", 0, 1)
	if s.RepeatLastN = f.integer("repeat_last_n", s.RepeatLastN); s.RepeatLastN < -1 {
		f.fail("repeat_last_n is %d, want -1 or more", s.RepeatLastN)
	}
	real(&s.RepeatPenalty, "repeat_penalty", 0.001, 1000)
	real(&s.PresencePenalty, "presence_penalty", -1000, 1000)
	real(&s.FrequencyPenalty, "frequency_penalty", -1000, 1000)
	s.MinKeep = max(0, f.integer("min_keep", s.MinKeep))
	real(&s.DynatempRange, "dynatemp_range", 0, most)
	real(&s.DynatempExponent, "dynatemp_exponent", 0, 100)
	real(&s.DryMultiplier, "dry_multiplier", 0, 1000)
	if real(&s.DryBase, "dry_base", -most, 1000); s.DryBase < 1 {
		s.DryBase = sample.Defaults(1).DryBase
	}
	s.DryAllowedLength = max(0, f.integer("dry_allowed_length", s.DryAllowedLength))
	if s.DryPenaltyLastN = f.integer("dry_penalty_last_n", s.DryPenaltyLastN); s.DryPenaltyLastN < -1 {
		f.fail("dry_penalty_last_n is %d, want -1 or more", s.DryPenaltyLastN)
	}
	p.breakers = defaultBreakers
	if f.has("dry_sequence_breakers") {
		p.breakers = f.strings("dry_sequence_breakers")
		if n := len(p.breakers); n == 0 || n > 64 {
			f.fail("dry_sequence_breakers has %d texts, want 1 to 64", n)
		}
	}
	s.Mirostat = max(0, min(2, f.integer("mirostat", s.Mirostat)))
	real(&s.MirostatTau, "mirostat_tau", 0, 1000)
	real(&s.MirostatEta, "mirostat_eta", 0, 1000)
	real(&s.AdaptiveTarget, "adaptive_target", -1, 1)
	real(&s.AdaptiveDecay, "adaptive_decay", 0, 0.99)
	s.IgnoreEOS = f.boolean("ignore_eos", s.IgnoreEOS)
	if f.has("seed") {
		switch v := f.number("seed", -1); {
		case v >= 0:
			s.Seed = int64(min(v, 1<<53))
		case v == -1:
			s.Seed = -1
		default: // as an unsigned number of 32 bits
			s.Seed = int64(uint32(int64(max(v, -1<<53))))
		}
	}
	if f.has("logit_bias") {
		s.LogitBias = f.bias("logit_bias", t)
	}
	if f.has("samplers") {
		s.Samplers = f.samplers("samplers")
	}
}

// stops reads stop strings: one, or an array of them. Empty ones never stop.
func (f *fields) stops(key string) []string {
	if !f.has(key) {
		return nil
	}
	if kindOf(f.m[key]) == "string" {
		if s := f.str(key, ""); s != "" {
			f.stopLength(f.name(key), s)
			return []string{s}
		}
		return nil
	}
	var out []string
	for _, s := range f.strings(key) {
		if s != "" {
			out = append(out, s)
		}
	}
	const most = 64
	if len(out) > most {
		f.fail("%s has %d strings, at most %d are taken", f.name(key), len(out), most)
	}
	for i, s := range out {
		f.stopLength(element(f.name(key), i), s)
	}
	return out
}

// maxStop is how many bytes a stop string may have: each token is compared with the beginnings of all of them.
const maxStop = 512

func (f *fields) stopLength(at, s string) {
	if len(s) > maxStop {
		f.fail("%s has %d bytes, at most %d are taken", at, len(s), maxStop)
	}
}

// maxCandidates bounds the alternatives of tokens that one request may ask for, as long as it asks for more than usualProbs a
// token: each takes some hundred bytes of the reply.
const (
	maxCandidates = 1 << 18
	usualProbs    = 64
)

// checkProbs refuses a request for so many answers whose alternatives would take too much.
func (p *params) checkProbs(answers, context int) error {
	tokens := p.predict
	if tokens < 0 || tokens > context {
		tokens = context
	}
	if n := int64(p.probs) * int64(tokens) * int64(answers); p.probs > usualProbs && n > maxCandidates {
		return invalid("%d alternatives of each of %d tokens are %d, at most %d are given; up to %d alternatives always are", p.probs, tokens*answers, n, maxCandidates, usualProbs)
	}
	return nil
}

// samplers reads names, or a string of their letters. What is not known here has no effect, as in llama-server.
func (f *fields) samplers(key string) []string {
	out := []string{}
	if kindOf(f.m[key]) == "string" {
		for _, r := range f.str(key, "") {
			if n, err := sample.SamplersByLetters(string(r)); err == nil {
				out = append(out, n...)
			}
		}
		return out
	}
	for _, s := range f.strings(key) {
		if n, ok := samplerNames[s]; ok {
			out = append(out, n)
		}
	}
	return out
}

// bias reads logit biases: an object of them by token number or text, or an array of pairs. Numbers outside the vocabulary
// have no effect.
func (f *fields) bias(key string, t *tokenizer.Tokenizer) map[int32]float32 {
	out := map[int32]float32{}
	put := func(tok, bias json.RawMessage, text string, at string) {
		var add float32
		switch kindOf(bias) {
		case "number":
			v, _ := number(bias)
			add = float32(max(-math.MaxFloat32, min(math.MaxFloat32, v)))
		case "boolean":
			if string(bias) != "false" {
				f.fail("%s is true, want a number or false", at)
			}
			add = float32(math.Inf(-1))
		default:
			f.fail("%s is a JSON %s, want a number or false", at, kindOf(bias))
		}
		if tok != nil && kindOf(tok) == "number" {
			if v, ok := number(tok); ok && v >= 0 && v < float64(t.Vocab()) {
				out[int32(v)] = add
			}
			return
		}
		if tok != nil && json.Unmarshal(tok, &text) != nil {
			f.fail("%s names a token by a JSON %s, want its number or text", at, kindOf(tok))
			return
		}
		for _, id := range t.Encode(nil, text, false, true) {
			out[id] = add
		}
	}
	switch kindOf(f.m[key]) {
	case "object":
		var m map[string]json.RawMessage
		json.Unmarshal(f.m[key], &m)
		for k, v := range m {
			if id, err := strconv.Atoi(k); err == nil {
				put(json.RawMessage(strconv.Itoa(id)), v, "", f.name(key)+"."+k)
			} else {
				put(nil, v, k, f.name(key)+"."+k)
			}
		}
	case "array":
		for i, e := range f.array(key) {
			var pair []json.RawMessage
			if json.Unmarshal(e, &pair) != nil || len(pair) != 2 {
				f.fail("%s is no pair of a token and a bias", element(f.name(key), i))
				continue
			}
			put(pair[0], pair[1], "", element(f.name(key), i))
		}
	default:
		f.wrong(key, "an array or an object")
	}
	return out
}

// settings are the effective values as replies show them. seed is the one in use.
func (p *params) settings(seed int64) map[string]any {
	s := &p.sample
	bias := []any{}
	for id, b := range s.LogitBias {
		v := any(shown(b))
		if math.IsInf(float64(b), -1) {
			v = false
		}
		bias = append(bias, []any{id, v})
	}
	names := s.Samplers
	if names == nil {
		names = sample.DefaultSamplers()
	}
	stop := p.stop
	if stop == nil {
		stop = []string{}
	}
	return map[string]any{
		"n_predict": p.predict, "max_tokens": p.predict, "seed": seed, "temperature": shown(s.Temp), "top_k": s.TopK, "top_p": shown(s.TopP),
		"min_p": shown(s.MinP), "top_n_sigma": shown(s.TopNSigma), "typical_p": shown(s.TypicalP), "xtc_probability": shown(s.XTCProbability),
		"xtc_threshold": shown(s.XTCThreshold), "repeat_last_n": s.RepeatLastN, "repeat_penalty": shown(s.RepeatPenalty),
		"presence_penalty": shown(s.PresencePenalty), "frequency_penalty": shown(s.FrequencyPenalty), "min_keep": s.MinKeep,
		"dynatemp_range": shown(s.DynatempRange), "dynatemp_exponent": shown(s.DynatempExponent), "dry_multiplier": shown(s.DryMultiplier),
		"dry_base": shown(s.DryBase), "dry_allowed_length": s.DryAllowedLength, "dry_penalty_last_n": s.DryPenaltyLastN,
		"dry_sequence_breakers": p.breakers, "mirostat": s.Mirostat, "mirostat_tau": shown(s.MirostatTau), "mirostat_eta": shown(s.MirostatEta),
		"adaptive_target": shown(s.AdaptiveTarget), "adaptive_decay": shown(s.AdaptiveDecay),
		"ignore_eos": s.IgnoreEOS, "logit_bias": bias, "samplers": names, "stop": stop, "n_keep": p.keep, "n_discard": p.discard,
		"n_indent": p.indent, "t_max_predict_ms": p.maxMS, "stream": p.stream, "n_probs": p.probs, "post_sampling_probs": p.postProbs,
		"timings_per_token": p.timings, "grammar": p.grammar, "cache_prompt": p.cache, "stop_loops": p.stopLoops, "lora": []any{},
	}
}

// shown is the float64 that prints as short as v does.
func shown(v float32) float64 {
	f, _ := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
	return f
}
