package bench

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const demoRouting = "../testdata/tiny-moe/routing.jsonl.gz"

func row(t *testing.T, rows []CacheRow, name string) []float64 {
	t.Helper()
	i := slices.IndexFunc(rows, func(r CacheRow) bool { return r.Policy == name })
	if i < 0 {
		t.Fatalf("no row %q", name)
	}
	return rows[i].HitRate
}

// TestCacheReference: the replay of one touch at a time gives the figures that were measured independently on the demo
// model's trace.
func TestCacheReference(t *testing.T) {
	r, err := ReadRouting(demoRouting, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Layers != 8 || r.Experts != 32 || r.TopK != 4 || r.Tokens != 5125 || len(r.Passes) != 5125 {
		t.Fatalf("%d tokens, %d layers of %d experts, %d used", r.Tokens, r.Layers, r.Experts, r.TopK)
	}
	for i, n := range []int{25, 51, 89, 128} {
		for _, x := range []struct {
			name string
			got  float64
			want [4]float64
		}{
			{"LRU", looseScores(r, n, newRecent(r)), [4]float64{0, 0.313, 0.564, 0.728}},
			{"EWMA 64", looseScores(r, n, newDecayed(r, 64)), [4]float64{0.283, 0.464, 0.650, 0.792}},
			{"optimum", belady(r, n, false), [4]float64{0.457, 0.649, 0.803, 0.895}},
		} {
			if math.Abs(x.got-x.want[i]) > 0.00051 {
				t.Errorf("%s in %d slots: %.4f, want %.3f", x.name, n, x.got, x.want[i])
			}
		}
	}
}

// TestCache: on the demo model's trace and the invented ones, shortened, the shipped policy is never below another by
// more than half a point, never below EWMA 64, and never above the optimum.
func TestCache(t *testing.T) {
	r, err := ReadRouting(demoRouting, 600, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := CacheConfig{Routings: []*Routing{r}}
	for _, x := range Invented() {
		x.Layers, x.Tokens, x.Topic = 4, 400, x.Topic/2
		c.Routings = append(c.Routings, MakeRouting(x))
	}
	rep, err := Cache(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Routings) != 4 || rep.Machine.System == "" || rep.Model != "routing.jsonl.gz, mild, strong, drifting" {
		t.Fatalf("%+v", rep)
	}
	for _, x := range rep.Routings {
		own, ewma, best := row(t, x.Rows, "reuse"), row(t, x.Rows, "EWMA 64"), row(t, x.Rows, "optimum")
		for i, n := range x.Slots {
			if own[i] < ewma[i] || own[i] > best[i] {
				t.Errorf("%s, %d slots: reuse %.4f, EWMA 64 %.4f, optimum %.4f", x.Name, n, own[i], ewma[i], best[i])
			}
			for _, name := range []string{"LRU", "LFU", "ristretto", "EWMA 16"} {
				if h := row(t, x.Rows, name)[i]; own[i] < h-0.005 {
					t.Errorf("%s, %d slots: reuse %.4f, %s %.4f", x.Name, n, own[i], name, h)
				}
			}
		}
	}
}

func TestCacheRefusals(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRouting(bad, 0, 0); err == nil || !strings.Contains(err.Error(), "no token") {
		t.Errorf("an empty trace: %v", err)
	}
	if _, err := ReadRouting(demoRouting, 10, 20); err == nil || !strings.Contains(err.Error(), "expert 31 occurs, a layer is said to have 20") {
		t.Errorf("too few experts: %v", err)
	}
	if r, err := ReadRouting(demoRouting, 10, 40); err != nil || r.Experts != 40 || r.Tokens != 10 {
		t.Errorf("%+v, %v", r, err)
	}
	r, _ := ReadRouting(demoRouting, 10, 0)
	if _, err := Cache(context.Background(), CacheConfig{Routings: []*Routing{r}, Shares: []float64{0.01}}); err == nil || !strings.Contains(err.Error(), "256 experts is 2, a token needs 4") {
		t.Errorf("too few slots: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Cache(ctx, CacheConfig{Routings: []*Routing{r}}); err == nil {
		t.Error("a cancelled replay goes on")
	}
}

// TestRouting: invented routing is the same each time, distinct within a layer, and has the reuse that it should.
func TestRouting(t *testing.T) {
	for _, c := range Invented() {
		c.Layers, c.Tokens = 2, 400
		r, again := MakeRouting(c), MakeRouting(c)
		same, all := 0, 0
		for i, p := range r.Passes {
			for l, ids := range p {
				if !slices.Equal(ids, again.Passes[i][l]) || len(ids) != c.TopK {
					t.Fatalf("%s: token %d, layer %d: %d and %d", c.Name, i, l, ids, again.Passes[i][l])
				}
				for j, e := range ids {
					if e < 0 || int(e) >= c.Experts || slices.Contains(ids[:j], e) {
						t.Fatalf("%s: token %d, layer %d uses %d", c.Name, i, l, ids)
					}
					if i > 0 && slices.Contains(r.Passes[i-1][l], e) {
						same++
					}
				}
				all += len(ids)
			}
		}
		if got := float64(same) / float64(all); got < c.Reuse || got > c.Reuse+0.3 {
			t.Errorf("%s: %.3f of the experts were used by the token before, at least %.2f should", c.Name, got, c.Reuse)
		}
		c.Seed++
		if other := MakeRouting(c); slices.Equal(other.Passes[0][0], r.Passes[0][0]) && slices.Equal(other.Passes[9][1], r.Passes[9][1]) {
			t.Errorf("%s: another seed gives the same", c.Name)
		}
	}
}

func TestWithPrompts(t *testing.T) {
	r, err := ReadRouting(demoRouting, 1000, 0) // 768 tokens of a text, 215 of another, 17 of a third
	if err != nil {
		t.Fatal(err)
	}
	p := r.WithPrompts(64)
	if p.Tokens != 1000-63-63-16 || len(p.Passes) != p.Tokens || r.Tokens != 1000 || r.WithPrompts(0) != r {
		t.Fatalf("%d passes of %d", p.Tokens, r.Tokens)
	}
	if n := len(p.Passes[0][0]); n <= 4 || n > 32 || len(p.Passes[1][0]) != 4 {
		t.Errorf("a prompt uses %d experts of layer 0, the next token %d", n, len(p.Passes[1][0]))
	}
	for _, e := range p.Passes[0][3] {
		if !slices.ContainsFunc(r.Passes[:64], func(q [][]int32) bool { return slices.Contains(q[3], e) }) {
			t.Errorf("the prompt uses expert %d of layer 3, none of its tokens does", e)
		}
	}
}

// TestCachePrompts: prompts larger than the cache are replayed by every policy, and only what follows them counts.
func TestCachePrompts(t *testing.T) {
	r, err := ReadRouting(demoRouting, 300, 0)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Cache(context.Background(), CacheConfig{Routings: []*Routing{r.WithPrompts(200)}, Shares: []float64{0.1, 1}, Rivals: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range append(rep.Routings[0].Rows, rep.Routings[0].Loose...) {
		if h := w.HitRate; h[0] > 0.6 || h[1] < 0.98 {
			t.Errorf("%s: %.3f at 10 %%, %.3f of the touches after a prompt when everything fits", w.Policy, h[0], h[1])
		}
	}
}

// TestRivals: each policy of the literature holds no more than its slots, and keeps a hot key through a scan or at
// least finds again at once what was just used.
func TestRivals(t *testing.T) {
	for _, v := range rivals {
		const n = 40
		p := v.make(n)
		for i := range 4000 { // 20 keys in turn, and a scan of others between them
			p.touch(i % 20)
			p.touch(1000 + i)
		}
		hits := 0
		for k := range 20 {
			if p.touch(k) {
				hits++
			}
		}
		if hits < 18 {
			t.Errorf("%s: %d of 20 hot keys are left after a scan", v.name, hits)
		}
		in := 0
		for k := range 20000 {
			if p.touch(5000 + k) { // never seen
				t.Fatalf("%s claims to hold what it never saw", v.name)
			}
		}
		for k := 24999; k >= 5000; k-- {
			if !p.touch(k) {
				break
			}
			in++
		}
		if in > n {
			t.Errorf("%s holds %d of the last keys in %d slots", v.name, in, n)
		}
	}
}
