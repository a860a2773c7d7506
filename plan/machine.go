package plan

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

//go:embed data
var data embed.FS

// Machine is how fast a machine's parts are: measured on this one (Profile.Machine) or, for one that is not at hand, the
// figures that come with the program. Rates are bytes per second unless they say otherwise.
type Machine struct {
	Name     string  `json:"name"`
	Source   string  `json:"source"`   // where the figures come from
	Measured bool    `json:"measured"` // they were measured on the machine itself
	RAM      int64   `json:"ram"`      // bytes; 0: unknown
	Threads  int     `json:"threads"`
	Memory   float64 `json:"memory"`         // read bandwidth of all threads
	Cache    int64   `json:"cache"`          // bytes of the processor's last cache; 0: not told
	Disk     float64 `json:"disk"`           // sustained
	Burst    float64 `json:"disk_burst"`     // while less is read than Disk in the long run; 0: as Disk
	Scale    float64 `json:"kernel_scale"`   // of the reference kernels (data/kernels.json), for types that Kernels lacks
	GemmX    float64 `json:"gemm_scale"`     // the same of products with batches; 0: Scale
	Error    float64 `json:"rate_error"`     // share by which these rates may be wrong
	GPU      *GPU    `json:"gpu,omitempty"`  // nil: none is known
	Engine   Costs   `json:"engine_costs"`   // what the engine adds to sums of rates
	Disks    string  `json:"disk_name"`      // "": not told
	Reserve  int64   `json:"reserve"`        // bytes left to others on this machine; 0: DefaultReserve
	Gemm     []Gemm  `json:"gemm,omitempty"` // prompt arithmetic; empty: the reference, scaled

	Kernels map[string]float64 `json:"kernels,omitempty"` // weight bytes per second of a type's mat-vec from cache, all threads
}

// Gemm is the rate of products of one type with batches of Rows rows: operations per second, all threads.
type Gemm struct {
	Type string  `json:"type"`
	Rows int     `json:"rows"`
	Rate float64 `json:"ops_per_second"`
}

// Moment is how fast memory and processors are at one moment. On a virtual machine other guests change both within minutes.
type Moment struct {
	Memory float64 `json:"memory"`  // bytes per second that all threads read
	MatVec float64 `json:"mat_vec"` // weight bytes per second of Q4_K from cache
	Gemm   float64 `json:"gemm"`    // operations per second of Q4_K with batches of MomentRows rows
}

// MomentRows is the batch of a moment's products.
const MomentRows = 128

// At is the machine at a moment: with that memory bandwidth, and all kernels in proportion to those that were measured then.
// Figures that are 0 change nothing.
func (m Machine) At(now Moment) Machine {
	const typ = "Q4_K"
	vec, gemm := m.matVec(typ), m.gemm(typ, MomentRows)
	if now.Memory > 0 {
		m.Memory = now.Memory
	}
	if m.GemmX == 0 { // it stood for both
		m.GemmX = m.Scale
	}
	if now.MatVec > 0 {
		k := now.MatVec / vec
		m.Scale *= k
		m.Kernels = maps.Clone(m.Kernels)
		for t := range m.Kernels {
			m.Kernels[t] *= k
		}
	}
	if now.Gemm > 0 {
		k := now.Gemm / gemm
		m.GemmX *= k
		m.Gemm = slices.Clone(m.Gemm)
		for i := range m.Gemm {
			m.Gemm[i].Rate *= k
		}
	}
	return m
}

// GPU is a graphics card as a plan sees it.
type GPU struct {
	Name   string  `json:"name"`
	VRAM   int64   `json:"vram"`   // bytes
	Memory float64 `json:"memory"` // bytes per second that shaders reach on weights
	Link   float64 `json:"link"`   // bytes per second from RAM
	Layer  float64 `json:"layer_s"`

	Measured bool `json:"measured"` // calibrate measured this card; otherwise these are estimates
}

// Costs are what a running engine takes beyond the sums of bytes over rates. Zero fields take DefaultCosts.
type Costs struct {
	Efficiency float64 `json:"efficiency"`           // of decoding against the kernels' streaming rate
	Prefill    float64 `json:"prefill"`              // of prompts against the kernels' batch rate
	Layer      float64 `json:"layer_s"`              // seconds that a layer of a decoded token takes beside its weights
	Read       float64 `json:"read_s_per_gb"`        // processor seconds by which 10^9 bytes read lengthen the arithmetic beside them
	ReadPrompt float64 `json:"prompt_read_s_per_gb"` // the same in prompts
	Held       float64 `json:"held_s_per_gb"`        // added to Read for a disk that is held wholly below its burst, where processors idle between reads and begin cold
	Overlap    float64 `json:"overlap"`              // share of the arithmetic of a layer under which reads can hide
	Exposed    float64 `json:"exposed"`              // share of a layer's read time that nothing hides
	Latency    float64 `json:"latency_s"`            // seconds that a layer of a decoded token which reads waits beside its bytes
	Row        float64 `json:"row_s_per_g"`          // seconds for 10^9 of Shape.RowOps
	Ask        float64 `json:"ask_s"`                // seconds by which a layer of a decoded token is longer where not all experts are resident: guesses, leases, processors that change their work
	PromptAsk  float64 `json:"prompt_ask_s"`         // seconds that an expert read for a prompt takes beside its bytes
}

// DefaultCosts were fitted to bench/results/2026-12-02-lookahead.md (the 12-layer cut under caps, lookahead 0: 0.7 to 1.0 s of
// arithmetic for each 10^9 bytes read, 0.65 of it hides reads) and 2026-12-02-flagship.md (0.3 s without a cap). That machine is
// a virtual one, whose disk is copied by the processors we run on; real disks cost less, so machines that ship with the program
// carry their own. Row, Ask and PromptAsk are those that meet the 54 cells of 2026-12-03-plan.md best.
var DefaultCosts = Costs{Efficiency: 0.8, Prefill: 0.8, Layer: 40e-6, Read: 0.35, ReadPrompt: 0.4, Held: 0.75, Overlap: 0.65, Exposed: 0.15, Latency: 200e-6, Row: 0.22, Ask: 50e-6, PromptAsk: 200e-6}

// Or completes c by d.
func (c Costs) Or(d Costs) Costs {
	for _, p := range []struct{ v, d *float64 }{{&c.Efficiency, &d.Efficiency}, {&c.Prefill, &d.Prefill}, {&c.Layer, &d.Layer}, {&c.Read, &d.Read}, {&c.ReadPrompt, &d.ReadPrompt}, {&c.Held, &d.Held}, {&c.Overlap, &d.Overlap}, {&c.Exposed, &d.Exposed}, {&c.Latency, &d.Latency}, {&c.Row, &d.Row}, {&c.Ask, &d.Ask}, {&c.PromptAsk, &d.PromptAsk}} {
		if *p.v == 0 {
			*p.v = *p.d
		}
	}
	return c
}

// kernelTable is data/kernels.json: what the kernels do on the reference machine.
type kernelTable struct {
	About   string             `json:"about"`
	Threads int                `json:"threads"`
	MatVec  map[string]float64 `json:"mat_vec_bytes_per_second"`
	Gemm    map[string]float64 `json:"gemm_ops_per_second"` // at 128 rows
	Rows    map[string]float64 `json:"gemm_by_rows"`        // share of that at so many rows, any type
}

// reference holds the kernels' table, and machines those that ship.
var reference, machines = func() (kernelTable, []Machine) {
	var k kernelTable
	var m struct {
		Machines []Machine `json:"machines"`
	}
	for name, to := range map[string]any{"data/kernels.json": &k, "data/machines.json": &m} {
		b, err := data.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(b, to)
		}
		if err != nil {
			panic("plan: " + name + ": " + err.Error())
		}
	}
	return k, m.Machines
}()

// Machines lists the machines whose figures come with the program.
func Machines() []Machine { return slices.Clone(machines) }

// NamedMachine is one of Machines.
func NamedMachine(name string) (Machine, error) {
	var names []string
	for _, m := range machines {
		if strings.EqualFold(m.Name, name) {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Machine{}, fmt.Errorf("no machine %q comes with the program, want one of %s", name, strings.Join(names, ", "))
}

// check refuses rates that no arithmetic can be done with.
func (m *Machine) check() error {
	for _, x := range []struct {
		what string
		v    float64
	}{{"memory bandwidth", m.Memory}, {"disk rate", m.Disk}, {"kernel scale", m.Scale}} {
		if !(x.v > 0) || math.IsInf(x.v, 0) {
			return fmt.Errorf("machine %s: %s is %g", m.Name, x.what, x.v)
		}
	}
	if m.Threads < 1 {
		return fmt.Errorf("machine %s: %d threads, want at least 1", m.Name, m.Threads)
	}
	return nil
}

// matVec is the rate of a type's mat-vec from cache.
func (m *Machine) matVec(typ string) float64 {
	if v, ok := m.Kernels[typ]; ok {
		return v
	}
	v, ok := reference.MatVec[typ]
	if !ok { // a type without a kernel of its own is decoded: as slow as the slowest
		v = slices.Min(slices.Collect(maps.Values(reference.MatVec)))
	}
	return v * m.Scale
}

// stream is the rate of a type's mat-vec over weights in memory: the two limits blur into one another, since the one's time
// partly hides the other's. The share that stays in the processor's cache meets the kernel's limit alone.
func (m *Machine) stream(typ string, cached float64) float64 {
	k := m.matVec(typ)
	return 1 / (cached/k + (1-cached)*math.Hypot(1/m.Memory, 1/k))
}

// gemm is the rate of products with batches of rows rows, operations per second.
func (m *Machine) gemm(typ string, rows float64) float64 {
	scale, base := m.GemmX, reference.Gemm[typ]
	if scale == 0 {
		scale = m.Scale
	}
	if base == 0 {
		base = slices.Min(slices.Collect(maps.Values(reference.Gemm)))
	}
	best := math.Inf(1)
	for _, g := range m.Gemm { // measured at the nearest number of rows, brought to this one by the reference
		if g.Type == typ {
			if d := math.Abs(math.Log(rows / float64(g.Rows))); d < best {
				best = d
				base, scale = g.Rate/rowShare(float64(g.Rows)), 1
			}
		}
	}
	return base * scale * rowShare(rows)
}

// rowPoint is a batch of rows and the share of a product's full rate that it reaches.
type rowPoint struct{ rows, share float64 }

// rowPoints are those of the reference, by rows.
var rowPoints = func() (ps []rowPoint) {
	for k, v := range reference.Rows {
		r, err := strconv.ParseFloat(k, 64)
		if err != nil {
			panic("plan: data/kernels.json: rows " + k)
		}
		ps = append(ps, rowPoint{r, v})
	}
	slices.SortFunc(ps, func(a, b rowPoint) int { return cmp.Compare(a.rows, b.rows) })
	return ps
}()

// rowShare is how much of a product's full rate a batch of rows reaches, between the table's points on straight lines.
func rowShare(rows float64) float64 {
	ps := rowPoints
	if rows <= ps[0].rows {
		return ps[0].share * max(rows, 1) / ps[0].rows
	}
	for i := 1; i < len(ps); i++ {
		if rows <= ps[i].rows {
			a, b := ps[i-1], ps[i]
			return a.share + (b.share-a.share)*(rows-a.rows)/(b.rows-a.rows)
		}
	}
	return ps[len(ps)-1].share
}

// burst is the disk's rate while it is asked for less than it sustains.
func (m *Machine) burst() float64 { return max(m.Burst, m.Disk) }

// readCost is the processor seconds that a byte read costs the arithmetic beside it.
func (m *Machine) readCost() float64 {
	return (m.Engine.Read + m.Engine.Held*(1-m.Disk/m.burst())) / 1e9
}
