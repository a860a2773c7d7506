// Package synth writes GGUF files with the geometry of published models and weights that are random but valid, so that
// anyone can plan and measure a model on their machine before the download. It is no converter, and not for judging
// arithmetic: the models speak gibberish, and llama.cpp's tensors, keys and sizes are all they share with the real ones.
//
// [New] lays a file out and says what it weighs; [Model.Write] writes it. The table of models is in shape.go; an
// architecture's keys and tensors are in architectures.go, what makes routing lifelike in routing.go.
package synth

import (
	"fmt"
	"io"
	"math"
	"strings"

	"terrace/gguf"
)

// Options say which file to write. Zero fields take the values given here.
type Options struct {
	Family string // a name of Families
	Layers int    // the first layers alone; 0: all
	Quant  string // of experts, as parseMix reads it; "q4_k", for gpt-oss "mxfp4"
	Dense  string // type of all other matrices; "q8_0"
	Embd   string // of the embedding; Dense
	Head   string // of the output matrix; Dense
	Router string // of routers; "f32", as in almost every file
	Table  string // of an n-gram table; "iq4_nl"
	MTP    bool   // with the block that drafts, where published files have one
	Seed   uint64

	Skew   float64 // how much some experts are wanted more than others: the exponent of their popularity before noise
	Corr   float64 // 0 to 1: how far the experts of a layer go with those of the layer before
	Topics int     // groups of tokens that route alike and follow one another; 0: none
	Gain   float64 // what a block adds to the residual, whose embedding has size 1; 0.25. Small values make guesses easy

	// HeaderOnly leaves all tensor data out: the file has its full size, is one hole behind the header and reads as
	// zeros.
	HeaderOnly bool
	// Rows are sequences of tokens whose rows of an n-gram table are written; the rest of a table is always a hole.
	Rows [][]int32
}

// Model is a file before it is written.
type Model struct {
	Options Options // as completed
	Family  Family
	Layers  int
	Size    int64 // of the file
	Data    int64 // bytes that Write takes from the disk, the rows of a table among them in whole pages
	Weights Weights

	head    []byte
	starts  []int64
	tensors []tensor
	rows    []uint64 // of the table that are written, ascending
	route   *routing
}

// Weights is what the tensors weigh, in bytes.
type Weights struct {
	Params       uint64
	Dense        int64 // what is no routed expert, no table and no draft
	DenseParams  uint64
	Experts      int64 // all routed experts
	ExpertMin    int64
	ExpertMax    int64
	ExpertLayers int
	PerLayer     int
	Table        int64
	Draft        int64
}

// New lays out a file. Errors name the option or tensor that is wrong.
func New(o Options) (*Model, error) {
	f, err := family(o.Family)
	if err != nil {
		return nil, err
	}
	return newModel(f, o)
}

func family(name string) (Family, error) {
	var names []string
	for _, f := range Families() {
		if strings.EqualFold(f.Name, name) || strings.EqualFold(f.Title, name) {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Family{}, fmt.Errorf("no family %q: have %s", name, strings.Join(names, ", "))
}

// Vocab is the size of a family's vocabulary.
func Vocab(name string) (int, error) {
	f, err := family(name)
	return f.shape.vocab, err
}

// complete fills in what is zero and checks the rest.
func (o *Options) complete(s *shape) error {
	def := func(v *string, d string) {
		if *v == "" {
			*v = d
		}
	}
	if s.arch == "gpt-oss" {
		def(&o.Quant, "mxfp4")
	}
	def(&o.Quant, "q4_k")
	def(&o.Dense, "q8_0")
	def(&o.Embd, o.Dense)
	def(&o.Head, o.Dense)
	def(&o.Router, "f32")
	def(&o.Table, "iq4_nl")
	if o.Layers == 0 {
		o.Layers = s.layers
	}
	if o.Gain == 0 {
		o.Gain = 0.25
	}
	switch {
	case o.Layers < 1 || o.Layers > s.layers:
		return fmt.Errorf("%d layers, %s has %d", o.Layers, o.Family, s.layers)
	case s.pleLayer >= o.Layers:
		return fmt.Errorf("%d layers, and the n-gram table of %s belongs to layer %d: want %d or more", o.Layers, o.Family, s.pleLayer, s.pleLayer+1)
	case o.MTP && !s.mtp:
		return fmt.Errorf("published files of %s have no block for drafting", o.Family)
	case !(o.Corr >= 0 && o.Corr <= 1):
		return fmt.Errorf("correlation %g, want 0 to 1", o.Corr)
	case !(o.Skew >= 0 && o.Skew <= 10):
		return fmt.Errorf("skew %g, want 0 to 10", o.Skew)
	case !(o.Gain > 0 && o.Gain <= 4):
		return fmt.Errorf("gain %g, want more than 0, at most 4", o.Gain)
	case o.Topics < 0 || o.Topics > 1024:
		return fmt.Errorf("%d topics, want 0 to 1024", o.Topics)
	case len(o.Rows) > 0 && s.tableWidth == 0:
		return fmt.Errorf("rows of an n-gram table, and %s has none", o.Family)
	case len(o.Rows) > 0 && o.HeaderOnly:
		return fmt.Errorf("rows of an n-gram table in a file without data")
	}
	return nil
}

func newModel(f Family, o Options) (*Model, error) {
	s := f.shape
	if err := o.complete(&s); err != nil {
		return nil, err
	}
	s.layers = o.Layers
	b := &builder{s: s, o: &o, in: 1, gain: o.Gain, route: newRouting(&o, &s)}
	if s.plan != "" {
		b.s.plan = s.plan[:o.Layers]
	}
	var err error
	if b.mix, err = parseMix(o.Quant); err != nil {
		return nil, err
	}
	for _, x := range []struct {
		name string
		to   *gguf.Type
	}{{o.Dense, &b.types.dense}, {o.Embd, &b.types.embd}, {o.Head, &b.types.head}, {o.Router, &b.types.router}, {o.Table, &b.types.table}} {
		if *x.to, err = typeNamed(x.name); err != nil {
			return nil, err
		}
	}
	b.put("general.architecture", s.arch)
	b.put("general.type", "model")
	b.put("general.name", fmt.Sprintf("synthetic %s", f.Title))
	b.put("general.file_type", fileTypes[b.mix.label])
	b.put("general.quantization_version", uint32(2))
	b.put(keySynthetic, fmt.Sprintf("%s layers=%d quant=%s dense=%s seed=%d skew=%g corr=%g topics=%d gain=%g", f.Name, o.Layers, o.Quant, o.Dense, o.Seed, o.Skew, o.Corr, o.Topics, o.Gain))
	architectures[s.arch](b)
	if b.err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, b.err)
	}
	b.route.in = b.in
	b.vocabulary()
	return b.model(f)
}

// keySynthetic marks a file as this package's and says how it was made. Rows are only ever written into such files.
const keySynthetic = "terrace.synthetic"

func (b *builder) model(f Family) (*Model, error) {
	m := &Model{Options: *b.o, Family: f, Layers: b.s.layers, tensors: b.list, route: b.route}
	m.route.o = &m.Options
	file := gguf.WriteFile{Metadata: b.meta}
	for i := range m.tensors {
		t := m.tensors[i].WriteTensor
		t.Fill = func(io.Writer) error { panic("synth: tensors are written by Model.Write") }
		file.Tensors = append(file.Tensors, t)
	}
	var err error
	if m.head, m.starts, m.Size, err = gguf.Layout(file); err != nil {
		return nil, err
	}
	m.weigh(b.s.experts)
	m.Data = int64(len(m.head))
	if m.Options.HeaderOnly {
		return m, nil
	}
	m.Data = m.Size - m.Weights.Table
	for i := range m.tensors {
		if t := &m.tensors[i]; t.part == table {
			h := hashOf(&b.s)
			for _, seq := range m.Options.Rows {
				if m.rows, err = h.rows(m.rows, seq, uint64(b.s.vocab)); err != nil {
					return nil, err
				}
			}
			m.rows = unique(m.rows)
			m.Data += pages(m.rows, m.starts[i], int64(t.Type.RowBytes(int(t.Dims[0]))))
		}
	}
	return m, nil
}

// weigh adds up the tensors.
func (m *Model) weigh(experts int) {
	w := &m.Weights
	w.PerLayer = experts
	perLayer := map[string]int64{}
	for i := range m.tensors {
		t := &m.tensors[i]
		n := t.bytes()
		w.Params += t.elements()
		switch t.part {
		case dense:
			w.Dense += n
			w.DenseParams += t.elements()
		case expert:
			w.Experts += n
			perLayer[t.Name[:strings.Index(t.Name, ".ffn_")]] += n / int64(experts)
		case table:
			w.Table += n
		case draft:
			w.Draft += n
			w.Params -= t.elements()
		}
	}
	w.ExpertMin, w.ExpertLayers = math.MaxInt64, len(perLayer)
	for _, n := range perLayer {
		w.ExpertMin, w.ExpertMax = min(w.ExpertMin, n), max(w.ExpertMax, n)
	}
	if len(perLayer) == 0 {
		w.ExpertMin = 0
	}
}
