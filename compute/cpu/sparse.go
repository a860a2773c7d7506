package cpu

import (
	"fmt"

	"terrace/compute"
	"terrace/kernels"
)

// index implements compute.Index: for each layer first the keys of all blocks, then those of the positions that are not
// the last of their block.
type index struct {
	shape compute.IndexShape
	mem   []byte
	free  func([]byte) error
	b     *Backend
}

// NewIndex implements compute.Backend. It fails where memory is refused.
func (b *Backend) NewIndex(s compute.IndexShape) (compute.Index, error) {
	if s.Layers < 1 || s.Dim < 1 || s.Block < 2 || s.Context < 1 || s.Type != compute.KVF16 && s.Type != compute.KVF32 {
		return nil, fmt.Errorf("cpu: a block index of %d layers, keys of %d elements of %s, blocks of %d, %d positions", s.Layers, s.Dim, s.Type, s.Block, s.Context)
	}
	if n := float64(s.Layers) * float64(s.Context+s.Block) * float64(s.Dim) * 4; n > 1<<46 {
		return nil, fmt.Errorf("cpu: a block index of %d positions needs %.3g bytes, more than can be addressed", s.Context, n)
	}
	mem, err := b.opts.Alloc(int(s.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("cpu: index keys of %d positions (%d bytes): %w", s.Context, s.Bytes(), err)
	}
	return &index{shape: s, mem: mem, free: b.opts.Free, b: b}, nil
}

func (x *index) Shape() *compute.IndexShape { return &x.shape }

// Free gives the memory back; the index must not be used afterwards. A second call does nothing.
func (x *index) Free() {
	if x.mem != nil {
		if err := x.free(x.mem); err != nil {
			panic(fmt.Sprintf("cpu: the memory of index keys was not taken back: %v", err))
		}
		x.mem = nil
	}
}

// CopyPrefix implements compute.Index.
func (x *index) CopyPrefix(from compute.Index, n int) {
	o, ok := from.(*index)
	if !ok || o.shape != x.shape || n < 0 || n > x.shape.Context {
		panic(fmt.Sprintf("cpu: the first %d positions of a block index %+v (%T) into one %+v", n, *from.Shape(), from, x.shape))
	}
	whole := n / x.shape.Block
	for l := range x.shape.Layers {
		a, b := x.blocks(l), x.parts(l)
		copy(a.Data[:whole*a.Stride], o.blocks(l).Data)
		copy(b.Data[:(n-whole)*b.Stride], o.parts(l).Data)
	}
}

// Trim implements compute.Index.
func (x *index) Trim(n int) bool {
	if x.b.opts.Release == nil {
		return false
	}
	row, size := x.shape.Type.RowBytes(x.shape.Dim), x.shape.Block
	blocks := x.shape.Blocks()
	for l := range x.shape.Layers {
		keys, parts := l*blocks*size*row, (l*size+1)*blocks*row
		if !x.b.trimmed(x.mem, keys+n/size*row, parts) || !x.b.trimmed(x.mem, parts+(n-n/size)*row, (l+1)*blocks*size*row) {
			return false
		}
	}
	return true
}

// CopyOut implements compute.Index.
func (x *index) CopyOut(dst []byte, r compute.IndexRange) { copy(dst, x.run(r, len(dst))) }

// CopyIn implements compute.Index.
func (x *index) CopyIn(r compute.IndexRange, src []byte) { copy(x.run(r, len(src)), src) }

// run is the memory of a range of n bytes.
func (x *index) run(r compute.IndexRange, n int) []byte {
	if want := x.shape.RangeBytes(r); want != n {
		panic(fmt.Sprintf("cpu: %d bytes for %d of a block index", n, want))
	}
	keys := x.parts(r.Layer)
	if r.Blocks {
		keys = x.blocks(r.Layer)
	}
	return keys.Data[r.First*keys.Stride : (r.First+r.N)*keys.Stride]
}

// blocks is the run of a layer's block keys.
func (x *index) blocks(layer int) kernels.KVRun {
	n := x.shape.Type.RowBytes(x.shape.Dim)
	from := layer * x.shape.Blocks() * x.shape.Block * n
	return kernels.KVRun{Type: x.shape.Type, Data: x.mem[from : from+x.shape.Blocks()*n], Stride: n}
}

// parts is the run of the keys of a layer's positions but the last of each block, Block-1 a block.
func (x *index) parts(layer int) kernels.KVRun {
	n := x.shape.Type.RowBytes(x.shape.Dim)
	from := (layer*x.shape.Block + 1) * x.shape.Blocks() * n
	return kernels.KVRun{Type: x.shape.Type, Data: x.mem[from : from+x.shape.Blocks()*(x.shape.Block-1)*n], Stride: n}
}

// sparseTask appends to a block index, ranks its blocks for each query and computes attention over the best.
type sparseTask struct {
	e           *encoder
	index       *index
	keys, parts kernels.KVRun
	iq, ik      *tensor
	s           *compute.SparseSpec
	norm        []float32
	pairs       int
	heads       int // of the index
	phase       func(t *sparseTask, worker, item int)
	first       int       // row of the queries that the phase begins with
	rows, most  int       // rows at a time; runs of a row at most
	scores      []float32 // rows x blocks
	runs        []kernels.Run
	count       []int32     // runs of each row
	sums        [][]float32 // by worker: a block's key
}

// scoreBytes bounds the scores that are held at a time, beyond those of one row.
const scoreBytes = 8 << 20

// scorePiece is the number of blocks of a scoring item.
const scorePiece = 1024

func (t *sparseTask) do(worker, item int) { t.phase(t, worker, item) }

// SparseAttention implements compute.Encoder.
func (e *encoder) SparseAttention(dst, q, k, v, indexQ, indexK compute.Tensor, cache compute.KV, s *compute.SparseSpec) {
	e.drain()
	t := &e.sparse
	x, ok := s.Index.(*index)
	if !ok {
		panic(fmt.Sprintf("cpu: a block index of another backend (%T)", s.Index))
	}
	t.index, t.s, t.iq, t.ik = x, s, own(indexQ), own(indexK)
	h := &x.shape
	t.heads = t.iq.cols / h.Dim
	rows := own(q).rows
	pos := s.Pos
	if s.IndexLayer < 0 || s.IndexLayer >= h.Layers || t.heads*h.Dim != t.iq.cols || t.heads == 0 || t.iq.rows != rows || t.ik.cols != h.Dim || t.ik.rows != len(pos) || s.Top < 1 {
		panic(fmt.Sprintf("cpu: SparseAttention of index queries %d x %d for %d queries, keys %d x %d for %d positions, layer %d of an index of %d layers of %d, the best %d blocks",
			t.iq.rows, t.iq.cols, rows, t.ik.rows, t.ik.cols, len(pos), s.IndexLayer, h.Layers, h.Dim, s.Top))
	}
	a := &e.attend
	a.begin(dst, q, cache, &s.AttnSpec)
	if a.window > 0 || a.sinks != nil || len(pos) > 0 && int(pos[len(pos)-1]) >= h.Context {
		panic(fmt.Sprintf("cpu: SparseAttention with a window of %d or with sinks (%t), at %d of %d positions of a block index", a.window, a.sinks != nil, len(pos), h.Context))
	}
	a.k, a.v = own(k), own(v)
	a.store()
	if len(pos) == 0 {
		a.run()
		return
	}
	t.keys, t.parts, t.norm = x.blocks(s.IndexLayer), x.parts(s.IndexLayer), vector(s.Norm, h.Dim)
	t.append()
	if last := int(pos[len(pos)-1]); rows > 0 && (last+1)/h.Block > s.Top { // otherwise everybody sees everything
		t.rank(rows)
		a.picked = t
	}
	a.run()
	t.index, t.s, t.iq, t.ik, t.norm, t.keys, t.parts = nil, nil, nil, nil, nil, kernels.KVRun{}, kernels.KVRun{}
}

// seen is the positions that a query sees.
func (t *sparseTask) seen(row int) []kernels.Run {
	return t.runs[row*t.most:][:t.count[row]]
}

// append stores the keys of the positions, and those of the blocks that they make whole.
func (t *sparseTask) append() {
	pos, b := t.s.Pos, t.index.shape.Block
	first, last := int(pos[0])/b, int(pos[len(pos)-1])/b
	whole := int(pos[len(pos)-1]+1)/b - first
	t.pairs = 0
	if whole > 0 {
		t.pairs = len(t.s.Cos) / whole
	}
	if len(t.s.Sin) != len(t.s.Cos) || t.pairs*whole != len(t.s.Cos) || whole > 0 && (t.pairs == 0 || 2*t.pairs > t.index.shape.Dim) {
		panic(fmt.Sprintf("cpu: %d cosines and %d sines for %d whole blocks of keys of %d", len(t.s.Cos), len(t.s.Sin), whole, t.index.shape.Dim))
	}
	t.each()
	t.phase = (*sparseTask).block
	if len(pos) < 256 {
		for i := range last - first + 1 {
			t.block(0, i)
		}
		return
	}
	t.e.pool.run(t, last-first+1)
}

// each makes room for what belongs to each worker.
func (t *sparseTask) each() {
	if len(t.sums) == 0 {
		t.sums = make([][]float32, t.e.pool.threads)
	}
}

// block stores what belongs to the item-th block that the rows touch.
func (t *sparseTask) block(worker, item int) {
	pos, b, d := t.s.Pos, t.index.shape.Block, t.index.shape.Dim
	n := int(pos[0])/b + item
	for p := max(n*b, int(pos[0])); p < min((n+1)*b, int(pos[0])+len(pos)); p++ {
		x := t.ik.row(p - int(pos[0]))
		if p%b < b-1 {
			put(t.parts, n*(b-1)+p%b, x)
			continue
		}
		t.sums[worker] = room(t.sums[worker], 2*d)
		sum, one := t.sums[worker][:d], t.sums[worker][d:2*d]
		clear(sum)
		for i := range b - 1 {
			at := (n*(b-1) + i) * t.parts.Stride
			kernels.DecodeKV(t.parts.Type, one, t.parts.Data[at:at+t.parts.Stride])
			kernels.Add(sum, one)
		}
		kernels.Add(sum, x)
		kernels.Scale(sum, 1/float32(b))
		kernels.RMSNorm(sum, sum, t.norm, t.s.Eps)
		kernels.RopeNeox(sum, t.s.Cos[item*t.pairs:(item+1)*t.pairs], t.s.Sin[item*t.pairs:(item+1)*t.pairs])
		put(t.keys, n, sum)
	}
}

// rank finds the runs of positions that each of the queries sees, some rows at a time.
func (t *sparseTask) rank(rows int) {
	threads, b := t.e.pool.threads, t.index.shape.Block
	t.most = t.s.Top*b + b // runs may be single positions where many blocks are equal
	if len(t.runs) < rows*t.most {
		t.runs = make([]kernels.Run, rows*t.most)
	}
	if len(t.count) < rows {
		t.count = make([]int32, rows)
	}
	some := max(1, min(rows, 2*threads, scoreBytes/4/t.index.shape.Blocks()))
	if n := some * t.index.shape.Blocks(); len(t.scores) < n { // for the whole context at once: decoding allocates nothing
		t.scores = make([]float32, n)
	}
	for t.first = 0; t.first < rows; t.first += some {
		t.rows = min(some, rows-t.first)
		whole := int(t.pos(t.first+t.rows-1)+1) / b // of the last one
		t.phase = (*sparseTask).score
		t.e.pool.run(t, t.rows*cuts(whole, scorePiece))
		t.phase = (*sparseTask).choose
		t.e.pool.run(t, t.rows)
	}
}

// pos is the position of a query.
func (t *sparseTask) pos(row int) int32 { return t.s.Pos[len(t.s.Pos)-t.iq.rows+row] }

// score computes the scores of a piece of the blocks for one row; the rows of a piece follow each other, so that its keys stay in the
// cache.
func (t *sparseTask) score(worker, item int) {
	r, lo := item%t.rows, item/t.rows*scorePiece
	whole := int(t.pos(t.first+r)+1) / t.index.shape.Block
	if lo >= whole || whole <= t.s.Top {
		return
	}
	hi := min(lo+scorePiece, whole)
	at := r * t.index.shape.Blocks()
	kernels.IndexScores(t.scores[at+lo:at+hi], t.iq.row(t.first+r), t.heads, t.keys.Type, t.keys.Data[lo*t.keys.Stride:], t.keys.Stride, &t.e.workers[worker].scratch)
}

// choose turns the scores of a row into runs.
func (t *sparseTask) choose(worker, r int) {
	row, b := t.first+r, t.index.shape.Block
	p := int(t.pos(row)) + 1
	at := r * t.index.shape.Blocks()
	x := kernels.Picked{Block: b, Tail: p % b, Keep: t.s.Top*b + b - 1}
	runs := x.Runs(t.runs[row*t.most:][:0], t.scores[at:at+p/b], &t.e.workers[worker].scratch)
	t.count[row] = int32(len(runs))
}
