package plan

// Shape is all that a plan needs to know about a model and how it is to be used. engine.ShapeOf reads it from a file's
// header; nothing in it depends on a machine. Sizes are bytes.
type Shape struct {
	Path   string // of the file, as flags name it
	Model  string // general.name; "" where the file has none
	Arch   string
	Types  string // of routed experts, or of dense matrices where there are none
	Layers int

	ParamsTotal, ParamsActive uint64 // of the file; those a token uses

	ExpertLayers    int // layers with routed experts
	ExpertsPerLayer int
	ExpertsPerToken int    // of a layer
	ExpertParams    uint64 // of all routed experts
	ExpertMin       int64  // the smallest expert
	ExpertMax       int64
	ExpertTotal     int64 // all routed experts, without alignment

	DenseBytes int64 // weights that stay in memory, without alignment
	CardDense  int64 // of them, those that a graphics card takes: all but an embedding of its own
	TableBytes int64 // of a table of rows that stays on disk
	KVPerToken int64 // keys, values and index keys of a position
	StateBytes int64 // recurrent state of a sequence

	// How it is used.
	Context, Parallel, Batch, Lookahead int
	KeyType, ValType                    string

	Fixed      Budget  // all but what depends on the RAM budget: see Budget.Promise
	Wider      []Width // wider passes that the engine may choose
	Checkpoint int64   // of a recurrent state
	Prompts    int64   // bytes of a prompt cache, or CacheAuto
	Entry      int64   // its largest entry

	Traffic []Traffic // what a decoded token reads, the largest first
	Curve   *Curve    // how reuse grows with residency; nil: DefaultCurve of Arch
	RowOps  float64   // elements that a row of a prompt goes through in all layers beside products with weights: norms, activations, attention, recurrent state
	Attend  int64     // bytes of keys and values that a token reads when half of the context is filled
}

// Traffic is the weights of one type that a decoded token goes through.
type Traffic struct {
	Type          string
	Dense         int64  // bytes
	DenseParams   uint64 // elements
	Experts       int64  // bytes of the experts that it uses in all layers
	ExpertsParams uint64
	HeadParams    uint64 // of DenseParams, those of the output matrix, which a prompt goes through once
}

// Touches is how many experts a token uses in all layers.
func (s *Shape) Touches() int { return s.ExpertLayers * s.ExpertsPerToken }

// MeanExpert is the mean size of an expert.
func (s *Shape) MeanExpert() float64 {
	if s.Fixed.Experts == 0 {
		return 0
	}
	return float64(s.ExpertTotal) / float64(s.Fixed.Experts)
}

// BitsPerWeight is the bits that a weight of a routed expert takes.
func (s *Shape) BitsPerWeight() float64 {
	if s.ExpertParams == 0 {
		return 0
	}
	return 8 * float64(s.ExpertTotal) / float64(s.ExpertParams)
}

// Budget is where the memory goes under a RAM budget, exactly as an engine decides it; fits says whether it can start.
func (s *Shape) Budget(ram int64) (b Budget, fits bool) {
	b = s.Fixed
	b.Widen(ram, b.ArenaMost, s.Wider)
	b.Promise(ram, s.Checkpoint)
	b.KeepPrompts(s.Prompts, s.Entry)
	b.Now = ram
	if b.Experts == 0 {
		return b, b.Fixed() <= ram
	}
	b.Arena = b.ArenaIn(ram)
	fits = b.Arena >= b.ArenaMin && b.Fixed()+Mapped(b.Arena) <= ram
	b.Slots = SlotsIn(b.Arena, b.ArenaMost, b.Experts)
	return b, fits
}

// Least is the smallest RAM budget under which it runs.
func (s *Shape) Least() int64 {
	// Checkpoints grow with the budget, so that the smallest budget is a fixed point, reached from below.
	ram := int64(0)
	for range 64 {
		b := s.Fixed
		b.Promise(ram, s.Checkpoint)
		if s.Prompts > 0 {
			b.KeepPrompts(s.Prompts, s.Entry)
		}
		if least := b.Least(); least > ram {
			ram = least
			continue
		}
		break
	}
	return ram
}
