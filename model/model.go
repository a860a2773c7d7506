// Package model turns a GGUF file into a forward pass: it checks the configuration and the tensors of an architecture,
// says where each dense weight and each expert lies, and walks a batch of tokens through the layers.
//
// It reads no tensor data and keeps no experts: the engine brings dense bytes to Bind, and experts come through the
// interface Source while a layer runs. Arithmetic is the backend's (compute).
//
// The main path: [Load] (family.go, and one arch_*.go for each architecture) answers a [Model]; [Model.Bind] gives it a backend and its dense bytes;
// [Model.NewState] makes a sequence and [Model.Forward] (forward.go) extends it.
package model

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// ErrUnsupported marks a file that is well-formed GGUF but no model this package computes: another architecture, a
// hyper-parameter without a rule here, a missing, surplus or misshapen tensor, a type without arithmetic.
var ErrUnsupported = errors.New("model: unsupported")

// ErrContextFull marks a batch that does not fit behind what a sequence already holds.
var ErrContextFull = errors.New("the context is full")

// DefaultMaxRows is the largest batch of Forward when Options does not say.
const DefaultMaxRows = 512

// Options configure a Model. The zero value is usable.
type Options struct {
	MaxRows int         // the most tokens of one Forward; 0: DefaultMaxRows
	Rope    RopeOptions // what takes the place of the file's rotation
}

// DenseTensor is a weight that every token uses: Out rows of In elements.
type DenseTensor struct {
	Name string
	gguf.Extent
	Type    gguf.Type
	In, Out int
}

// Piece is one matrix of an expert: Out rows of In elements.
type Piece struct {
	gguf.Extent
	Type    gguf.Type
	In, Out int
}

// Matrix gives p its bytes.
func (p *Piece) Matrix(data []byte) compute.Matrix {
	return compute.Matrix{Type: p.Type, In: p.In, Out: p.Out, Data: data}
}

// ExpertDesc is where an expert lies: three ranges, each with its own type and shard.
type ExpertDesc struct {
	Gate, Up, Down Piece
}

// Bytes is the size of the expert.
func (d *ExpertDesc) Bytes() int64 { return d.Gate.Length + d.Up.Length + d.Down.Length }

// Footprint is what a model weighs, in bytes.
type Footprint struct {
	Dense         int64 // weights that are not routed experts
	Experts       int64 // all routed experts
	LargestExpert int64
	Table         int64 // of which rows are read when they are needed
}

// layer is what a token meets at one depth: a block that mixes tokens and one that does not, either of which may be missing.
type layer struct {
	mix, ffn block
	routed   *routed // ffn's experts; nil: none
}

// Model is an architecture with its weights. Between Bind and the end it does not change, but its buffers serve one
// Forward at a time.
type Model struct {
	cfg       Config
	path      string
	maxRows   int
	dense     []DenseTensor
	binds     []bind
	experts   [][]ExpertDesc
	layers    []layer
	buffers   []bufferSpec
	kvLayers  []compute.KVLayer
	recurrent compute.RecurrentShape
	// stateLayers are how many layers of each of these and of the index come before a layer.
	stateLayers [][3]int
	turned      int64 // bytes of convolutions' weights in another order
	ropes       []*rope
	width       int // of the residual
	streams     int // that it consists of; 0: it is one

	index     compute.IndexShape              // of layers with block-sparse attention, without its context
	ratios    []int                           // positions of a block by layer; 0: dense attention
	picks     int                             // numbers that say what a row of a batch sees
	blockRope int                             // how index keys are turned, into ropes
	engram    *engram                         // nil: none
	starts    []func(w *work, tokens []int32) // recorded behind the embedding
	carries   []carrySpec                     // tensors that live through the layers besides the residual
	table     *TableDesc                      // its table
	rows      Table
	guard     Guard // nil: weights are not mapped

	embd, head compute.Weight
	outIn      residual // the norm before the output
	embdScale  float32  // multiplies embeddings; 0: nothing
	logitScale float32  // multiplies logits; 0: nothing
	logitCap   float32  // their soft limit; 0: none
	suppressed []int32  // tokens whose logits are minus infinity

	backend compute.Backend
	work    *work
	watch   func(Watched)
}

// bind says which rows of a dense tensor become which weight, or which numbers the host reads.
type bind struct {
	tensor      int // index into dense
	first, rows int
	to          *compute.Weight
	host        *[]float32 // the whole tensor, which is F32
}

// Load checks that f holds a model of an architecture this package computes and learns where everything lies. Errors name
// the file and the field or tensor, and wrap ErrUnsupported.
func Load(f *gguf.File, o Options) (*Model, error) {
	if o.MaxRows < 0 {
		panic(fmt.Sprintf("model: batches of at most %d rows", o.MaxRows))
	}
	if o.MaxRows == 0 {
		o.MaxRows = DefaultMaxRows
	}
	if err := o.Rope.Check(); err != nil {
		return nil, err
	}
	m := &Model{path: f.Path, maxRows: o.MaxRows}
	if err := m.build(f, &o.Rope); err != nil {
		return nil, err
	}
	return m, nil
}

// Config is the model's shape.
func (m *Model) Config() Config { return m.cfg }

// Streams is the number of vectors of Embd elements that the residual consists of.
func (m *Model) Streams() int { return max(m.streams, 1) }

// SetMaxRows changes the most tokens of one Forward; it comes before Bind.
func (m *Model) SetMaxRows(n int) {
	if m.backend != nil || n < 1 {
		panic(fmt.Sprintf("model: SetMaxRows(%d) after Bind, or with no row", n))
	}
	m.maxRows = n
}

// MaxRows is the most tokens of one Forward.
func (m *Model) MaxRows() int { return m.maxRows }

// Dense lists every weight that is no routed expert, in the order of the walk. The caller must not change it.
func (m *Model) Dense() []DenseTensor { return m.dense }

// Experts lists the routed experts of each layer; a dense layer has none. The caller must not change it.
func (m *Model) Experts() [][]ExpertDesc { return m.experts }

// Rule is the routing rule of a layer, nil for a dense one. Its bias is there after Bind.
func (m *Model) Rule(layer int) *router.Rule {
	if r := m.layers[layer].routed; r != nil {
		return r.rule
	}
	return nil
}

// Footprint adds up the extents.
func (m *Model) Footprint() Footprint {
	var p Footprint
	for i := range m.dense {
		p.Dense += m.dense[i].Length
	}
	if m.table != nil {
		p.Table = m.table.Length
	}
	for _, l := range m.experts {
		for i := range l {
			n := l[i].Bytes()
			p.Experts += n
			p.LargestExpert = max(p.LargestExpert, n)
		}
	}
	return p
}

// Bind gives the model a backend and the bytes of its dense tensors; lookup answers Length bytes that stay valid and
// unchanged. It is called once. An error names the tensor; one about a type wraps ErrUnsupported.
func (m *Model) Bind(b compute.Backend, lookup func(name string) []byte) (err error) {
	if m.backend != nil {
		panic("model: Bind called twice")
	}
	if m.guard != nil {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer m.caught(&err)
	}
	for l, experts := range m.experts {
		for i := range experts {
			for _, p := range []*Piece{&experts[i].Gate, &experts[i].Up, &experts[i].Down} {
				if p.Out > 0 && !b.Supports(p.Type) {
					return &loadError{fmt.Sprintf("%s: layer %d, expert %d is of type %s, which %s cannot compute", m.path, l, i, p.Type, b.Name())}
				}
			}
		}
	}
	if t := m.table; t != nil && !b.Supports(t.Type) {
		return &loadError{fmt.Sprintf("%s: tensor %q is of type %s, which %s cannot compute", m.path, t.Name, t.Type, b.Name())}
	}
	placer, _ := b.(compute.Placer)
	for _, x := range m.binds {
		t := &m.dense[x.tensor]
		if placer != nil {
			placer.Layer(m.layerOf(t.Name))
		}
		if !b.Supports(t.Type) {
			return &loadError{fmt.Sprintf("%s: tensor %q is of type %s, which %s cannot compute", m.path, t.Name, t.Type, b.Name())}
		}
		data := lookup(t.Name)
		if int64(len(data)) != t.Length {
			return fmt.Errorf("%s: tensor %q: %d bytes brought, want %d", m.path, t.Name, len(data), t.Length)
		}
		if x.host != nil {
			*x.host = floats(data)
			continue
		}
		n := t.Type.RowBytes(t.In)
		w, err := b.NewWeight(compute.Matrix{Type: t.Type, In: t.In, Out: x.rows, Data: data[x.first*n : (x.first+x.rows)*n]})
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", m.path, t.Name, err)
		}
		*x.to = w
	}
	if m.cfg.Tied {
		m.head = m.embd
	}
	for _, r := range m.ropes {
		if err := r.check(); err != nil {
			return &loadError{m.path + ": " + err.Error()}
		}
	}
	for i := range m.layers {
		if r := m.layers[i].routed; r != nil {
			if err := r.rule.Validate(); err != nil { // the bias has come
				return &loadError{fmt.Sprintf("%s: layer %d: %v", m.path, i, err)}
			}
		}
	}
	m.backend = b
	m.work = newWork(m)
	return nil
}

// layerOf is the layer that a dense tensor belongs to by its name: -1 for what comes before the first, the number of layers for what
// comes after the last. An embedding that is the output too is taken for the latter.
func (m *Model) layerOf(name string) int {
	var n int
	if _, err := fmt.Sscanf(name, "blk.%d.", &n); err == nil {
		return n
	}
	if name == "token_embd.weight" && !m.cfg.Tied || strings.HasPrefix(name, "token_types") {
		return -1
	}
	return m.cfg.Layers
}

// LayerBytes is the bytes of the dense weights of each layer, and, as the last, of those behind all layers.
func (m *Model) LayerBytes() []int64 {
	out := make([]int64, m.cfg.Layers+1)
	for i := range m.dense {
		if l := m.layerOf(m.dense[i].Name); l >= 0 {
			out[min(l, m.cfg.Layers)] += m.dense[i].Length
		}
	}
	return out
}

// StatesBefore says how many layers of KV caches, recurrent states and block indices come before a layer of the model.
func (m *Model) StatesBefore(layer int) (kv, recurrent, index int) {
	if layer <= 0 {
		return 0, 0, 0
	}
	if layer >= len(m.stateLayers) {
		return len(m.kvLayers), len(m.recurrent.Layers), m.index.Layers
	}
	n := m.stateLayers[layer]
	return n[0], n[1], n[2]
}
