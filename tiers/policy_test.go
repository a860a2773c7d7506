package tiers

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"terrace/router"
)

// demoTrace gives the choices of the first n tokens of the demo model's routing trace, all of them for 0.
func demoTrace(t testing.TB, n int) [][][]int32 {
	t.Helper()
	r, err := router.OpenTrace("../testdata/tiny-moe/routing.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var passes [][][]int32
	for n == 0 || len(passes) < n {
		var l router.TraceLine
		if err := r.Next(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		passes = append(passes, l.Experts)
	}
	return passes
}

// alike gives each expert of a model the same size.
func alike(layers, experts int) [][]int64 {
	b := make([][]int64, layers)
	for l := range b {
		b[l] = slices.Repeat([]int64{1}, experts)
	}
	return b
}

// TestReuseOnTrace holds the shipped policy to the figures that decayed frequency reaches on the demo model's trace when
// the experts of a token need not be held together, which is easier. LRU at 10 % shows that the replay is a layer sweep.
func TestReuseOnTrace(t *testing.T) {
	passes := demoTrace(t, 0)
	for _, x := range []struct {
		slots int
		least float64 // EWMA with a half-life of 64, one touch at a time
	}{{25, 0.283}, {51, 0.464}, {89, 0.650}, {128, 0.792}} {
		r := Simulate(SimConfig{Bytes: alike(8, 32), Slots: x.slots, TopK: 4}, passes)
		if r.Touches != int64(len(passes)*32) || r.Reads == 0 || r.TouchBytes != r.Touches || r.ReadBytes != r.Reads || r.PromptTouches != 0 {
			t.Fatalf("%d slots: %+v", x.slots, r)
		}
		if got := r.HitRate(); got < x.least {
			t.Errorf("%d slots: %.4f, want at least %.3f", x.slots, got, x.least)
		}
	}
	r := Simulate(SimConfig{Bytes: alike(8, 32), Slots: 25, TopK: 4, Policy: LRU}, passes[:500])
	if r.HitRate() != 0 {
		t.Errorf("LRU below one token's experts: %.4f", r.HitRate())
	}
}

// TestReusePinned: the policy's decisions are the same in every run and on every machine.
func TestReusePinned(t *testing.T) {
	passes := demoTrace(t, 600)
	var reads []int64
	for range 2 {
		for _, slots := range []int{25, 89} {
			r := Simulate(SimConfig{Bytes: alike(8, 32), Slots: slots, TopK: 4}, passes)
			reads = append(reads, r.Reads)
		}
	}
	if want := []int64{13949, 6910, 13949, 6910}; !slices.Equal(reads, want) {
		t.Errorf("%d reads, want %d", reads, want)
	}
}

// TestReuseFollows: each of twelve pairs of experts is followed by one of two others, all equally often used: only who
// follows whom tells what will be wanted.
func TestReuseFollows(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var passes [][][]int32
	at := 0
	for range 3000 {
		passes = append(passes, [][]int32{{int32(2 * at), int32(2*at + 1)}})
		at = [2]int{(5*at + 1) % 12, (7*at + 4) % 12}[rnd.IntN(2)]
	}
	rate := func(c SimConfig) float64 {
		c.Bytes, c.Slots, c.TopK = alike(1, 24), 8, 2
		r := Simulate(c, passes)
		return r.HitRate()
	}
	with, without, ewma := rate(SimConfig{}), rate(SimConfig{Without: ReuseFollow}), rate(SimConfig{Policy: EWMA})
	if with < without+0.02 || with < ewma+0.02 {
		t.Errorf("hit rates %.3f, without the table %.3f, EWMA %.3f", with, without, ewma)
	}
}

// TestReuseSweep: prompts that use every expert of every layer cost decode next to nothing.
func TestReuseSweep(t *testing.T) {
	plain := demoTrace(t, 2000)
	all := make([]int32, 32)
	for i := range all {
		all[i] = int32(i)
	}
	var swept [][][]int32
	for i, p := range plain {
		if i%200 == 100 {
			for range 3 { // three batches of a long prompt
				swept = append(swept, slices.Repeat([][]int32{all}, 8))
			}
		}
		swept = append(swept, p)
	}
	for _, slots := range []int{51, 128} {
		c := SimConfig{Bytes: alike(8, 32), Slots: slots, TopK: 4}
		a, b := Simulate(c, plain), Simulate(c, swept)
		if b.Touches != a.Touches || b.PromptTouches != 30*256 {
			t.Fatalf("%+v and %+v", a, b)
		}
		if a.HitRate()-b.HitRate() > 0.012 {
			t.Errorf("%d slots: %.4f without prompts, %.4f with them", slots, a.HitRate(), b.HitRate())
		}
		c.Policy = LRU
		if l := Simulate(c, swept); l.HitRate() > b.HitRate()-0.05 {
			t.Errorf("%d slots: LRU %.4f beside %.4f", slots, l.HitRate(), b.HitRate())
		}
	}
}

// TestReuseLong: a long life, with rests, batches and changes of size, leaves all numbers finite and in bounds.
func TestReuseLong(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := newReuse([]int{8, 0, 5}, 2)
	all := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	for i := range 40000 {
		if i%1000 == 0 {
			p.capacity(rnd.IntN(14))
		}
		n := 2
		if rnd.IntN(50) == 0 {
			n = 5
		}
		p.visit(0, all[i%3:i%3+n])
		p.visit(1, nil)
		p.visit(2, all[:min(n, 5)])
		if i%500 != 0 {
			continue
		}
		for l := range p.layers {
			for e, s := range p.layers[l].scores {
				if math.IsNaN(s) || s < -1 || s > 3 {
					t.Fatalf("after %d visits expert %d of layer %d scores %g, weights %g", i, e, l, s, p.weights)
				}
			}
			for f, w := range p.layers[l].weight {
				if w > 1<<21 || !(p.layers[l].sum[f] > 0) {
					t.Fatalf("after %d visits row %d weighs %g of %g", i, f, w, p.layers[l].sum[f])
				}
			}
		}
	}
	a, b := p.score(2, 1), p.score(2, 4)
	if a < 0.8 || b > 0.2 {
		t.Errorf("an expert used always scores %g, one used never %g", a, b)
	}
}

// TestReuseIdle: while everything fits the policy looks now and then only, and knows enough when that ends.
func TestReuseIdle(t *testing.T) {
	p := newReuse([]int{8}, 2)
	p.capacity(8)
	for range 400 {
		p.visit(0, []int32{2, 5})
	}
	if n := p.layers[0].visits; n != 50 {
		t.Errorf("%d of 400 visits counted", n)
	}
	p.capacity(4)
	p.visit(0, []int32{0, 5})
	if a, b, c := p.score(0, 5), p.score(0, 2), p.score(0, 3); !(a > b && b > c) {
		t.Errorf("scores %g, %g, %g", a, b, c)
	}
}

// TestSeed: what earlier runs used much is kept at first, under every policy that counts uses.
func TestSeed(t *testing.T) {
	for _, name := range []Policy{Reuse, EWMA} {
		p := newPolicy(name, []int{4, 4}, 1, 0)
		p.capacity(4)
		p.seed(1, []float32{0.1, 0.7, 0, 0.2})
		order := func() []int {
			o := []int{0, 1, 2, 3}
			slices.SortFunc(o, func(a, b int) int {
				switch x, y := p.score(1, a), p.score(1, b); {
				case x > y:
					return -1
				case x < y:
					return 1
				}
				return 0
			})
			return o
		}
		if got := order(); !slices.Equal(got, []int{1, 3, 0, 2}) {
			t.Errorf("%v: order %v after the seed", name, got)
		}
		p.visit(1, []int32{2})
		if got := order(); got[0] == 2 && name == EWMA || slices.Index(got, 1) > 1 {
			t.Errorf("%v: order %v after one use of 2", name, got)
		}
		for range 300 {
			p.visit(1, []int32{2})
		}
		if got := order(); got[0] != 2 {
			t.Errorf("%v: order %v after many uses of 2", name, got)
		}
	}
}

func TestReuseAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("allocation counts mean nothing under the race detector")
	}
	passes := demoTrace(t, 100)
	s := NewSim(SimConfig{Bytes: alike(8, 32), Slots: 51, TopK: 4})
	i := 0
	step := func() {
		s.Pass(passes[i%len(passes)])
		i++
	}
	for range 200 {
		step()
	}
	if n := testing.AllocsPerRun(300, step); n != 0 {
		t.Errorf("%v allocations a pass", n)
	}
}

// TestAhead: knowing the next token's experts helps most where little fits; reading early takes slots, at the same reads
// where everything wanted fits.
func TestAhead(t *testing.T) {
	passes := demoTrace(t, 800)
	rate := func(ahead int, reads bool) float64 {
		r := Simulate(SimConfig{Bytes: alike(8, 32), Slots: 51, TopK: 4, Ahead: ahead, AheadReads: reads}, passes)
		if r.Touches != int64(len(passes)*32) {
			t.Fatalf("%+v", r)
		}
		return r.HitRate()
	}
	none, two, token, early := rate(0, false), rate(2, false), rate(8, false), rate(2, true)
	if !(none <= two+0.002 && two < token && early < two) {
		t.Errorf("hit rates %.4f, two layers known %.4f, a token known %.4f, two layers read early %.4f", none, two, token, early)
	}
}

func TestSimPanics(t *testing.T) {
	for _, x := range []struct {
		want string
		do   func()
	}{
		{"3 slots for 4 experts", func() { NewSim(SimConfig{Bytes: alike(1, 8), Slots: 3, TopK: 4}) }},
		{"a pass of 1 layers in a simulation of 2", func() { NewSim(SimConfig{Bytes: alike(2, 8), Slots: 4, TopK: 2}).Pass([][]int32{{1}}) }},
		{"policy 9", func() { NewSim(SimConfig{Bytes: alike(2, 8), Slots: 4, TopK: 2, Policy: 9}) }},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, x.want) {
					t.Errorf("panic %q, want %q", got, x.want)
				}
			}()
			x.do()
		}()
	}
}

func BenchmarkReuse(b *testing.B) {
	for _, c := range [][2]int{{32, 4}, {128, 8}, {512, 10}} {
		b.Run(fmt.Sprintf("%d of %d", c[1], c[0]), func(b *testing.B) {
			p := newReuse([]int{c[0], c[0], c[0], c[0]}, c[1])
			p.capacity(c[0])
			ids, i := make([]int32, c[1]), 0
			b.ReportAllocs()
			for b.Loop() {
				for k := range ids {
					ids[k] = int32((i*7 + k*(c[0]/c[1])) % c[0])
				}
				p.visit(i%4, ids)
				i++
			}
		})
	}
}

// TestMixedSizes: where layers differ in size the bytes found follow the scores across sizes, and slots of the layers'
// own sizes find more than slots of the largest.
func TestMixedSizes(t *testing.T) {
	passes := demoTrace(t, 1500)
	bytes, total := alike(8, 32), int64(0)
	for l := range bytes {
		for e := range bytes[l] {
			bytes[l][e] = 2 << 14
			if l%2 == 1 {
				bytes[l][e] = 3 << 14
			}
			total += bytes[l][e]
		}
	}
	for _, x := range []struct{ share, least float64 }{{0.1, 0.26}, {0.35, 0.645}} {
		arena := int64(x.share * float64(total))
		own := Simulate(SimConfig{Bytes: bytes, Arena: arena, TopK: 4}, passes)
		largest := Simulate(SimConfig{Bytes: bytes, Slots: int(arena / (3 << 14)), TopK: 4}, passes)
		ewma := Simulate(SimConfig{Bytes: bytes, Arena: arena, TopK: 4, Policy: EWMA}, passes)
		if own.TouchBytes != int64(len(passes))*4*4*(5<<14) {
			t.Fatalf("%d bytes touched", own.TouchBytes)
		}
		if h := own.ByteHitRate(); h < x.least || h < largest.ByteHitRate()+0.02 || h < ewma.ByteHitRate() {
			t.Errorf("%g of the bytes: %.4f of the bytes found, in slots of the largest size %.4f, EWMA %.4f", x.share, h, largest.ByteHitRate(), ewma.ByteHitRate())
		}
	}
}
