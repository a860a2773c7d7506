// Package cpu is the CPU backend: the operations of compute carried out by kernels on a pool of workers, and the exact
// mode with float32 activations that other paths are measured against.
//
// It holds no arithmetic of its own (kernels does) and does not know models, files or caches of experts.
//
// An operation runs when it is recorded, except that matrix products which do not depend on each other and the experts
// of a layer wait for one another, because one large parallel region costs less than several small ones. How work is cut
// never shows in a result: each output element is computed by one worker in the order that kernels fixes.
package cpu

import (
	"fmt"
	"math"
	"runtime"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
)

// Options configure a Backend. The zero value is usable.
type Options struct {
	// Threads is the number of goroutines that compute, the caller's included; 0: as many as GOMAXPROCS.
	Threads int
	// Exact keeps activations float32 for every weight type: quantised rows are decoded instead.
	Exact bool
	// Alloc and Free provide the memory of KV caches, in bytes, zeroed and aligned to 64 (both or none; none: the Go
	// heap).
	Alloc func(n int) ([]byte, error)
	Free  func(b []byte) error
	// Release gives back the memory of b, whole pages within a block from Alloc, which may be touched again and is zero then; nil
	// where that cannot be done.
	Release func(b []byte) error
}

// maxThreads bounds Options.Threads: far above any machine, low enough to catch a mistake.
const maxThreads = 1024

// Backend implements compute.Backend. It and what it makes serve one goroutine at a time.
type Backend struct {
	opts Options
	pool *pool
	enc  encoder
}

var _ compute.Backend = (*Backend)(nil)

// New starts the workers of a backend; Close ends them.
func New(o Options) (*Backend, error) {
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Threads < 0 || o.Threads > maxThreads {
		return nil, fmt.Errorf("cpu: %d threads, want 1 to %d", o.Threads, maxThreads)
	}
	if (o.Alloc == nil) != (o.Free == nil) {
		return nil, fmt.Errorf("cpu: Alloc and Free must be given together")
	}
	if o.Alloc == nil {
		o.Alloc = func(n int) ([]byte, error) { return make([]byte, n), nil }
		o.Free = func([]byte) error { return nil }
	}
	b := &Backend{opts: o, pool: newPool(o.Threads)}
	b.enc.init(b)
	return b, nil
}

// Name says which vector code runs and on how many threads.
func (b *Backend) Name() string {
	mode := ""
	if b.opts.Exact {
		mode = ", exact"
	}
	return fmt.Sprintf("cpu (%s, %d threads%s)", kernels.Features(), b.opts.Threads, mode)
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
		panic(fmt.Sprintf("cpu: no arithmetic for weights of type %s", t))
	}
	if b.opts.Exact {
		return kernels.ActF32
	}
	return k
}

// Encoder implements compute.Backend.
func (b *Backend) Encoder() compute.Encoder { return &b.enc }

// Close ends the workers. The backend must not be used afterwards; KV caches may still be freed.
func (b *Backend) Close() error {
	b.pool.close()
	return nil
}

// weight implements compute.Weight.
type weight struct {
	m      compute.Matrix
	vec    []float32 // a vector's elements, for the norms
	turned []float32 // a convolution's taps, see taps
}

func (w *weight) Type() gguf.Type { return w.m.Type }
func (w *weight) In() int         { return w.m.In }
func (w *weight) Out() int        { return w.m.Out }

// NewWeight implements compute.Backend. It fails for a type without arithmetic, for rows that are no whole number of
// blocks and for data of another length than the shape asks for.
func (b *Backend) NewWeight(m compute.Matrix) (compute.Weight, error) {
	if err := b.check(&m); err != nil {
		return nil, err
	}
	w := &weight{m: m}
	if m.Out == 1 {
		w.vec = make([]float32, m.In)
		kernels.DecodeRow(m.Type, w.vec, m.Data)
	}
	return w, nil
}

// page is the unit in which memory can be given back.
const page = 4096

// trimmed gives back the whole pages of b from byte n on; b begins anywhere in a block that begins at a page.
func (b *Backend) trimmed(block []byte, from, to int) bool {
	lo, hi := (from+page-1)/page*page, to/page*page
	return lo >= hi || b.opts.Release(block[lo:hi]) == nil
}

// check says what is wrong with a matrix.
func (b *Backend) check(m *compute.Matrix) error {
	if !b.Supports(m.Type) {
		return fmt.Errorf("cpu: no arithmetic for weights of type %s", m.Type)
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("cpu: %w", err)
	}
	return nil
}

// tensor implements compute.Tensor. It remembers its rows in each activation format until it is written again, so that
// all products with one input quantise it once. Memory is taken when rows are first asked for.
type tensor struct {
	data       []float32 // at least rows*cols
	rows, room int
	cols       int
	of         *tensor // of a view: whose rows it has
	acts       [kernels.Act256 + 1]kernels.Act
	valid      [kernels.Act256 + 1]bool
}

// NewTensor implements compute.Backend.
func (b *Backend) NewTensor(rows, cols int) compute.Tensor {
	if rows < 1 || cols < 1 || rows > math.MaxInt/4/cols {
		panic(fmt.Sprintf("cpu: a tensor of %d rows of %d elements", rows, cols))
	}
	return &tensor{room: rows, cols: cols}
}

func (t *tensor) Rows() int { return t.rows }
func (t *tensor) Cols() int { return t.cols }

// SetRows implements compute.Tensor. Rows already there keep their values.
func (t *tensor) SetRows(n int) {
	if t.of != nil {
		panic("cpu: SetRows on a view")
	}
	if n < 0 || n > t.room {
		panic(fmt.Sprintf("cpu: %d rows in a tensor with room for %d", n, t.room))
	}
	if n*t.cols > len(t.data) {
		d := make([]float32, min(max(n, 2*t.rows), t.room)*t.cols)
		copy(d, t.data)
		t.data = d
	}
	if n != t.rows {
		t.rows = n
		t.touch()
	}
}

// touch forgets the quantised forms: the values are about to change.
func (t *tensor) touch() {
	t.valid = [kernels.Act256 + 1]bool{}
	if t.of != nil {
		t.of.valid = t.valid
	}
}

// NewView implements compute.Backend.
func (b *Backend) NewView() compute.View { return &tensor{} }

// Set implements compute.View.
func (t *tensor) Set(x compute.Tensor, first, rows int) {
	of := own(x)
	if t.room > 0 || of.of != nil {
		panic("cpu: a view of a view, or a tensor of its own made one")
	}
	if first < 0 || rows < 0 || first+rows > of.rows {
		panic(fmt.Sprintf("cpu: a view of rows %d to %d of %d", first, first+rows, of.rows))
	}
	*t = tensor{data: of.data[first*of.cols : (first+rows)*of.cols], rows: rows, cols: of.cols, of: of}
}

// row is row i.
func (t *tensor) row(i int) []float32 { return t.data[i*t.cols : (i+1)*t.cols] }

// all is every element in use.
func (t *tensor) all() []float32 { return t.data[:t.rows*t.cols] }

// own turns the seam's tensor into this backend's.
func own(t compute.Tensor) *tensor {
	x, ok := t.(*tensor)
	if !ok {
		panic(fmt.Sprintf("cpu: a tensor of another backend (%T)", t))
	}
	return x
}

// ownWeight turns the seam's weight into this backend's.
func ownWeight(w compute.Weight) *weight {
	x, ok := w.(*weight)
	if !ok {
		panic(fmt.Sprintf("cpu: a weight of another backend (%T)", w))
	}
	return x
}

// copyRow sets row i of dst to row j of src; both have one format and width.
func copyRow(dst *kernels.Act, i int, src *kernels.Act, j int) {
	if src.Kind == kernels.ActF32 {
		copyPart(dst.F, i, src.F, j, src.N)
		return
	}
	copyPart(dst.Q, i, src.Q, j, src.N)
	copyPart(dst.D, i, src.D, j, len(src.D)/src.Rows)
	copyPart(dst.Sums, i, src.Sums, j, len(src.Sums)/src.Rows)
}

func copyPart[T any](dst []T, i int, src []T, j, n int) {
	copy(dst[i*n:(i+1)*n], src[j*n:(j+1)*n])
}

// rowOf sets v to a view of row j of a.
func rowOf(v, a *kernels.Act, j int) {
	v.Kind, v.Rows, v.N = a.Kind, 1, a.N
	if a.Kind == kernels.ActF32 {
		v.F = part(a.F, j, a.N)
		return
	}
	v.Q = part(a.Q, j, a.N)
	v.D = part(a.D, j, len(a.D)/a.Rows)
	v.Sums = part(a.Sums, j, len(a.Sums)/a.Rows)
}

func part[T any](s []T, j, n int) []T { return s[j*n : (j+1)*n : (j+1)*n] }

// Floats implements compute.HostRows.
func (b *Backend) Floats(t compute.Tensor) []float32 {
	x := own(t)
	x.touch()
	return x.all()
}
