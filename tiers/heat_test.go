package tiers

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
)

var someModel = HeatModel{Fingerprint: "abc", Arch: "qwen3moe", Name: "Tiny MoE", TopK: 2}

// TestHeatCounter compares the counts with sums that decay a token at a time, over batches, an unfinished pass and so many
// tokens that the counter has to scale.
func TestHeatCounter(t *testing.T) {
	sizes := []int{0, 4, 3}
	c := NewHeatCounter(sizes)
	want := NewHeat(HeatModel{}, sizes)
	use := func(layer, rows int, choices ...int32) {
		c.Use(layer, choices, rows)
		for _, e := range choices {
			want.Recent[layer][e]++
			want.Long[layer][e]++
		}
	}
	pass := func(rows int) {
		want.Age(int64(rows))
		want.Tokens += int64(rows)
	}
	for i := range 500 {
		pass(1)
		use(1, 1, int32(i%4), int32((i+1)%4))
		if i%7 != 0 { // cancelled behind layer 1
			use(2, 1, int32(i%3), int32((i/2)%3))
		}
	}
	for range 3 {
		pass(60000)
		use(1, 60000, 0, 0, 1, 3)
		use(2, 60000, 2, 2, 2)
	}
	got := c.Take()
	if got.Tokens != want.Tokens {
		t.Errorf("%d tokens, want %d", got.Tokens, want.Tokens)
	}
	compare := func(name string, got, want [][]float64) {
		t.Helper()
		for l := range want {
			for e := range want[l] {
				if d := math.Abs(got[l][e] - want[l][e]); d > 1e-9*want[l][e] {
					t.Errorf("%s: layer %d, expert %d: %g uses, want %g", name, l, e, got[l][e], want[l][e])
				}
			}
		}
	}
	compare("recent", got.Recent, want.Recent)
	compare("long", got.Long, want.Long)
	if again := c.Take(); again.Tokens != 0 || again.Long[1][0] != 0 {
		t.Errorf("taken twice: %+v", again)
	}
	// What is taken in two parts is what would have been taken in one.
	a, b := NewHeatCounter(sizes), NewHeatCounter(sizes)
	sum := NewHeat(HeatModel{}, sizes)
	for i := range 300 {
		for l, n := range []int{4, 3} {
			e := []int32{int32(i * 7 % n), int32((i*7 + 1) % n)}
			a.Use(l+1, e, 1)
			b.Use(l+1, e, 1)
		}
		if i == 99 {
			sum = b.Take()
		}
	}
	rest := b.Take()
	sum.Age(rest.Tokens)
	sum.Add(rest)
	whole := a.Take()
	compare("parts", sum.Recent, whole.Recent)
	compare("parts", sum.Long, whole.Long)
	if sum.Tokens != 300 {
		t.Errorf("%d tokens in two parts, want 300", sum.Tokens)
	}
}

func TestHeatCounterAllocates(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	c := NewHeatCounter([]int{8, 8})
	ids := []int32{1, 5}
	if n := testing.AllocsPerRun(100, func() { c.Use(0, ids, 1); c.Use(1, ids, 1) }); n != 0 {
		t.Errorf("%g allocations a token", n)
	}
}

// TestHeatCounterTogether: counting and taking at the same time lose nothing.
func TestHeatCounterTogether(t *testing.T) {
	c := NewHeatCounter([]int{4})
	sum := NewHeat(HeatModel{}, []int{4})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 3000 {
			c.Use(0, []int32{3}, 1)
		}
		close(stop)
	})
	for done := false; !done; {
		select {
		case <-stop:
			done = true
		default:
		}
		if done {
			wg.Wait()
		}
		h := c.Take()
		sum.Age(h.Tokens)
		sum.Add(h)
	}
	if sum.Tokens != 3000 || sum.Long[0][3] < 1 || sum.Long[0][0] != 0 {
		t.Errorf("%d tokens, uses %v", sum.Tokens, sum.Long)
	}
}

func testHeat() *Heat {
	h := NewHeat(someModel, []int{0, 4, 3})
	h.Tokens = 12345
	h.Recent[1] = []float64{1, 0, 2.5, 0.125}
	h.Long[1] = []float64{100, 7, 30.125, 0}
	h.Long[2] = []float64{1, 2, 3}
	return h
}

func TestHeatFile(t *testing.T) {
	h := testHeat()
	b, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(b) {
		t.Fatalf("no JSON: %s", b)
	}
	got, err := DecodeHeat(b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := got.Encode()
	if err != nil || !bytes.Equal(b, again) {
		t.Errorf("not the same again (%v):\n%s\n%s", err, b, again)
	}
	if got.Model != someModel || got.Tokens != 12345 || got.Recent[1][2] != 2.5 || got.Long[2][2] != 3 {
		t.Errorf("read back as %+v", got)
	}
	// Cut or changed anywhere, it is refused and never panics. White space is no content.
	for i := range b {
		if _, err := DecodeHeat(b[:i]); err == nil && i < len(b)-1 {
			t.Fatalf("cut to %d of %d bytes and accepted", i, len(b))
		}
		for _, x := range []byte{1, 4, 0x20} {
			c := bytes.Clone(b)
			c[i] ^= x
			g, err := DecodeHeat(c)
			if err != nil {
				continue
			}
			if e, _ := g.Encode(); !bytes.Equal(e, b) {
				t.Fatalf("byte %d (%q) changed to %q and accepted as something else:\n%s", i, b[i], c[i], e)
			}
		}
	}
	for _, x := range []struct{ from, to, want string }{
		{`"version":1`, `"version":2`, "version 2, want 1"},
		{`terrace heat`, `other`, `format "other"`},
		{`[256,8192]`, `[256,4096]`, "4096"},
		{`"tokens":12345`, `"tokens":12346`, "damaged"},
	} {
		if _, err := DecodeHeat(bytes.Replace(b, []byte(x.from), []byte(x.to), 1)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.to, err, x.want)
		}
	}
	// What is well made but cannot be.
	for _, bad := range []func(h *Heat){
		func(h *Heat) { h.Long[1][0] = -1 },
		func(h *Heat) { h.Recent[1][0] = 1e13 },
		func(h *Heat) { h.Tokens = -1 },
		func(h *Heat) { h.Recent[1] = h.Recent[1][:3]; h.Long[1] = h.Long[1][:3]; h.Long[1][2] = -2 },
	} {
		h := testHeat()
		bad(h)
		b, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeHeat(b); err == nil {
			t.Errorf("accepted: %s", b)
		}
	}
}

func TestHeatFits(t *testing.T) {
	for _, x := range []struct {
		change func(m *HeatModel)
		sizes  []int
		want   []string
	}{
		{func(*HeatModel) {}, []int{0, 4, 3}, nil},
		{func(m *HeatModel) { m.Fingerprint = "other" }, []int{0, 4, 3}, nil},
		{func(m *HeatModel) { m.Fingerprint, m.Name = "other", "tiny-moe" }, []int{0, 4, 3}, nil},
		{func(m *HeatModel) { m.Fingerprint, m.Name, m.Base = "other", "Finely Quantised", "Tiny-MoE" }, []int{0, 4, 3}, nil},
		{func(m *HeatModel) { m.Fingerprint, m.Name = "other", "Huge MoE" }, []int{0, 4, 3}, []string{"Huge MoE", "Tiny MoE"}},
		{func(m *HeatModel) { m.Fingerprint, m.Name = "other", "" }, []int{0, 4, 3}, []string{`""`, "Tiny MoE"}},
		{func(m *HeatModel) { m.Arch = "llama" }, []int{0, 4, 3}, []string{"qwen3moe", "llama"}},
		{func(m *HeatModel) { m.TopK = 8 }, []int{0, 4, 3}, []string{"2 experts", "8"}},
		{func(*HeatModel) {}, []int{0, 4}, []string{"3 layers", "2"}},
		{func(*HeatModel) {}, []int{0, 4, 5}, []string{"3 experts", "5"}},
	} {
		m := someModel
		x.change(&m)
		err := testHeat().Fits(m, x.sizes)
		if x.want == nil {
			if err != nil {
				t.Errorf("%+v: %v", m, err)
			}
			continue
		}
		if !errors.Is(err, ErrOtherModel) {
			t.Errorf("%+v %v: %v, want a refusal", m, x.sizes, err)
			continue
		}
		for _, w := range x.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v, want %q in it", m, err, w)
			}
		}
	}
}

// TestHeatRates: a layer's rates sum up to the experts a token uses; nothing known is nothing hot.
func TestHeatRates(t *testing.T) {
	h := testHeat()
	h.Recent[2] = []float64{0, 0, 1}
	r := h.Rates()
	for l, want := range []float64{0, 2, 2} {
		var sum float64
		for _, x := range r[l] {
			sum += x
		}
		if math.Abs(sum-want) > 1e-12 {
			t.Errorf("layer %d: %g experts a token, want %g", l, sum, want)
		}
	}
	if !(r[2][2] > r[2][1] && r[2][1] > r[2][0]) || !(r[1][2] > r[1][1]) {
		t.Errorf("rates %v", r)
	}
	for _, l := range NewHeat(someModel, []int{3}).Rates() {
		for _, x := range l {
			if x != 0 {
				t.Errorf("nothing learned and a rate of %g", x)
			}
		}
	}
}
