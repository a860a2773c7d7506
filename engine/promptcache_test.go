package engine

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"terrace/compute"
	"terrace/model"
)

// wave is n tokens of a fixture's vocabulary.
func wave(n, salt int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i*i*7+3*i+11*salt+i/9*salt) % 256
	}
	return out
}

// cached opens a model with a prompt cache.
func cached(t *testing.T, o Options, c PromptCacheOptions) (*Engine, *PromptCache) {
	t.Helper()
	if o.CacheRAM == 0 {
		o.CacheRAM = 64 << 20
	}
	if o.Context == 0 {
		o.Context = 256
	}
	o.Threads = 2
	if o.ExpertRAM == (ExpertBudget{}) {
		o.ExpertRAM.Percent = 100
	}
	e := mustOpen(t, o)
	pc, err := e.NewPromptCache(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pc.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e, pc
}

// session makes a session of e with a cache, or without one.
func session(t *testing.T, e *Engine, pc *PromptCache) *Session {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	s.UseCache(pc)
	t.Cleanup(s.Close)
	return s
}

// sync evaluates a prompt and some tokens after it; it answers how many tokens of the prompt were evaluated, and compares the
// logits with those that fresh, which starts anew, has.
func (r *replay) sync(what string, s *Session, prompt []int32) (evaluated int) {
	r.t.Helper()
	ctx := context.Background()
	n, err := s.Sync(ctx, prompt)
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	r.fresh.Reset()
	if _, err := r.fresh.Sync(ctx, prompt); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	for i := range 3 {
		for j, v := range s.Logits() {
			if math.Float32bits(v) != math.Float32bits(r.fresh.Logits()[j]) {
				r.t.Fatalf("%s, prompt of %d, %d evaluated: logit %d of step %d is %v, afresh %v", what, len(prompt), n, j, i, v, r.fresh.Logits()[j])
			}
		}
		for _, x := range []*Session{s, r.fresh} {
			if err := x.Eval(ctx, int32(40+9*i)); err != nil {
				r.t.Fatalf("%s: %v", what, err)
			}
		}
	}
	s.Keep()
	return n
}

type replay struct {
	t     *testing.T
	fresh *Session
}

// TestCacheOneHash is the promise that a cached prefix changes no bit, for every architecture: from RAM, from disk after the
// engine was opened anew with other batches, extended, edited and shared.
func TestCacheOneHash(t *testing.T) {
	var only []string
	if raceEnabled {
		only = []string{"gpt-oss", "lfm2moe"}
	}
	all := families(t, only...)
	for turn, name := range slices.Sorted(maps.Keys(all)) {
		o := Options{Path: all[name], Batch: 32, Exact: turn%4 == 3}
		caseOf(t, name, o)
	}
}

// TestCacheTypes does the same for every type of the cache.
func TestCacheTypes(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	path := families(t, "qwen3")["qwen3"]
	for k := range compute.KVType(compute.KVTypes) {
		v := (k + 1) % compute.KVTypes
		caseOf(t, fmt.Sprintf("keys %s, values %s", k, v), Options{Path: path, Batch: 32, KeyType: k, ValType: v})
	}
}

// caseOf runs one model through a cache.
func caseOf(t *testing.T, name string, o Options) {
	t.Helper()
	dir := t.TempDir()
	long, other := wave(170, 1), append(slices.Clone(wave(170, 1)[:140]), wave(20, 5)...)
	const snapEvery = 32
	most := func(n, recurrent int, e *Engine) int { // tokens that may be evaluated
		if e.Model().CheckpointBytes() > 0 {
			return n + recurrent
		}
		return n
	}
	check := func(what string, n, limit int) {
		t.Helper()
		if n > limit {
			t.Errorf("%s: %s: %d tokens evaluated, at most %d wanted", name, what, n, limit)
		}
	}
	e, pc := cached(t, o, PromptCacheOptions{Dir: dir, Interval: snapEvery})
	r := &replay{t, session(t, e, nil)}
	a, b := session(t, e, pc), session(t, e, pc)
	check("first", r.sync(name+": first", a, long), 170)
	spoken := append(slices.Clone(long), 40, 49, 58)
	check("extended in the slot", r.sync(name+": extended in the slot", a, append(slices.Clone(spoken), 7, 8)), 2)
	check("extended in another slot", r.sync(name+": extended in another slot", b, append(slices.Clone(spoken), 9, 10, 11)), 3)
	check("again", r.sync(name+": again", b, long), most(1, checkpointTail, e))
	check("edited", r.sync(name+": edited", a, other), most(20, snapEvery, e))
	b.Reset()
	check("edited again, where others parted", r.sync(name+": parted", b, append(slices.Clone(other[:140]), 1, 2, 3)), 3)
	pc.Flush()
	st := pc.Stats()
	if st.Discarded+st.Damaged+st.Refused > 0 || st.Disk == 0 {
		t.Errorf("%s: %+v", name, st)
	}
	if err := pc.Close(context.Background()); err != nil {
		t.Fatal(err)
	}

	o.Batch, o.Context = 50, 200
	if o.Exact {
		o.Batch = 7
	}
	e, pc = cached(t, o, PromptCacheOptions{Dir: dir, Interval: snapEvery})
	r = &replay{t, session(t, e, nil)}
	a = session(t, e, pc)
	check("extended after a restart", r.sync(name+": extended after a restart", a, append(slices.Clone(spoken), 12, 13)), 2)
	check("edited after a restart", r.sync(name+": edited after a restart", a, append(slices.Clone(long[:100]), wave(20, 9)...)), most(20, snapEvery, e))
	check("shorter after a restart", r.sync(name+": shorter after a restart", a, long[:70]), most(1, snapEvery, e))
	if st := pc.Stats(); st.Loaded == 0 || st.Damaged > 0 {
		t.Errorf("%s, after a restart: %+v", name, st)
	}

	// One file, and back.
	path := dir + "/slot.bin"
	r.sync(name+": before saving", a, long)
	wrote, err := a.Save(path)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	c := session(t, e, nil)
	c.Sync(context.Background(), wave(77, 3))
	read, err := c.Load(path)
	if err != nil || read != wrote || c.Pos() != a.Pos() {
		t.Errorf("%s: %d tokens saved in %d bytes, %d restored from %d: %v", name, a.Pos(), wrote, c.Pos(), read, err)
	}
	check("extended after loading", r.sync(name+": extended after loading", c, append(slices.Clone(c.tokens), 3, 4, 5)), 3)
}

// TestCacheRefuses: another engine's files are not used, and what cannot be meant is refused.
func TestCacheRefuses(t *testing.T) {
	dir := t.TempDir()
	path := families(t, "qwen3")["qwen3"]
	e, pc := cached(t, Options{Path: path}, PromptCacheOptions{Dir: dir})
	s := session(t, e, pc)
	r := &replay{t, session(t, e, nil)}
	r.sync("first", s, wave(100, 1))
	if _, err := s.Save(dir + "/slot.bin"); err != nil {
		t.Fatal(err)
	}
	pc.Close(context.Background())
	ext, names := 0.5, map[string]bool{}
	for i, o := range []Options{{}, {}, {Exact: true}, {ValType: compute.KVQ8_0}, {Rope: model.RopeOptions{Scaling: "yarn", ExtFactor: &ext}},
		{Rope: model.RopeOptions{Scaling: "yarn", ExtFactor: new(float64)}}, {Rope: model.RopeOptions{Scaling: "yarn", ExtFactor: new(float64)}}} {
		o.Path = path
		name, err := mustOpen(t, o).space()
		if err != nil || names[name] != (i == 1 || i == 6) {
			t.Errorf("space %d: %s met before: %t, %v", i, name, names[name], err)
		}
		names[name] = true
	}
	e, pc = cached(t, Options{Path: path, KeyType: compute.KVF32}, PromptCacheOptions{Dir: dir})
	s = session(t, e, pc)
	if n := pc.Lookup(s.state, wave(100, 1)); n != 0 {
		t.Errorf("%d tokens of a cache of another type were found", n)
	}
	if _, err := s.Load(dir + "/slot.bin"); err == nil || !strings.Contains(err.Error(), "another model") || s.Pos() != 0 {
		t.Errorf("a slot of another type: %v", err)
	}
	if _, err := s.Load(dir + "/none.bin"); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("no file: %v", err)
	}
	if _, err := s.Save(dir + "/empty.bin"); err == nil {
		t.Error("an empty slot was saved")
	}
	if _, err := e.NewPromptCache(PromptCacheOptions{Interval: -1}); err == nil {
		t.Error("snapshots every -1 positions")
	}
	if _, err := Open(Options{Path: path, CacheRAM: -2}); err == nil {
		t.Error("a cache of -2 bytes")
	}
	if _, err := mustOpen(t, Options{Path: path}).NewPromptCache(PromptCacheOptions{}); err == nil {
		t.Error("a cache without memory")
	}
}
