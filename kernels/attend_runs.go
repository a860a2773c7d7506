package kernels

import (
	"math"

	"terrace/internal/fmath"
)

// Run is neighbouring positions of a cache.
type Run struct{ First, N int32 }

// AttendRuns is AttendHeads over the positions of runs alone, which rise and do not overlap; position i is element i of keys
// and values. Positions that share a block of 64 are one block of the online softmax, blocks without
// any are passed over. So one run of all positions gives the bits of AttendHeads.
func AttendRuns(out, q []float32, heads int, k, v KVRun, runs []Run, scale float32, s *Scratch) {
	if heads < 1 || len(q)%heads != 0 || len(out)%heads != 0 || len(runs) == 0 {
		panicf("kernels: attention of %d heads with %d elements of queries and %d of results over %d runs", heads, len(q), len(out), len(runs))
	}
	end := 0
	for _, r := range runs {
		if int(r.First) < end || r.N < 1 {
			panicf("kernels: attention over %d positions from %d, after those before %d", r.N, r.First, end)
		}
		end = int(r.First) + int(r.N)
	}
	a := Attention{Out: out, Q: q, Heads: heads, K: k, V: v, N: end, Scale: scale}
	a.check()
	s.attn = attention{out: out, q: q, heads: heads, kt: k.Type, vt: v.Type, k: k.Data, v: v.Data, kstride: k.Stride, vstride: v.Stride, n: end, scale: scale}
	s.runs = runs
	current().runs(&s.attn, s)
	s.attn, s.runs = attention{}, nil
}

// piece is a run's part in one block; at counts the positions of the block before it.
type piece struct{ first, n, at int }

// pieces cuts runs into blocks.
type pieces struct {
	list  [attendBlock]piece
	count int // of the current block
	total int // its positions
	run   int // the next run, and how much of it is done
	done  int
}

// next finds the next block; false when there is none.
func (p *pieces) next(runs []Run) bool {
	p.count, p.total = 0, 0
	block := -1
	for p.run < len(runs) {
		r := runs[p.run]
		first := int(r.First) + p.done
		b := first / attendBlock
		if block >= 0 && b != block {
			break
		}
		block = b
		n := min(int(r.N)-p.done, attendBlock-first%attendBlock)
		p.list[p.count] = piece{first, n, p.total}
		p.count++
		p.total += n
		if p.done += n; p.done == int(r.N) {
			p.run, p.done = p.run+1, 0
		}
	}
	return p.count > 0
}

func attendRunsGeneric(m *attention, s *Scratch) {
	kd, vd := len(m.q)/m.heads, len(m.out)/m.heads
	s.scores = grow(s.scores, attendBlock)
	s.row = grow(s.row, max(kd, vd))
	c := &s.pieces
	for h := range m.heads {
		out, q := m.out[h*vd:(h+1)*vd], m.q[h*kd:(h+1)*kd]
		clear(out)
		var f fold
		for *c = (pieces{}); c.next(s.runs); {
			key, top := s.row[:kd], float32(math.Inf(-1))
			p := s.scores[:c.total]
			for _, x := range c.list[:c.count] {
				for j := range x.n {
					widenKV(m.kt, key, m.k[(x.first+j)*m.kstride:])
					y := float32(dotGeneric(key, q) * m.scale)
					p[x.at+j] = y
					if y > top {
						top = y
					}
				}
			}
			if factor := f.next(top); factor != 1 {
				for j := range out {
					out[j] = float32(out[j] * factor)
				}
			}
			sum := float32(0)
			for j, y := range p {
				p[j] = fmath.Exp(y - f.max)
				sum += p[j]
			}
			f.sum += sum
			val := s.row[:vd]
			for _, x := range c.list[:c.count] {
				for j := range x.n {
					widenKV(m.vt, val, m.v[(x.first+j)*m.vstride:])
					for e, y := range val {
						out[e] = fmath.Fma(p[x.at+j], y, out[e])
					}
				}
			}
		}
		inv := fmath.Recip(f.sum)
		for j := range out {
			out[j] = float32(out[j] * inv)
		}
	}
}
