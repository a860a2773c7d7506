package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/internal/testfile"
	"terrace/model"
)

// families are golden fixtures, unpacked: those named, or one or more of each architecture.
func families(t *testing.T, only ...string) map[string]string {
	t.Helper()
	packed, err := filepath.Glob("../testdata/golden/*/model.drawn.gz")
	if err != nil || len(packed) < 28 {
		t.Fatalf("%d fixtures, %v", len(packed), err)
	}
	dir, out := t.TempDir(), map[string]string{}
	for _, p := range packed {
		name := filepath.Base(filepath.Dir(p))
		if strings.HasPrefix(name, "qwen3moe-") { // other types of one architecture
			continue
		}
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		path := filepath.Join(dir, name+".gguf")
		if err := os.WriteFile(path, testfile.Gunzip(t, p), 0o644); err != nil {
			t.Fatal(err)
		}
		out[name] = path
	}
	return out
}

// timeline evaluates a prompt, goes back over the half of it to another end, and decodes some tokens: the hash of all logits
// met.
func timeline(t *testing.T, o Options) string {
	t.Helper()
	o.Context = 256
	e, err := Open(o)
	if err != nil {
		t.Fatalf("%s: %v", filepath.Base(o.Path), err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := sha256.New()
	note := func() {
		for _, v := range s.Logits() {
			binary.Write(h, binary.LittleEndian, math.Float32bits(v))
		}
	}
	ctx := context.Background()
	prompt := make([]int32, 44)
	if strings.Contains(o.Path, "gpt-oss") || strings.Contains(o.Path, "gemma4") {
		prompt = make([]int32, 100) // once round the ring of a window
	}
	half := len(prompt) / 2
	for i := range prompt {
		prompt[i] = int32(i*i*7+3*i+11) % 256
	}
	for _, p := range [][]int32{prompt, append(append([]int32(nil), prompt[:half]...), 5, 6, 7, 8, 9)} {
		if _, err := s.Sync(ctx, p); err != nil {
			t.Fatal(err)
		}
		note()
		for i := range 4 {
			if err := s.Eval(ctx, int32(40+9*i)); err != nil {
				t.Fatal(err)
			}
			note()
		}
	}
	if n := len(prompt[:half]) + 5 + 4; s.Pos() != n {
		t.Errorf("%s: %d tokens, want %d", filepath.Base(o.Path), s.Pos(), n)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// TestFamiliesOneHash is TestOneHash in small for every architecture. But for TERRACE_EXACT=whole, the architectures take turns
// at a middle run and at exact mode.
func TestFamiliesOneHash(t *testing.T) {
	var only []string
	if raceEnabled {
		only = []string{"gpt-oss"}
	}
	all := families(t, only...)
	for turn, name := range slices.Sorted(maps.Keys(all)) {
		path := all[name]
		hashes := map[bool]string{}
		for _, exact := range []bool{false, true} {
			for i, o := range []Options{
				{ExpertRAM: ExpertBudget{Percent: 100}, Batch: 256, Threads: 2},
				{ExpertRAM: ExpertBudget{Percent: 50}, Batch: 7, Threads: 1, Lookahead: 1},
				{ExpertRAM: ExpertBudget{Percent: 25}, Batch: 64, Threads: 2},
				{ExpertRAM: ExpertBudget{Min: true}, Batch: 1, Threads: 2, Lookahead: 2},
			} {
				middle := i == 1 || i == 2
				if middle && exact {
					continue
				}
				if !exactWhole && (exact && turn%2 == 1 || middle && (turn%2 == 0 || i != 1+turn/2%2)) {
					continue
				}
				o.Path, o.Exact = path, exact
				if o.ExpertRAM.Percent > 0 && o.ExpertRAM.Percent < 100 && !fits(t, o) {
					o.ExpertRAM = ExpertBudget{Min: true} // top-k is more than that
				}
				got := timeline(t, o)
				if i == 0 {
					hashes[exact] = got
				} else if got != hashes[exact] {
					t.Errorf("%s, exact %t, run %d: hash %s, want %s", name, exact, i, got, hashes[exact])
				}
			}
		}
	}
}

// fits reports whether an arena of that many experts can work.
func fits(t *testing.T, o Options) bool {
	t.Helper()
	o.Context = 256
	e, err := Open(o)
	if errors.Is(err, ErrDoesNotFit) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	return true
}

// TestFamiliesTools: guesses know more than chance, heat is learned and read again, and a predictor can be fitted, for every
// architecture with experts.
func TestFamiliesTools(t *testing.T) {
	if raceEnabled {
		t.Skip("slow under the race detector")
	}
	ctx := context.Background()
	for name, path := range families(t) {
		o := Options{Path: path, Context: 256, Lookahead: 2, GuessAlways: true, ExpertRAM: ExpertBudget{Percent: 100}, HeatDir: t.TempDir()}
		e := mustOpen(t, o)
		c := e.Model().Config()
		if c.Experts == 0 {
			continue
		}
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		text := make([]int32, 120)
		for i := range text {
			text[i] = int32(i*i*5+11*i+2) % 256
		}
		if _, err := s.Sync(ctx, text[:60]); err != nil {
			t.Fatal(err)
		}
		for _, id := range text[60:] {
			if err := s.Eval(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		// Chance finds top-k of the experts; random weights tell layers apart, so guesses two layers ahead know little.
		st, chance := s.pipe.Stats(), float64(c.TopK)/float64(c.Experts)
		best := max(st.Recall1, st.Recall2)
		t.Logf("%s: recall %.2f and %.2f, chance %.2f", name, st.Recall1, st.Recall2, chance)
		if c.TopK < c.Experts && best < chance+0.2*(1-chance) {
			t.Errorf("%s: recall %.2f and %.2f, chance finds %.2f", name, st.Recall1, st.Recall2, chance)
		}
		maps, err := s.FitPredictor(ctx, [][]int32{text}, AfterAttention, false, nil)
		if n := e.Model().Streams(); n > 1 {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the residual is %d streams", n)) {
				t.Errorf("%s: maps fitted to %d streams, %v", name, n, err)
			}
		} else if err != nil || len(maps) == 0 {
			t.Errorf("%s: %d maps fitted, %v", name, len(maps), err)
		} else {
			routersAreMaps(t, name, e, s, text)
		}
		s.Close()
		h, err := e.heat.profile.Load()
		if err != nil || h.Tokens < 120 {
			t.Errorf("%s: heat of %v, %v", name, h, err)
		}
		for l := range c.Layers {
			if (e.Model().Rule(l) == nil) != (len(e.Model().Experts()[l]) == 0) {
				t.Errorf("%s: layer %d has a rule or experts, not both", name, l)
			}
		}
	}
}

// routersAreMaps: what RouterMap makes of the residual are the scores that the layer itself got, whatever norm, factor and
// bias its router has.
func routersAreMaps(t *testing.T, name string, e *Engine, s *Session, text []int32) {
	t.Helper()
	c, layers := e.Model().Config(), 0
	u := make([]float32, c.Embd)
	err := s.Scan(context.Background(), [][]int32{text}, func(seen []*model.Watched, rows int, first bool) error {
		for l, w := range seen {
			if w == nil {
				continue
			}
			m, bias, err := e.RouterMap(l)
			if err != nil {
				return err
			}
			layers++
			last := rows - 1
			e.Normalised(u, w.Mid[last*c.Embd:rows*c.Embd])
			for x := range c.Experts {
				got := 0.0
				for i, v := range m[x*c.Embd : (x+1)*c.Embd] {
					got += float64(v) * float64(u[i])
				}
				if bias != nil {
					got += float64(bias[x])
				}
				if want := float64(w.Scores[last*c.Experts+x]); math.Abs(got-want) > 1e-3*(1+math.Abs(want)) {
					return fmt.Errorf("layer %d: score %d is %g by the map, %g by the layer", l, x, got, want)
				}
			}
		}
		return nil
	})
	if err != nil || layers == 0 {
		t.Errorf("%s: routers of %d layers compared with their maps: %v", name, layers, err)
	}
}
