package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
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

func TestSelectTop(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var s Scratch
	for round := range 400 {
		n := rng.IntN(3000) + 1
		k := rng.IntN(n + 3)
		scores := make([]float32, n)
		for i := range scores {
			switch round % 4 {
			case 0:
				scores[i] = float32(math.Abs(rng.NormFloat64()))
			case 1:
				scores[i] = float32(rng.IntN(5)) // many ties
			case 2:
				scores[i] = 0
			default:
				scores[i] = math.Float32frombits(rng.Uint32N(0x7f800001)) // every magnitude, and an infinity now and then
			}
		}
		order := make([]int32, n)
		for i := range order {
			order[i] = int32(i)
		}
		sort.SliceStable(order, func(a, b int) bool { return scores[order[a]] > scores[order[b]] })
		want := slices.Clone(order[:min(k, n)])
		slices.Sort(want)
		got := SelectTop(nil, scores, k, &s)
		if !slices.Equal(got, want) {
			t.Fatalf("round %d: the best %d of %d are %v, want %v", round, k, n, got, want)
		}
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
	picks := make([]int32, 0, n)
	runs := make([]Run, 0, n)
	if a := testing.AllocsPerRun(20, func() {
		IndexScores(scores, c.q, heads, compute.KVF16, c.k, c.kstride, &s)
		picks, runs = SelectTop(picks[:0], scores, 100, &s), runs[:0]
		for _, p := range picks {
			runs = append(runs, Run{p, 1})
		}
		AttendRuns(out, c.q, heads, KVRun{c.kt, c.k, c.kstride}, KVRun{c.vt, c.v, c.vstride}, runs, 1, &s)
	}); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
