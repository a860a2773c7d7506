//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"unsafe"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
	"terrace/quant"
)

// Backend implements compute.Backend on one device. It and what it makes serve one goroutine at a time.
type Backend struct {
	opts Options
	dev  *device
	log  *slog.Logger
	mem  heap
	pipe pipelines
	enc  encoder
	side side
	tier tier
	grid region // the codebooks
	cols int    // columns that a product of several takes at a time

	unified bool // device and host have one memory
	imports imports
}

var _ compute.Backend = (*Backend)(nil)

const defaultStaging = 32 << 20

// New opens a device. It answers ErrUnavailable where none can be used.
func New(o Options) (*Backend, error) {
	cache := loadCache(o.CacheFile, o.Log)
	d, err := openDevice(&o, cache)
	if err != nil {
		return nil, err
	}
	b := &Backend{opts: o, dev: d, log: o.Log}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if err := b.init(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Backend) init() error {
	fast, write, read, err := b.dev.c.memoryTypes()
	if err != nil {
		return err
	}
	f := &b.dev.c.f
	most := uint64(f.max_allocation)
	if n := uint64(f.max_buffer); n > 0 {
		most = min(most, n)
	}
	b.unified = b.dev.c.info.Kind == Integrated || b.dev.c.info.Kind == Software && b.opts.Memory == 0
	b.imports = imports{b: b, list: map[uintptr]*hostBlock{}, weights: map[*block]struct{}{}}
	b.mem = heap{d: b.dev, typ: fast, most: most &^ (align - 1), limit: uint64(b.opts.Memory)}
	b.pipe = pipelines{d: b.dev, made: map[pipeKey]uint64{}}
	b.tier = tier{b: b, slots: map[uint64]*slot{}, layers: map[uint64]*layerSlots{}, mem: heap{d: b.dev, typ: fast, most: b.mem.most}}
	b.mem.gone = b.imports.gone
	b.mem.beside = func() uint64 {
		b.tier.mu.Lock()
		defer b.tier.mu.Unlock()
		return b.tier.mem.held
	}
	b.cols = 8
	if b.dev.c.info.Kind == Software {
		b.cols = 4 // half the code, of which compiling takes most of the time there
	}
	staging := b.opts.staging
	if staging == 0 {
		staging = defaultStaging
	}
	if err := b.enc.init(b, write, read, staging); err != nil {
		return err
	}
	if err := b.side.init(b, read); err != nil {
		return err
	}
	if err := b.probe(); err != nil {
		return err
	}
	return b.uploadGrids()
}

// probe finds out whether the device's fma is fused.
func (b *Backend) probe() error {
	// Products that round up or down unless they are added exactly.
	x := []float32{1 + 0x1p-12, 1 + 0x1p-12, -1 - 0x1p-11, 1 + 0x1p-23, 1 - 0x1p-23, -1, 3, 5, 7}
	want := []float32{0x1p-24, -0x1p-46, 22}
	e := &b.enc
	in, out := e.tensor(1, len(x)), e.tensor(1, len(want))
	in.SetRows(1)
	out.SetRows(1)
	e.write(in, unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)))
	e.in(&in.track)
	e.out(&out.track)
	e.begin(shProbe, [4]uint32{})
	e.u64(in.addr(), out.addr())
	e.u32(uint32(len(want)))
	e.dispatch(1, 1, 1)
	got := make([]float32, len(want))
	e.Read(got, out)
	if err := e.Submit(); err != nil {
		return err
	}
	fused := true
	for i := range want {
		fused = fused && got[i] == want[i]
	}
	n := &b.pipe.numerics
	n.Double = b.dev.c.f.float64 != 0
	n.Emulated = !fused && n.Double
	n.Fused = fused || n.Emulated
	n.Subnormals = b.dev.c.f.denorms != 0
	return nil
}

// uploadGrids puts the codebooks where units.glsl expects them.
func (b *Backend) uploadGrids() error {
	var t []byte
	for _, r := range quant.Grid256() {
		t = append(t, r[:]...)
	}
	for _, r := range quant.Grid512() {
		t = append(t, r[:]...)
	}
	for _, r := range quant.Grid1024() {
		t = append(t, r[:]...)
	}
	for _, r := range quant.Grid1x2048() {
		for _, v := range r {
			t = append(t, byte(v))
		}
	}
	for _, r := range quant.Grid3x256() {
		t = append(t, r[:]...)
	}
	for _, r := range quant.Grid3x512() {
		t = append(t, r[:]...)
	}
	var err error
	if b.grid, err = b.mem.take(uint64(len(t))); err != nil {
		return err
	}
	b.enc.upload(b.grid, 0, t, &track{})
	return b.enc.Submit()
}

// Name says which device computes.
func (b *Backend) Name() string {
	mode := ""
	if b.opts.Exact {
		mode = ", exact"
	}
	return fmt.Sprintf("vulkan (%s%s)", b.dev.c.info.Name, mode)
}

// Info describes the device.
func (b *Backend) Info() DeviceInfo { return b.dev.c.info }

// Numerics says which results have the CPU's bits.
func (b *Backend) Numerics() Numerics { return b.pipe.numerics }

// Stats counts what was done.
func (b *Backend) Stats() Stats {
	s := b.enc.stats
	if b.dev != nil {
		s.Replayed = int64(C.tv_replayed(b.dev.d))
	}
	s.Memory, s.Pipelines = int64(b.mem.held), len(b.pipe.made)
	return s
}

// Supports implements compute.Backend.
func (b *Backend) Supports(t gguf.Type) bool {
	_, ok := kernels.KindOf(t)
	return ok
}

// kind is the activation format that weights of type t are multiplied with.
func (b *Backend) kind(t gguf.Type) kernels.ActKind {
	k, ok := kernels.KindOf(t)
	if !ok {
		panic(fmt.Sprintf("vulkan: no arithmetic for weights of type %s", t))
	}
	if b.opts.Exact {
		return kernels.ActF32
	}
	return k
}

// Encoder implements compute.Backend.
func (b *Backend) Encoder() compute.Encoder { return &b.enc }

// Close gives the device back. Nothing that the backend made may be used afterwards; caches may still be freed.
func (b *Backend) Close() error {
	if b.dev == nil {
		return nil
	}
	err := b.enc.settle()
	if b.opts.CacheFile != "" && len(b.pipe.made) > 0 {
		if serr := b.pipe.save(b.opts.CacheFile); serr != nil {
			b.log.Warn("the pipeline cache was not saved", "file", b.opts.CacheFile, "error", serr)
		}
	}
	b.side.close()
	b.enc.close()
	b.tier.close()
	b.imports.close()
	b.mem.close()
	b.dev.close()
	b.dev = nil
	if errors.Is(err, ErrLost) {
		err = nil // whoever used it was told
	}
	return err
}

// weight implements compute.Weight.
type weight struct {
	m       compute.Matrix // with its bytes in host memory
	parts   *[]part        // apart from the weight, so that they outlive it
	vec     region         // a vector's elements as float32
	decoded region         // all elements as float32, made when asked for
	track   track
}

// part is some rows of a weight, in one piece of memory.
type part struct {
	r           region
	first, rows int
}

func (w *weight) Type() gguf.Type { return w.m.Type }
func (w *weight) In() int         { return w.m.In }
func (w *weight) Out() int        { return w.m.Out }

// row is where row i lies.
func (w *weight) row(i int) uint64 {
	for _, p := range *w.parts {
		if i < p.first+p.rows {
			return p.r.addr() + uint64(i-p.first)*uint64(w.m.Type.RowBytes(w.m.In))
		}
	}
	panic(fmt.Sprintf("vulkan: row %d of %d", i, w.m.Out))
}

// NewWeight implements compute.Backend: it copies the weight to the device, in several pieces of whole rows where it is larger
// than an allocation may be. It fails for a type without arithmetic, for rows that are no whole number of blocks, for data of
// another length than the shape asks for, and where memory is refused.
func (b *Backend) NewWeight(m compute.Matrix) (compute.Weight, error) {
	if err := b.check(&m); err != nil {
		return nil, err
	}
	rb := m.Type.RowBytes(m.In)
	most := int(b.mem.most) / rb
	if most == 0 {
		return nil, fmt.Errorf("vulkan: rows of %d bytes, the device gives %d in one piece", rb, b.mem.most)
	}
	var parts []part
	w := &weight{m: m, parts: &parts}
	b.enc.drain()
	fail := func(err error) (compute.Weight, error) {
		for _, p := range parts {
			b.enc.bin.drop1(p.r)
		}
		return nil, err
	}
	from := 0
	if b.unified && m.Out > 1 {
		if r, ok := b.imports.weight(m.Data); ok {
			parts, from = append(parts, part{r, 0, m.Out}), m.Out
		}
	}
	for at := from; at < m.Out; at += most {
		n := min(most, m.Out-at)
		r, err := b.take(uint64(n * rb))
		if err != nil {
			return fail(err)
		}
		parts = append(parts, part{r, at, n})
		b.enc.upload(r, 0, m.Data[at*rb:(at+n)*rb], &w.track)
	}
	if m.Out == 1 {
		if m.Type == gguf.F32 {
			w.vec = parts[0].r
		} else {
			x := make([]float32, m.In)
			kernels.DecodeRow(m.Type, x, m.Data)
			var err error
			if w.vec, err = b.floats(x, &w.track); err != nil {
				return fail(err)
			}
			parts = append(parts, part{w.vec, 1, 0})
		}
	}
	if err := b.enc.take(); err != nil {
		return fail(err)
	}
	runtime.AddCleanup(w, b.enc.bin.drop, w.parts)
	return w, nil
}

// floats puts x into device memory.
func (b *Backend) floats(x []float32, by *track) (region, error) {
	r, err := b.take(uint64(4 * len(x)))
	if err == nil {
		b.enc.upload(r, 0, unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x)), by)
	}
	return r, err
}

// all is every element of w as float32, row by row. The memory stays with the backend.
func (b *Backend) all(w *weight) (uint64, error) {
	if w.decoded.b == nil {
		x, rb := make([]float32, w.m.In*w.m.Out), w.m.Type.RowBytes(w.m.In)
		for i := range w.m.Out {
			kernels.DecodeRow(w.m.Type, x[i*w.m.In:(i+1)*w.m.In], w.m.Data[i*rb:(i+1)*rb])
		}
		var err error
		if w.decoded, err = b.floats(x, &w.track); err != nil {
			return 0, err
		}
		*w.parts = append(*w.parts, part{w.decoded, w.m.Out, 0})
	}
	return w.decoded.addr(), nil
}

// check says what is wrong with a matrix.
func (b *Backend) check(m *compute.Matrix) error {
	if !b.Supports(m.Type) {
		return fmt.Errorf("vulkan: no arithmetic for weights of type %s", m.Type)
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("vulkan: %w", err)
	}
	return nil
}

// tensor implements compute.Tensor. It remembers its rows in each int8 format until it is written again. Memory is taken when
// rows are first asked for.
type tensor struct {
	e          *encoder
	mem        *store
	rows, room int
	cols       int
	held       int // rows there is memory for
	track      track
	acts       [kernels.Act256 + 1]quantised
	wants      [kernels.Act256 + 1]bool // forms that somebody asked for
	version    uint64                   // rises when rows are written
	of         *tensor                  // of a view: whose rows it has
	off        uint64                   // of a view: bytes before its first row
}

// store is memory that is given back when nobody knows it any longer.
type store struct{ region }

// NewTensor implements compute.Backend.
func (b *Backend) NewTensor(rows, cols int) compute.Tensor { return b.enc.tensor(rows, cols) }

func (e *encoder) tensor(rows, cols int) *tensor {
	if rows < 1 || cols < 1 || rows > math.MaxInt/4/cols {
		panic(fmt.Sprintf("vulkan: a tensor of %d rows of %d elements", rows, cols))
	}
	return &tensor{e: e, room: rows, cols: cols, mem: &store{}}
}

func (t *tensor) Rows() int { return t.rows }
func (t *tensor) Cols() int { return t.cols }

// SetRows implements compute.Tensor. Rows already there keep their values. Where memory is refused, the next Submit fails.
func (t *tensor) SetRows(n int) {
	if t.of != nil {
		panic("vulkan: SetRows on a view")
	}
	if n < 0 || n > t.room {
		panic(fmt.Sprintf("vulkan: %d rows in a tensor with room for %d", n, t.room))
	}
	if n != t.rows && t.e.waiting.uses(t) {
		t.e.drain() // it is about the rows that t has now
	}
	if n > t.held {
		held := min(max(n, 2*t.rows), t.room)
		mem := t.e.store(uint64(held) * uint64(t.cols) * 4)
		if mem == nil {
			mem, held = &store{}, 0
		} else if t.held > 0 && t.rows > 0 {
			t.e.in(&t.track)
			t.e.copy(mem.region, 0, t.region(), 0, uint64(t.rows)*uint64(t.cols)*4)
		}
		t.e.keep(t.mem)
		t.mem, t.held = mem, held
	}
	if n != t.rows {
		t.rows = n
		t.touch()
	}
}

func (t *tensor) addr() uint64 { return t.mem.addr() + t.off }

// region is the memory from the first row on.
func (t *tensor) region() region {
	r := t.mem.region
	r.at += t.off
	return r
}

// root is the tensor whose rows these are.
func (t *tensor) root() *tensor {
	if t.of != nil {
		return t.of
	}
	return t
}

// NewView implements compute.Backend.
func (b *Backend) NewView() compute.View { return &tensor{e: &b.enc} }

// Set implements compute.View.
func (t *tensor) Set(x compute.Tensor, first, rows int) {
	of := own(x)
	if t.room > 0 || of.of != nil {
		panic("vulkan: a view of a view, or a tensor of its own made one")
	}
	if first < 0 || rows < 0 || first+rows > of.rows {
		panic(fmt.Sprintf("vulkan: a view of rows %d to %d of %d", first, first+rows, of.rows))
	}
	if q := &t.e.experts; q.parts == t || q.x == t || t.e.waiting.uses(t) {
		t.e.drain() // they keep the rows that it has now
	}
	t.mem, t.off, t.rows, t.cols, t.held, t.of = of.mem, uint64(first)*uint64(of.cols)*4, rows, of.cols, rows, of
	t.track.of = &of.track
	for i := range t.acts {
		t.acts[i].valid = false
	}
}

// at is the address of row i.
func (t *tensor) at(i int) uint64 { return t.addr() + uint64(i)*uint64(t.cols)*4 }

// touch forgets the quantised forms: the values are about to change.
func (t *tensor) touch() { t.root().version++ }

// own turns the seam's tensor into this backend's.
func own(t compute.Tensor) *tensor {
	x, ok := t.(*tensor)
	if !ok {
		panic(fmt.Sprintf("vulkan: a tensor of another backend (%T)", t))
	}
	if x.rows > x.held {
		x.e.fail(fmt.Errorf("vulkan: a tensor of %d rows has memory for %d", x.rows, x.held))
	}
	return x
}

// ownWeight turns the seam's weight into this backend's.
func ownWeight(w compute.Weight) *weight {
	x, ok := w.(*weight)
	if !ok {
		panic(fmt.Sprintf("vulkan: a weight of another backend (%T)", w))
	}
	return x
}

// ownVector is a vector weight of n elements.
func ownVector(w compute.Weight, n int) *weight {
	x := ownWeight(w)
	if x.m.Out != 1 || x.m.In != n {
		panic(fmt.Sprintf("vulkan: a vector of %d x %d for %d elements", w.Out(), w.In(), n))
	}
	return x
}

// vector is the address of the elements of a vector weight of n elements, which the next command reads.
func (e *encoder) vector(w compute.Weight, n int) uint64 {
	x := ownVector(w, n)
	e.in(&x.track)
	return x.vec.addr()
}
