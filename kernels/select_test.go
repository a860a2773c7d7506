package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"terrace/compute"
)

// allLevels runs f on the portable level first, then on each of the others.
func allLevels(t *testing.T, f func(t *testing.T)) {
	for l := LevelGeneric; l <= best(); l++ {
		restore := SetLevel(l)
		f(t)
		restore()
		if t.Failed() {
			t.Fatalf("on level %s", l)
		}
	}
}

func TestIndexScores(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct{ heads, dim, n, stride int }{{4, 128, 200, 0}, {8, 16, 67, 0}, {1, 24, 3, 10}, {5, 128, 65, 8}, {4, 128, 1, 0}} {
		for _, kt := range []compute.KVType{compute.KVF16, compute.KVF32} {
			q := patternFloats(rng, "random", c.heads*c.dim)
			keys := patternFloats(rng, "random", c.n*c.dim)
			stride := kt.RowBytes(c.dim) + 4*c.stride
			b := kvBytes(kt, keys, c.dim, stride)
			want := make([]float64, c.n)
			row := make([]float32, c.dim)
			for i := range want {
				widenKV(kt, row, b[i*stride:])
				for h := range c.heads {
					p := 0.0
					for j, v := range row {
						p += float64(v) * float64(q[h*c.dim+j])
					}
					want[i] += max(p, 0)
				}
			}
			var first []float32
			allLevels(t, func(t *testing.T) {
				got := make([]float32, c.n)
				var s Scratch
				IndexScores(got, q, c.heads, kt, b, stride, &s)
				for i := range got {
					if d := math.Abs(float64(got[i]) - want[i]); !(d <= 1e-4*(1+want[i])) || got[i] < 0 {
						t.Fatalf("%+v %s: score %d is %v, want %v", c, kt, i, got[i], want[i])
					}
				}
				if first == nil {
					first = slices.Clone(got)
				}
				compareBits(t, fmt.Sprintf("%+v %s", c, kt), got, first)
				part := make([]float32, 1)
				IndexScores(part, q, c.heads, kt, b[(c.n-1)*stride:], stride, &s)
				compareBits(t, "the last key alone", part, got[c.n-1:])
			})
		}
	}
}

// plainPick selects keep of the cells as std::partial_sort does, step by step as the library's documentation of a heap has
// it: make a heap of the first keep cells, smallest on top, and let each of the others that is larger than the top replace it.
func plainPick(cells []float32, keep int) []int {
	at := make([]int, len(cells))
	for i := range at {
		at[i] = i
	}
	less := func(a, b int) bool { return cells[a] > cells[b] } // the library's comparison: a goes before b
	adjust := func(hole, value int) {
		top, second := hole, hole
		for second < (keep-1)/2 {
			second = 2 * (second + 1)
			if less(at[second], at[second-1]) {
				second--
			}
			at[hole] = at[second]
			hole = second
		}
		if keep&1 == 0 && second == (keep-2)/2 {
			second = 2 * (second + 1)
			at[hole] = at[second-1]
			hole = second - 1
		}
		for parent := (hole - 1) / 2; hole > top && less(at[parent], value); parent = (hole - 1) / 2 {
			at[hole] = at[parent]
			hole = parent
		}
		at[hole] = value
	}
	for parent := (keep - 2) / 2; keep > 1 && parent >= 0; parent-- {
		adjust(parent, at[parent])
	}
	for i := keep; i < len(at); i++ {
		if less(at[i], at[0]) {
			value := at[i]
			at[i] = at[0]
			adjust(0, value)
		}
	}
	out := at[:keep]
	slices.Sort(out)
	return out
}

func TestPicked(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var s Scratch
	cut := 0
	for round := range 3000 {
		b := 2 + rng.IntN(5)
		scores := make([]float32, 1+rng.IntN(300))
		for i := range scores {
			switch round % 4 {
			case 0:
				scores[i] = float32(math.Abs(rng.NormFloat64()))
			case 1:
				scores[i] = float32(rng.IntN(5)) // many ties
			case 2:
				scores[i] = float32(round / 4 % 2)
			default:
				scores[i] = math.Float32frombits(rng.Uint32N(math.Float32bits(1e8))) // every magnitude
			}
		}
		x := Picked{Block: b, Tail: rng.IntN(b)}
		all := len(scores)*b + x.Tail
		x.Keep = x.Tail + 1 + rng.IntN(all-x.Tail+2)
		var cells []float32
		for _, v := range scores {
			for range b {
				cells = append(cells, v)
			}
		}
		for range x.Tail {
			cells = append(cells, 1e9)
		}
		want := plainPick(cells, min(x.Keep, all))
		var got []int
		for _, r := range x.Runs(nil, scores, &s) {
			if n := len(got); n > 0 && got[n-1]+1 == int(r.First) {
				t.Fatalf("round %d: two runs where one would do", round)
			}
			for i := range r.N {
				got = append(got, int(r.First+i))
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("round %d, %+v of %d blocks: %v, want %v", round, x, len(scores), got, want)
		}
		if len(want) < all && (want[len(want)-1]+1)%b != 0 {
			cut++
		}
	}
	if cut < 100 {
		t.Errorf("only %d rounds cut a block", cut)
	}
}

// randomRuns covers about half of n positions, with neighbouring runs among them.
func randomRuns(rng *rand.Rand, n int) []Run {
	var runs []Run
	for at := 0; at < n; {
		m := min(rng.IntN(9)*rng.IntN(12)+1, n-at)
		if rng.IntN(2) == 0 || m == n {
			runs = append(runs, Run{int32(at), int32(m)})
		}
		at += m
	}
	if runs == nil {
		runs = []Run{{int32(n - 1), 1}}
	}
	return runs
}

func TestAttendRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for round := range 60 {
		kd, vd, heads := 16*(1+rng.IntN(4)), 16*(1+rng.IntN(4)), 1+rng.IntN(9)
		kt, vt := anyKV(rng, kd), anyKV(rng, vd)
		n := 1 + rng.IntN(400)
		c := newGroup(rng, 1, kt, vt, kd, vd, 0, n, heads)
		runs := randomRuns(rng, n)
		var first []float32
		allLevels(t, func(t *testing.T) {
			var s Scratch
			got := make([]float32, heads*vd)
			AttendRuns(got, c.q, heads, KVRun{kt, c.k, c.kstride}, KVRun{vt, c.v, c.vstride}, runs, 0.3, &s)
			if first == nil {
				first = slices.Clone(got)
			}
			compareBits(t, fmt.Sprintf("round %d, %s: %d heads of %d and %d, %s, %s, %v of %d positions", round, Features(), heads, kd, vd, kt, vt, runs, n), got, first)
			whole := make([]float32, heads*vd)
			AttendHeads(whole, c.q, heads, kt, vt, c.k, c.v, c.kstride, c.vstride, 0, n, 0.3, &s)
			AttendRuns(got, c.q, heads, KVRun{kt, c.k, c.kstride}, KVRun{vt, c.v, c.vstride}, []Run{{0, int32(n)}}, 0.3, &s)
			compareBits(t, "one run of all", got, whole)
			cut := []Run{{0, int32(n+1) / 2}}
			if n > 1 {
				cut = append(cut, Run{cut[0].N, int32(n) - cut[0].N})
			}
			AttendRuns(got, c.q, heads, KVRun{kt, c.k, c.kstride}, KVRun{vt, c.v, c.vstride}, cut, 0.3, &s)
			compareBits(t, "two runs of all", got, whole)
		})
		// Against float64.
		key, val := make([]float32, kd), make([]float32, vd)
		for h := range heads {
			want, sum, top := make([]float64, vd), 0.0, math.Inf(-1)
			var w []float64
			var at []int
			for _, r := range runs {
				for p := int(r.First); p < int(r.First+r.N); p++ {
					widenKV(kt, key, c.k[p*c.kstride:])
					x := 0.0
					for j, v := range key {
						x += float64(v) * float64(c.q[h*kd+j])
					}
					w, at, top = append(w, x*float64(float32(0.3))), append(at, p), max(top, x*float64(float32(0.3)))
				}
			}
			for i, x := range w {
				e := math.Exp(x - top)
				sum += e
				widenKV(vt, val, c.v[at[i]*c.vstride:])
				for j, v := range val {
					want[j] += e * float64(v)
				}
			}
			for j := range want {
				if d := math.Abs(float64(first[h*vd+j]) - want[j]/sum); !(d <= 1e-4*(1+math.Abs(want[j]/sum))) {
					t.Fatalf("round %d: head %d, element %d is %v, want %v", round, h, j, first[h*vd+j], want[j]/sum)
				}
			}
		}
	}
}

func TestSelectAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	rng := rand.New(rand.NewPCG(11, 12))
	const n, dim, heads = 1000, 128, 4
	c := newGroup(rng, 1, compute.KVF16, compute.KVF16, dim, dim, 0, n, heads)
	var s Scratch
	scores, out := make([]float32, n), make([]float32, heads*dim)
	runs := make([]Run, 0, n)
	if a := testing.AllocsPerRun(20, func() {
		IndexScores(scores, c.q, heads, compute.KVF16, c.k, c.kstride, &s)
		x := Picked{Block: 1, Keep: 100}
		runs = x.Runs(runs[:0], scores, &s)
		AttendRuns(out, c.q, heads, KVRun{c.kt, c.k, c.kstride}, KVRun{c.vt, c.v, c.vstride}, runs, 1, &s)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

func BenchmarkPicked(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s Scratch
	for _, n := range []int{1024, 8192, 65536} {
		scores := make([]float32, n)
		for i := range scores {
			scores[i] = float32(math.Abs(rng.NormFloat64()))
		}
		var runs []Run
		for _, tail := range []int{3, 1} { // whole blocks; one that is cut
			b.Run(fmt.Sprintf("%d blocks, tail %d", n, tail), func(b *testing.B) {
				x := Picked{Block: 4, Tail: tail, Keep: 2051}
				for b.Loop() {
					runs = x.Runs(runs[:0], scores, &s)
				}
			})
		}
	}
}
