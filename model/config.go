package model

import (
	"fmt"
	"math"
	"slices"

	"terrace/gguf"
)

// Config is the shape of a model as its metadata gives it, checked. Counts are elements unless they say otherwise.
type Config struct {
	Arch    string // general.architecture
	Layers  int
	Context int // positions the model was trained for
	Embd    int // width of the residual stream
	Vocab   int // rows of the embedding, and logits a position

	Heads, KVHeads int // query heads; key and value heads, each read by Heads/KVHeads query heads
	KeyDim, ValDim int // of one head
	AttnScale      float32
	Eps            float32 // of every RMS norm
	Rope           RopeConfig

	FF       int // width of the feed-forward part of a dense layer
	Experts  int // routed experts of a layer; 0: the model is dense
	TopK     int // experts a token uses
	ExpertFF int // width of an expert

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
	f    *gguf.File
	arch string
	err  error
}

func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = &loadError{r.f.Path + ": " + fmt.Sprintf(format, args...)}
	}
}

func (r *reader) key(name string) string { return r.arch + "." + name }

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

// neutral lists keys that change the arithmetic where they hold another value than these. The architectures here do not
// use them, and leaving one out would still give fluent text.
var neutral = []struct {
	name string
	ok   []float64
}{
	{"attention.sliding_window", []float64{0}},
	{"attention.clamp_kqv", []float64{0}},
	{"attn_logit_softcapping", []float64{0}},
	{"final_logit_softcapping", []float64{0}},
	{"logit_scale", []float64{0, 1}},
	{"embedding_scale", []float64{0, 1}},
	{"residual_scale", []float64{0, 1}},
	{"expert_weights_scale", []float64{0, 1}},
	{"expert_gating_func", []float64{0, 1}},
	{"expert_group_count", []float64{0, 1}},
	{"expert_shared_count", []float64{0}},
	{"leading_dense_block_count", []float64{0}},
	{"interleave_moe_layer_step", []float64{0, 1}},
	{"nextn_predict_layers", []float64{0}},
	{"pooling_type", []float64{0}},
}

// neutralBools is the same for truth values.
var neutralBools = []struct {
	name string
	ok   bool
}{
	{"attention.causal", true},
	{"expert_weights_norm", true},
}

func (r *reader) checkNeutral() {
	for _, n := range neutral {
		key := r.key(n.name)
		if !r.f.Metadata.Has(key) {
			continue
		}
		v, err := r.f.Metadata.Float(key)
		r.take(err)
		if err == nil && !slices.Contains(n.ok, v) {
			r.refuse("metadata key %q is %v, and %s is computed with %v", key, v, r.arch, n.ok[len(n.ok)-1])
		}
	}
	for _, n := range neutralBools {
		key := r.key(n.name)
		v, err := r.f.Metadata.BoolOr(key, n.ok)
		r.take(err)
		if err == nil && v != n.ok {
			r.refuse("metadata key %q is %t, and %s is computed with %t", key, v, r.arch, n.ok)
		}
	}
}

// readConfig reads and checks the configuration of f, rotation as the options want it; Vocab and Tied are left to the
// tensors.
func readConfig(f *gguf.File, rope *RopeOptions) (Config, error) {
	r := &reader{f: f}
	arch, err := f.Metadata.String("general.architecture")
	if err != nil {
		return Config{}, &loadError{err.Error()}
	}
	if arch != "qwen3" && arch != "qwen3moe" {
		r.refuse("architecture %q is not supported, only qwen3 and qwen3moe", arch)
		return Config{}, r.err
	}
	r.arch = arch
	c := Config{
		Arch:    arch,
		Layers:  r.count("block_count", 0, maxLayers),
		Context: r.count("context_length", 0, maxContext),
		Embd:    r.count("embedding_length", 0, maxWidth),
		FF:      r.count("feed_forward_length", 0, maxWidth),
		Heads:   r.count("attention.head_count", 0, maxHeads),
		Eps:     float32(r.number("attention.layer_norm_rms_epsilon", math.NaN())),
	}
	c.KVHeads = r.count("attention.head_count_kv", c.Heads, maxHeads)
	head := c.Embd / c.Heads
	if head == 0 {
		head = 1
	}
	c.KeyDim = r.count("attention.key_length", head, maxWidth/c.Heads)
	c.ValDim = r.count("attention.value_length", head, maxWidth/c.Heads)
	c.AttnScale = float32(r.number("attention.scale", 1/math.Sqrt(float64(c.KeyDim))))
	if arch == "qwen3moe" {
		c.Experts = r.count("expert_count", 0, maxExperts)
		c.TopK = r.count("expert_used_count", 0, maxExperts)
		c.ExpertFF = r.count("expert_feed_forward_length", max(1, c.FF/c.TopK), maxWidth)
		if c.TopK > c.Experts {
			r.refuse("metadata key %q is %d, more than the %d of %q", r.key("expert_used_count"), c.TopK, c.Experts, r.key("expert_count"))
		}
	}
	if c.Heads%c.KVHeads != 0 {
		r.refuse("%d attention heads are no multiple of %d KV heads", c.Heads, c.KVHeads)
	}
	r.rope(&c, c.KeyDim, rope)
	r.checkNeutral()
	return c, r.err
}
