//go:build cgo && !novulkan

package vulkan

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

var (
	speedFlag  = flag.String("speed", "", "measure shaders on memory of this many bytes and write the figures to this `FILE`")
	memoryFlag = flag.Int64("speed-memory", 3<<30, "bytes of weights that are gone through")
	shapesFlag = flag.Bool("speed-shapes", false, "measure other shapes of workgroups too")
	onlyFlag   = flag.String("speed-only", "", "measure only figures whose name, type and shape match this expression; the read bandwidth always")
)

// figure is one line of what TestSpeed measures.
type figure struct {
	What     string  `json:"what"`
	Type     string  `json:"type,omitempty"`
	Shape    string  `json:"shape,omitempty"`
	Barriers bool    `json:"barriers"`
	Count    int     `json:"dispatches"`
	Micros   float64 `json:"us_each"`
	GBs      float64 `json:"gb_s"`
	Fraction float64 `json:"of_read_bandwidth"`
	TOPS     float64 `json:"tops,omitempty"` // 10^12 multiplications and additions a second
}

// meter measures on weights that lie one after the other in device memory.
type meter struct {
	t    *testing.T
	b    *Backend
	mem  []region
	read float64
	only *regexp.Regexp // figures that are wanted; nil: all
	out  []figure
}

// at is where the i-th run of n bytes lies, going through all memory again and again.
func (m *meter) at(i int, n uint64) uint64 {
	n = (n + align - 1) &^ (align - 1)
	per := int(m.mem[0].size / n)
	i %= per * len(m.mem)
	return m.mem[i/per].addr() + uint64(i%per)*n
}

// warm is how long a figure's commands run before they count: a device that was idle while a shader was compiled takes a while to
// raise its clock again.
const warm = 400 * time.Millisecond

// run times count commands of bytes each, best of five rounds, and notes the figure.
func (m *meter) run(f figure, bytes uint64, ops float64, record func(i int)) {
	if m.only != nil && m.read > 0 && !m.only.MatchString(f.What+" "+f.Type+" "+f.Shape) {
		return
	}
	e := &m.b.enc
	best := 0.0
	start := time.Time{}
	for round, left := 0, 5; left > 0; round++ {
		e.stamp(0)
		for i := range f.Count {
			record(i + round*f.Count)
			if f.Barriers {
				e.fence()
			}
		}
		e.fence()
		e.stamp(1)
		if err := e.Submit(); err != nil {
			m.t.Fatal(err)
		}
		ns, err := e.nanoseconds(2)
		if err != nil {
			m.t.Fatal(err)
		}
		if start.IsZero() { // the first one compiles
			start = time.Now()
		} else if time.Since(start) > warm {
			left--
			if x := ns[1]; best == 0 || x < best {
				best = x
			}
		}
	}
	f.Micros = best / 1e3 / float64(f.Count)
	f.GBs = float64(bytes) * float64(f.Count) / best
	if ops > 0 {
		f.TOPS = ops * float64(f.Count) / best / 1e3
	}
	if m.read > 0 {
		f.Fraction = f.GBs / m.read
	} else {
		f.Fraction = 1
		m.read = f.GBs
	}
	m.out = append(m.out, f)
	m.t.Logf("%-28s %-6s %-13s barriers %-5t %8.2f us %8.1f GB/s %6.3f %8.1f TOPS", f.What, f.Type, f.Shape, f.Barriers, f.Micros, f.GBs, f.Fraction, f.TOPS)
}

// TestSpeed measures shaders by timestamps, on weights that lie in more memory than a cache holds. It is for a GPU machine.
func TestSpeed(t *testing.T) {
	if *speedFlag == "" {
		t.Skip("-speed FILE measures")
	}
	b := open(t, Options{})
	e := &b.enc
	m := &meter{t: t, b: b}
	if *onlyFlag != "" {
		m.only = regexp.MustCompile(*onlyFlag)
	}
	noise := make([]byte, 16<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	size := uint64(min(*memoryFlag, int64(b.mem.most), 256<<20))
	for n := int64(0); n < *memoryFlag; n += int64(size) {
		g, err := b.mem.take(size)
		if err != nil {
			t.Fatal(err)
		}
		m.mem = append(m.mem, g)
		for at := uint64(0); at < size; at += uint64(len(noise)) {
			e.upload(g, at, noise[:min(uint64(len(noise)), size-at)], &track{})
		}
	}
	if err := e.Submit(); err != nil {
		t.Fatal(err)
	}
	x := e.tensor(512, 16384)
	x.SetRows(512)
	e.write(x, noise[:4*512*4096])
	y := e.tensor(512*8, 16384)
	y.SetRows(512)

	const chunk = 128 << 20
	m.run(figure{What: "read", Count: 100}, min(chunk, size), 0, func(i int) {
		e.begin(shStream, [4]uint32{})
		e.u64(m.at(i, min(chunk, size)), y.addr())
		e.u32(uint32(min(chunk, size) / 16))
		e.dispatch(132*16, 1, 1)
	})
	m.run(figure{What: "empty", Count: 1000}, 0, 0, func(int) { m.empty(y) })
	m.run(figure{What: "empty", Count: 1000, Barriers: true}, 0, 0, func(int) { m.empty(y) })

	types := []gguf.Type{gguf.Q8_0, gguf.Q4_K, gguf.Q6_K, gguf.MXFP4}
	for _, typ := range types {
		shapes := []vecShape{{}}
		if *shapesFlag {
			shapes = append(shapes, vecShape{64, 2, false}, vecShape{64, 4, false}, vecShape{128, 2, false}, vecShape{256, 2, false})
			switch typ {
			case gguf.Q6_K:
				shapes = append(shapes, vecShape{64, 1, false}, vecShape{128, 1, false}, vecShape{32, 4, false})
			case gguf.MXFP4:
				shapes = append(shapes, vecShape{128, 4, false}, vecShape{64, 8, false}, vecShape{32, 1, true}, vecShape{32, 2, true}, vecShape{64, 1, true},
					vecShape{64, 2, true}, vecShape{128, 1, true}, vecShape{128, 2, true}, vecShape{256, 1, true})
			}
		}
		for _, s := range shapes {
			b.opts.shape = s
			name := ""
			if s.threads > 0 {
				name = fmt.Sprintf("%dx%d%s", s.threads, s.rows, map[bool]string{true: " alone"}[s.alone])
			}
			for _, barriers := range []bool{false, true} {
				if barriers && s.threads > 0 {
					continue
				}
				m.vec(figure{What: "14336 x 4096", Type: typ.String(), Shape: name, Count: 120, Barriers: barriers}, typ, 4096, 14336, 1, false, false)
			}
			m.vec(figure{What: "8 experts, gate and up", Type: typ.String(), Shape: name, Count: 144}, typ, 2048, 768, 8, true, false)
			if s.threads == 0 {
				m.vec(figure{What: "8 experts, gate and up", Type: typ.String(), Count: 144, Barriers: true}, typ, 2048, 768, 8, true, false)
			}
			m.vec(figure{What: "8 experts, down, inline", Type: typ.String(), Shape: name, Count: 144}, typ, 768, 2048, 8, false, true)
			if s.threads == 0 {
				m.vec(figure{What: "8 experts, down, inline", Type: typ.String(), Count: 144, Barriers: true}, typ, 768, 2048, 8, false, true)
			}
		}
		b.opts.shape = vecShape{}
	}
	tiles := []tileShape{{-1, 0, false}, {}} // without tiles first
	if *shapesFlag {
		tiles = []tileShape{{-1, 0, false}, {32, 32, false}, {32, 32, true}, {64, 32, false}, {64, 32, true}, {64, 64, false}, {64, 64, true}, {64, 48, false}, {64, 48, true}}
	}
	for _, typ := range types {
		for _, s := range tiles {
			b.opts.tile = s
			name := ""
			switch {
			case s.rows < 0:
				name = "no tiles"
			case s.rows > 0:
				name = fmt.Sprintf("%dx%d", s.rows, s.cols)
				if s.ahead {
					name += " ahead"
				}
			}
			for _, rows := range []int{32, 512} {
				m.mat(figure{What: fmt.Sprintf("4096 x 2048, %d rows", rows), Type: typ.String(), Shape: name, Count: 24}, typ, 2048, 4096, rows, 1)
			}
			m.mat(figure{What: "128 experts, 32 rows each", Type: typ.String(), Shape: name, Count: 6}, typ, 2048, 768, 32, 128)
			m.mat(figure{What: "128 experts, 40 rows each", Type: typ.String(), Shape: name, Count: 6}, typ, 2048, 768, 40, 128)
			m.mat(figure{What: "128 experts, 32 rows, down", Type: typ.String(), Shape: name, Count: 6}, typ, 768, 2048, 32, 128)
		}
		b.opts.tile = tileShape{}
	}
	info := b.Info()
	doc, err := json.MarshalIndent(map[string]any{"check": "shaders", "device": info.String(), "memory": *memoryFlag, "figures": m.out}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*speedFlag, doc, 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *meter) empty(y *tensor) {
	e := &m.b.enc
	e.begin(shStream, [4]uint32{})
	e.u64(y.addr(), y.addr())
	e.u32(0)
	e.dispatch(1, 1, 1)
}

// vec measures products of single rows with so many matrices a dispatch.
func (m *meter) vec(f figure, typ gguf.Type, in, out, jobs int, pair, inline bool) {
	e := &m.b.enc
	x, y := e.temp("speed x", 1, in), e.temp("speed y", jobs, out)
	kind, _ := kernels.KindOf(typ)
	p := product{typ: typ, most: 1, in: in, out: out, stride: typ.RowBytes(in), dst: y.addr(), ld: out, pair: pair, inline: inline}
	if inline {
		p.q = x.addr()
	} else {
		p.q, p.d, p.s, _ = e.act(x, kind)
	}
	if err := e.Submit(); err != nil {
		m.t.Fatal(err)
	}
	n := uint64(out * typ.RowBytes(in))
	per := jobs
	if pair {
		per = 2 * jobs
	}
	m.run(f, n*uint64(per), 0, func(i int) {
		p.jobs = p.jobs[:0]
		for k := range jobs {
			j := job{n: 1, first: uint32(k)}
			if pair {
				j.w, j.w2 = m.at(i*per+2*k, n), m.at(i*per+2*k+1, n)
			} else {
				j.w = m.at(i*per+k, n)
			}
			p.jobs = append(p.jobs, j)
		}
		e.reserve(jobBytes*len(p.jobs), 1)
		e.multiply(&p)
	})
}

// mat measures products of many rows.
func (m *meter) mat(f figure, typ gguf.Type, in, out, rows, jobs int) {
	e := &m.b.enc
	x, y := e.temp("speed rows", rows, in), e.temp("speed results", rows*jobs, out)
	kind, _ := kernels.KindOf(typ)
	p := product{typ: typ, most: rows, in: in, out: out, stride: typ.RowBytes(in), dst: y.addr(), ld: out, act: compute.SiLU}
	p.q, p.d, p.s, _ = e.act(x, kind)
	if err := e.Submit(); err != nil {
		m.t.Fatal(err)
	}
	n := uint64(out * typ.RowBytes(in))
	m.run(f, n*uint64(jobs), 2*float64(in)*float64(out)*float64(rows*jobs), func(i int) {
		p.jobs = slices.Grow(p.jobs[:0], jobs)
		for k := range jobs {
			p.jobs = append(p.jobs, job{n: uint32(rows), first: uint32(k * rows), w: m.at(i*jobs+k, n)})
		}
		e.reserve(jobBytes*len(p.jobs), 1)
		e.multiply(&p)
	})
}
