package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// ErrDoesNotFit is wrapped where no row of a plan fits and one had to.
var ErrDoesNotFit = errors.New("does not fit")

// Size is one machine memory, or one RAM budget, that a plan is made for. Sizes are bytes.
type Size struct {
	RAM     int64 // the machine's memory as sold; 0: only the budget is given
	Reserve int64 // of it left to others; 0: DefaultReserve
	Budget  int64 // what `run --ram` takes; 0: RAM less Reserve
	VRAM    int64 // 0: no graphics card
}

// NominalSizes are the machine memories that a table shows where nothing else is asked for, in GiB.
var NominalSizes = []int64{8, 12, 16, 24, 32, 48, 64, 96, 128}

// DefaultReserve is what of a machine's memory is left to the system and to other programs: an eighth, and at least 2 GiB.
func DefaultReserve(ram int64) int64 { return max(ram/8, min(2<<30, ram/2)) }

// Row is what one size of machine does with a model; JSON names as in `plan --json`.
type Row struct {
	RAM      int64   `json:"ram"`
	Reserve  int64   `json:"reserve"`
	Budget   int64   `json:"budget"`
	VRAM     int64   `json:"vram"`
	Fits     bool    `json:"fits"`
	InRAM    int     `json:"ram_experts"`
	InVRAM   int     `json:"vram_experts"`
	Total    int     `json:"experts_total"`
	Resident float64 `json:"resident_fraction"`
	HitRate  float64 `json:"hit_rate"`
	Read     int64   `json:"bytes_read_per_token"`
	Decode   float64 `json:"predicted_decode"`  // tokens per second
	Prefill  float64 `json:"predicted_prefill"` // tokens per second
	Unsure   float64 `json:"uncertainty"`       // share by which Decode may be off either way
	Measured bool    `json:"measured"`          // the rates were measured on the machine itself
	Limit    string  `json:"bottleneck"`
	NextGB   float64 `json:"next_gb_gain"` // tokens per second that 10^9 bytes more add to Decode
	Flags    string  `json:"flags"`
	Reason   string  `json:"reason"` // why it does not fit; else what is to be known about the row

	Least int64  `json:"least_budget"` // the smallest RAM budget that runs
	Terms Terms  `json:"terms"`        // of a decoded token
	Parts Budget `json:"-"`            // where the memory goes
}

// Plan is what machines of several sizes do with a model.
type Plan struct {
	Model           string      `json:"model"`
	Arch            string      `json:"arch"`
	Types           string      `json:"quant"`
	ParamsTotal     uint64      `json:"params_total"`
	ParamsActive    uint64      `json:"params_active"`
	Layers          int         `json:"layers"`
	ExpertsPerLayer int         `json:"experts_per_layer"`
	ExpertsPerToken int         `json:"experts_per_token"`
	ExpertBytes     ExpertBytes `json:"expert_bytes"`
	DenseBytes      int64       `json:"dense_bytes"`
	KVPerToken      int64       `json:"kv_bytes_per_token"`
	StateBytes      int64       `json:"state_bytes"`
	TableBytes      int64       `json:"table_bytes"`
	BitsPerWeight   float64     `json:"bits_per_routed_weight"`
	Context         int         `json:"ctx"`
	Parallel        int         `json:"parallel"`
	KeyType         string      `json:"cache_type_k"`
	ValType         string      `json:"cache_type_v"`
	CurveSource     string      `json:"curve_source"`
	CurveError      float64     `json:"curve_error"` // by which hit rates may be off, either way
	Machine         Machine     `json:"machine"`
	Rows            []Row       `json:"rows"`

	shape Shape
	curve *Curve
}

// ExpertBytes are the sizes of a model's experts.
type ExpertBytes struct {
	Min   int64 `json:"min"`
	Max   int64 `json:"max"`
	Total int64 `json:"total"`
}

// Make plans for the sizes given, NominalSizes if there are none. It is arithmetic alone; errors are those of a machine
// without usable rates. A size under which the model does not fit is a row that says so.
func Make(s Shape, m Machine, sizes ...Size) (Plan, error) {
	if err := m.check(); err != nil {
		return Plan{}, err
	}
	if s.Context < 1 || s.Layers < 1 {
		return Plan{}, fmt.Errorf("%s: a shape of %d layers with %d positions", s.Path, s.Layers, s.Context)
	}
	m.Engine = m.Engine.Or(DefaultCosts)
	c := s.Curve
	if c == nil {
		c = DefaultCurve(s.Arch)
	}
	p := Plan{
		Model: s.Model, Arch: s.Arch, Types: s.Types, ParamsTotal: s.ParamsTotal, ParamsActive: s.ParamsActive,
		Layers: s.Layers, ExpertsPerLayer: s.ExpertsPerLayer, ExpertsPerToken: s.ExpertsPerToken,
		ExpertBytes: ExpertBytes{s.ExpertMin, s.ExpertMax, s.ExpertTotal},
		DenseBytes:  s.DenseBytes, KVPerToken: s.KVPerToken, StateBytes: s.StateBytes, TableBytes: s.TableBytes,
		BitsPerWeight: s.BitsPerWeight(), Context: s.Context, Parallel: s.Parallel, KeyType: s.KeyType, ValType: s.ValType,
		CurveSource: c.Source, CurveError: c.Uncertainty, Machine: m, shape: s, curve: c,
	}
	if sizes == nil {
		for _, g := range NominalSizes {
			sizes = append(sizes, Size{RAM: g << 30})
		}
	}
	for _, z := range sizes {
		p.Rows = append(p.Rows, p.Row(z))
	}
	return p, nil
}

// Row plans for one more size.
func (p *Plan) Row(z Size) Row {
	s, m := &p.shape, &p.Machine
	if z.Reserve == 0 && z.Budget == 0 {
		z.Reserve = DefaultReserve(z.RAM)
	}
	if z.Budget == 0 {
		z.Budget = max(0, z.RAM-z.Reserve)
	}
	r := Row{RAM: z.RAM, Reserve: z.Reserve, Budget: z.Budget, VRAM: z.VRAM, Total: s.Fixed.Experts, Measured: m.Measured && (z.VRAM == 0 || m.gpu().Measured && m.GPU.VRAM >= z.VRAM)}
	place := p.place(z)
	r.Parts, r.Fits, r.Least = place.ram, place.fits, place.least
	if !r.Fits {
		r.Reason = place.why
		return r
	}
	r.InRAM, r.InVRAM = place.ram.Slots, place.vram
	if r.Total > 0 {
		r.Resident = min(1, float64(r.InRAM+r.InVRAM)/float64(r.Total))
	}
	r.Reason = place.why
	hit := p.hit(place)
	r.HitRate = hit.all
	r.Terms = p.decode(place, hit)
	r.Read = r.Terms.Read
	r.Decode = 1 / r.Terms.Token
	r.Limit = p.limit(r.Terms)
	r.Prefill = p.prefill(place)
	r.Unsure = p.unsure(place, hit)
	more := z
	more.Budget += 1e9
	if next := p.place(more); next.fits {
		r.NextGB = max(0, 1/p.decode(next, p.hit(next)).Token-r.Decode)
	}
	r.Flags = p.flags(z)
	return r
}

// placed says where experts are.
type placed struct {
	ram   Budget
	fits  bool
	least int64
	why   string
	vram  int  // experts in VRAM
	dense bool // dense weights and the context are in VRAM
}

// place decides what lies where. A card changes nothing about RAM: dense weights are kept there too and room for contexts is set
// aside, with which the CPU goes on where a card is lost.
func (p *Plan) place(z Size) placed {
	s := &p.shape
	var x placed
	x.least = s.Least()
	x.ram, x.fits = s.Budget(z.Budget)
	if z.VRAM > 0 {
		need := s.CardDense + x.ram.KV + x.ram.Work
		room := z.VRAM - need - CardMargin(z.VRAM)
		if room < 0 || !CardWhole(z.VRAM, 0, s.CardDense, x.ram.KV, x.ram.Work) {
			x.why = fmt.Sprintf("%s of VRAM do not hold the dense weights, the context and the work space (%s): the graphics card is left out", gb(z.VRAM), gb(need))
		} else {
			x.dense = true
			if s.Fixed.Experts > 0 {
				x.vram = min(cardExperts(room, int64(math.Ceil(s.MeanExpert()))), s.Fixed.Experts)
			}
		}
	}
	if x.vram > 0 { // tiers do not repeat one another
		x.ram.Slots = min(x.ram.Slots, x.ram.Experts-x.vram)
	}
	if !x.fits {
		b := x.ram
		x.why = fmt.Sprintf("a budget of %s is too small: dense weights %s, context %s, work space %s, run time %s and the smallest expert arena %s take %s",
			gb(z.Budget), gb(b.Dense), gb(b.KV), gb(b.Work+b.Table+b.Predictor), gb(b.Runtime), gb(Mapped(b.ArenaMin)), gb(x.least))
		if z.Budget >= x.least-b.Dense {
			x.why += "; --dense mmap leaves the dense weights to the page cache, and is slow"
		}
	}
	return x
}

// gb prints a size for people.
func gb(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.0f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// flags is how the row is run.
func (p *Plan) flags(z Size) string {
	s := &p.shape
	f := []string{fmt.Sprintf("--ram %d -c %d", z.Budget, s.Context*s.Parallel)}
	if s.Parallel > 1 {
		f = append(f, fmt.Sprintf("-np %d", s.Parallel)) // a server divides the context by it
	}
	if len(s.Wider) == 0 && (s.Batch != min(512, s.Context) || s.Context > s.Batch) { // else the engine chooses it, as here
		f = append(f, fmt.Sprintf("-b %d", s.Batch))
	}
	if s.KeyType != "f16" {
		f = append(f, "-ctk "+s.KeyType)
	}
	if s.ValType != "f16" {
		f = append(f, "-ctv "+s.ValType)
	}
	if s.Lookahead < 2 {
		f = append(f, fmt.Sprintf("--lookahead %d", s.Lookahead))
	}
	if z.VRAM > 0 {
		f = append(f, fmt.Sprintf("--vram %d", z.VRAM))
	}
	return strings.Join(f, " ")
}

// unsure is how far decoding may be off either way: the hit rate's uncertainty carried through, and the rates' own. A
// curve begins at 0 and ends at 1, so that it is the less uncertain the nearer it is to either.
func (p *Plan) unsure(x placed, h hits) float64 {
	u := p.curve.Uncertainty * 4 * h.all * (1 - h.all)
	low, high := h, h
	low.shift(-u)
	high.shift(u)
	spread := math.Log(p.decode(x, low).Token/p.decode(x, high).Token) / 2
	rate := p.Machine.Error
	if x.dense {
		if g := p.Machine.gpu(); g.Measured {
			rate = math.Hypot(rate, calibratedError)
		} else {
			rate = math.Hypot(rate, gpuError)
		}
	}
	return math.Expm1(math.Hypot(spread, math.Log1p(rate)))
}

// gpuError is how far figures of a card that nobody measured may be off.
const gpuError = 0.5

// Best is the row with the largest predicted speed of those that fit, false where none does.
func (p *Plan) Best() (Row, bool) {
	fit := slices.DeleteFunc(slices.Clone(p.Rows), func(r Row) bool { return !r.Fits })
	if len(fit) == 0 {
		return Row{}, false
	}
	return slices.MaxFunc(fit, func(a, b Row) int {
		switch {
		case a.Decode < b.Decode:
			return -1
		case a.Decode > b.Decode:
			return 1
		}
		return 0
	}), true
}

// Path is the model's file.
func (p *Plan) Path() string { return p.shape.Path }
