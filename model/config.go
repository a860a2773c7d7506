package model

import (
	"fmt"
	"math"
	"slices"

	"terrace/gguf"
	"terrace/router"
)

// Config is the shape of a model as its metadata gives it, checked. Counts are elements unless they say otherwise.
type Config struct {
	Arch    string // general.architecture
	Layers  int
	Context int // positions the model was trained for
	Embd    int // width of the residual stream
	Vocab   int // rows of the embedding, and logits a position

	// Of the layers with attention; where they differ, of the first.
	Heads, KVHeads int // query heads; key and value heads, each read by Heads/KVHeads query heads
	KeyDim, ValDim int // of one head
	AttnScale      float32
	Eps            float32 // of every RMS norm
	Rope           RopeConfig

	FF       int // width of the feed-forward part of a dense layer
	Experts  int // routed experts of a layer; 0: the model is dense
	TopK     int // experts a token uses
	ExpertFF int // width of an expert
	SharedFF int // width of the expert that every token uses; 0: none
	Leading  int // layers at the beginning that have no experts in a model that has

	Tied bool // the output head is the embedding
}

// Upper bounds of what a file may ask for: far above any model, low enough that products of two fit an int64.
const (
	maxLayers  = 4096
	maxWidth   = 1 << 24
	maxHeads   = 1 << 16
	maxExperts = 1 << 16
	maxContext = math.MaxInt32
)

// loadError is one line about a file that this package does not take.
type loadError struct{ msg string }

func (e *loadError) Error() string { return e.msg }
func (e *loadError) Unwrap() error { return ErrUnsupported }

// reader reads metadata of one architecture and keeps the first error.
type reader struct {
	f     *gguf.File
	arch  string
	seen  map[string]bool // keys that were asked for
	extra int             // layers behind the last that only predict further tokens
	err   error

	trained RopeConfig // the file's own rotation, without what options put in its place
}

func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = &loadError{r.f.Path + ": " + fmt.Sprintf(format, args...)}
	}
}

// key is the full name of a key of the architecture, which has been seen to now.
func (r *reader) key(name string) string {
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[name] = true
	return r.arch + "." + name
}

// present reports whether the file has a key.
func (r *reader) present(name string) bool { return r.f.Metadata.Has(r.key(name)) }

// flag reads a truth value; def stands in for a missing key.
func (r *reader) flag(name string, def bool) bool {
	v, err := r.f.Metadata.BoolOr(r.key(name), def)
	r.take(err)
	return v
}

// some is count for a number that may be 0; a missing key is 0.
func (r *reader) some(name string, limit int) int {
	if !r.present(name) {
		return 0
	}
	if v, err := r.f.Metadata.Ints(r.key(name)); err == nil && len(v) == 1 && v[0] == 0 {
		return 0
	}
	return r.count(name, 0, limit)
}

// factor reads a number that multiplies something; a missing key and 0 are def.
func (r *reader) factor(name string, def float64) float32 {
	if v, err := r.f.Metadata.Float(r.key(name)); err == nil && v == 0 {
		return float32(def)
	}
	return float32(r.number(name, def))
}

// take keeps a getter's error, which names the file itself.
func (r *reader) take(err error) {
	if err != nil && r.err == nil {
		r.err = &loadError{err.Error()}
	}
}

// count reads an integer from 1 to limit. def stands in for a missing key; 0: the key must be there. A per-layer array
// is taken where all its elements agree.
func (r *reader) count(name string, def, limit int) int {
	key := r.key(name)
	if def != 0 && !r.f.Metadata.Has(key) {
		return def
	}
	v, err := r.f.Metadata.Ints(key)
	if err != nil {
		r.take(err)
		return 1
	}
	if len(v) == 0 {
		r.refuse("metadata key %q is an empty array", key)
		return 1
	}
	for i, n := range v {
		if n != v[0] {
			r.refuse("metadata key %q is %d in layer 0 and %d in layer %d, and %s has one value for all layers", key, v[0], n, i, r.arch)
			return 1
		}
	}
	if v[0] < 1 || v[0] > int64(limit) {
		r.refuse("metadata key %q is %d, want 1 to %d", key, v[0], limit)
		return 1
	}
	return int(v[0])
}

// perLayer reads a number from 0 to limit for each layer of the file, those behind the last included; one number holds for
// all.
func (b *builder) perLayer(name string, limit int) []int {
	key, out := b.key(name), make([]int, b.c.Layers+b.extra)
	v, err := b.f.Metadata.Ints(key)
	if err != nil {
		b.take(err)
		return out
	}
	if len(v) != 1 && len(v) != len(out) {
		b.refuse("metadata key %q has %d elements, the model %d layers", key, len(v), len(out))
		return out
	}
	for i := range out {
		n := v[min(i, len(v)-1)]
		if n < 0 || n > int64(limit) {
			b.refuse("metadata key %q is %d in layer %d, want 0 to %d", key, n, i, limit)
			return out
		}
		out[i] = int(n)
	}
	return out
}

// number reads a finite number above zero; def stands in for a missing key, NaN: the key must be there.
func (r *reader) number(name string, def float64) float64 {
	key := r.key(name)
	if def == def && !r.f.Metadata.Has(key) {
		return def
	}
	v, err := r.f.Metadata.Float(key)
	if err != nil {
		r.take(err)
		return 1
	}
	if !(v > 0) || v > math.MaxFloat32 {
		r.refuse("metadata key %q is %v, want a finite number above 0", key, v)
		return 1
	}
	return v
}

// neutral lists keys that change the arithmetic where they hold another value than these. They are looked at where the
// architecture has not asked for them: leaving one out would still give fluent text.
var neutral = []struct {
	name string
	ok   []float64
}{
	{"attention.sliding_window", []float64{0}},
	{"attention.clamp_kqv", []float64{0}},
	{"attention.max_alibi_bias", []float64{0}},
	{"attention.temperature_scale", []float64{0}},
	{"attention.kv_lora_rank", []float64{0}},
	{"attention.q_lora_rank", []float64{0}},
	{"attention.shared_kv_layers", []float64{0}},
	{"attention.indexer.head_count", []float64{0}},
	{"attn_logit_softcapping", []float64{0}},
	{"final_logit_softcapping", []float64{0}},
	{"logit_scale", []float64{0, 1}},
	{"embedding_scale", []float64{0, 1}},
	{"residual_scale", []float64{0, 1}},
	{"expert_weights_scale", []float64{0, 1}},
	{"expert_gating_func", []float64{0, 1}},
	{"expert_count", []float64{0}},
	{"expert_group_count", []float64{0, 1}},
	{"expert_shared_count", []float64{0}},
	{"expert_shared_feed_forward_length", []float64{0}},
	{"leading_dense_block_count", []float64{0}},
	{"interleave_moe_layer_step", []float64{0, 1}},
	{"moe_every_n_layers", []float64{0, 1}},
	{"moe_latent_size", []float64{0}},
	{"nextn_predict_layers", []float64{0}},
	{"embedding_length_per_layer_input", []float64{0}},
	{"hyper_connection.count", []float64{0, 1}},
	{"ple.ngram_size", []float64{0}},
	{"shortconv.l_cache", []float64{0}},
	{"ssm.conv_kernel", []float64{0}},
	{"ssm.state_size", []float64{0}},
	{"pooling_type", []float64{0}},
}

// neutralBools is the same for truth values.
var neutralBools = []struct {
	name string
	ok   bool
}{
	{"attention.causal", true},
	{"expert_weights_norm", true},
	{"use_parallel_residual", false},
}

func (r *reader) checkNeutral() {
	for _, n := range neutral {
		if r.seen[n.name] || !r.present(n.name) {
			continue
		}
		key := r.key(n.name)
		v, err := r.f.Metadata.Float(key)
		r.take(err)
		if err == nil && !slices.Contains(n.ok, v) {
			r.refuse("metadata key %q is %v, and %s is computed with %v", key, v, r.arch, n.ok[len(n.ok)-1])
		}
	}
	for _, n := range neutralBools {
		if r.seen[n.name] {
			continue
		}
		key := r.key(n.name)
		v, err := r.f.Metadata.BoolOr(key, n.ok)
		r.take(err)
		if err == nil && v != n.ok {
			r.refuse("metadata key %q is %t, and %s is computed with %t", key, v, r.arch, n.ok)
		}
	}
}

// base reads what every architecture has: sizes, attention heads, rotation.
func (b *builder) base() {
	b.heads(func() int { return b.count("attention.head_count_kv", b.c.Heads, maxHeads) })
}

// mixedBase is base where not all layers have attention; it answers the KV heads of each, the same number or 0.
func (b *builder) mixedBase() []int {
	var kv []int
	b.heads(func() int {
		first := 0
		kv = b.perLayer("attention.head_count_kv", maxHeads)
		for i, n := range kv {
			if first == 0 {
				first = n
			}
			if n != 0 && n != first {
				b.refuse("metadata key %q is %d in layer %d, %d before it", b.key("attention.head_count_kv"), n, i, first)
			}
		}
		return max(first, 1)
	})
	return kv
}

// heads is base with the KV heads given.
func (b *builder) heads(kv func() int) {
	r, c := &b.reader, b.c
	c.Layers = r.count("block_count", 0, maxLayers)
	c.Context = r.count("context_length", 0, maxContext)
	c.Embd = r.count("embedding_length", 0, maxWidth)
	c.Heads = r.count("attention.head_count", 0, maxHeads)
	c.Eps = float32(r.number("attention.layer_norm_rms_epsilon", math.NaN()))
	c.KVHeads = kv()
	head := max(1, c.Embd/c.Heads)
	c.KeyDim = r.count("attention.key_length", head, maxWidth/c.Heads)
	c.ValDim = r.count("attention.value_length", head, maxWidth/c.Heads)
	c.AttnScale = r.factor("attention.scale", 1/math.Sqrt(float64(c.KeyDim)))
	if c.Heads%c.KVHeads != 0 {
		r.refuse("%d attention heads are no multiple of %d KV heads", c.Heads, c.KVHeads)
	}
	if !b.still {
		r.rope(c, c.KeyDim, b.ropeOpts)
	}
}

// denseFF reads the width of layers without experts.
func (b *builder) denseFF() { b.c.FF = b.count("feed_forward_length", 0, maxWidth) }

// expertSizes reads how many experts a layer has and how wide they are; width stands in for a missing
// expert_feed_forward_length, 0: the key must be there.
func (b *builder) expertSizes(width int) {
	c := b.c
	c.Experts = b.count("expert_count", 0, maxExperts)
	c.TopK = b.count("expert_used_count", 0, maxExperts)
	c.ExpertFF = b.count("expert_feed_forward_length", width, maxWidth)
	if c.TopK > c.Experts {
		b.refuse("metadata key %q is %d, more than the %d of %q", b.key("expert_used_count"), c.TopK, c.Experts, b.key("expert_count"))
	}
}

// nextn takes the layers that only predict further tokens, which block_count includes, out of the count.
func (b *builder) nextn() {
	b.extra = b.some("nextn_predict_layers", maxLayers)
	if b.extra >= b.c.Layers {
		b.refuse("metadata key %q is %d, and %q is %d with them", b.key("nextn_predict_layers"), b.extra, b.key("block_count"), b.c.Layers)
		b.extra = 0
	}
	b.c.Layers -= b.extra
}

// leading reads how many layers at the beginning have no experts.
func (b *builder) leading() {
	c := b.c
	if c.Leading = b.some("leading_dense_block_count", maxLayers); c.Leading > c.Layers {
		b.refuse("metadata key %q is %d, more than the %d layers", b.key("leading_dense_block_count"), c.Leading, c.Layers)
	}
}

// fixed refuses a truth value other than the one the architecture is computed with.
func (r *reader) fixed(name string, want bool) {
	if v := r.flag(name, want); v != want {
		r.refuse("metadata key %q is %t, and %s is computed with %t", r.key(name), v, r.arch, want)
	}
}

// windowed reads which layers see a window only: all but the last of every so many, or those that an array names. period
// stands in for a missing key.
func (b *builder) windowed(period int) []bool {
	const name = "attention.sliding_window_pattern"
	out := make([]bool, b.c.Layers)
	key := b.key(name)
	if v, err := b.f.Metadata.Ints(key); err == nil && len(v) > 1 {
		if len(v) < len(out) {
			b.refuse("metadata key %q has %d elements for %d layers", key, len(v), len(out))
			return out
		}
		for i := range out {
			out[i] = v[i] != 0
		}
		return out
	}
	period = b.count(name, period, maxLayers)
	for i := range out {
		out[i] = i%period < period-1
	}
	return out
}

// gating reads the function of the router; def stands in for a missing key, and for 0.
func (b *builder) gating(def router.Gating) router.Gating {
	if g := b.some("expert_gating_func", 255); g != 0 {
		return router.Gating(g) // the rule is validated
	}
	return def
}

// groups reads group-limited routing into rule.
func (b *builder) groups(rule *router.Rule) {
	rule.Groups = b.some("expert_group_count", maxExperts)
	rule.GroupsUsed = b.some("expert_group_used_count", maxExperts)
}
