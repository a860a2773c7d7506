package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/tiers"
)

// Tiers is where a model's experts are, how they were found and what that cost.
type Tiers struct {
	Layers    []tiers.LayerStats // one a layer; empty for a model without experts
	Cache     tiers.Stats        // since the start
	Recent    Recent
	Budget    Budget
	Start     int64 // Budget.RAM at the start
	Governor  Governor
	Predictor string // who guesses; "" where nobody does
	Ignored   string // why not a better one
	Lookahead int    // most layers ahead
	Auto      bool   // the depth changes while it runs
	Limit     Limit
	VRAM      *VRAM // nil: there is no graphics card
}

// VRAM is what a graphics card holds.
type VRAM struct {
	Device  string
	Lost    string // why it is not there now; "": it is
	Unified bool   // its memory is the machine's: experts are computed where they lie in RAM
	Layers  int    // of the model that it computes

	Experts              int
	ExpertBytes          int64 // of these, without alignment
	SegmentBytes, Target int64 // memory for experts that there is, and may be
	Segments             int
	Hits, Swaps, Shrinks int64
	Uploaded             int64 // bytes of experts, since the start
	Copied               int64 // experts copied although the memory is one

	Budget, Held, Offer, Least, Full int64 // of its memory in all: asked for (0: what it offers), taken, offered, the least, and with every expert

	Kept      []int   // experts by layer
	LayerHits []int64 // found there, by layer
}

// Recent is the last work that was done, about ten seconds of it at most.
type Recent struct {
	Ended  time.Duration // ago
	Busy   time.Duration // time in passes over the layers
	Passes int64         // a decode step or a piece of a prompt is one
	Rows   int64         // tokens in them
	Cache  tiers.Stats   // counters of this time; what is not a counter is as now
}

// LimitCode names what held the recent work back.
type LimitCode string

// The codes. LimitProcessor is memory or compute where the machine's rates are not measured yet.
const (
	LimitIdle      LimitCode = "idle" // nothing ran for some seconds
	LimitDisk      LimitCode = "disk"
	LimitMemory    LimitCode = "memory"
	LimitCompute   LimitCode = "compute"
	LimitProcessor LimitCode = "processor"
)

// Limit is what held the recent work back: the disk, when layers waited for reads for at least half of the time.
type Limit struct {
	Code    LimitCode
	Words   string
	Waiting float64    // share of the busy time in which layers waited for reads
	Terms   BoundTerms // least milliseconds a token; zero where they are not known
}

// ErrWatchers is wrapped when as many watch as may.
var ErrWatchers = errors.New("too many watchers")

const (
	maxWatchers  = 16
	watchEvery   = 100 * time.Millisecond // between two changes that a watcher gets
	watchPatient = 250 * time.Millisecond // without a pass, before a watcher looks by itself

	passGap     = 2 * time.Second // two layers farther apart are not of one piece of work
	sampleEvery = time.Second
	sampleRing  = 10
	sampleOld   = 12 * time.Second
)

// monitor sees what the routers choose, for those who ask what the engine does. On the way of a token it counts and, ten
// times a second at most while somebody watches, copies; it allocates nothing there.
type monitor struct {
	cache *tiers.Cache
	first []int32 // number of each layer's first expert, counted through the model; at the end the count of all
	topK  int

	mu     sync.Mutex
	used   []uint32 // rows that chose each expert, modulo 2^32
	last   int      // layer of the latest choice, -1 before the first
	lastAt time.Time
	busy   time.Duration
	passes int64
	rows   int64
	ring   [sampleRing]moment // the latest of each second of work
	ringed int
	due    bool // a watcher waits for the end of a pass

	kept     func(dst []uint64) []uint64 // keys of the experts that a device keeps; nil: there is none
	watchers map[*Watcher]struct{}
	view     view
}

// moment is the counters at one time.
type moment struct {
	at           time.Time
	busy         time.Duration
	passes, rows int64
	cache        tiers.Stats
}

// view is the monitor's state at the end of a pass, for watchers.
type view struct {
	mu           sync.Mutex
	at           time.Time
	passes, rows int64
	used         []uint32
	places       []byte
}

func newMonitor(c *tiers.Cache, table [][]tiers.Desc, topK int) *monitor {
	m := &monitor{cache: c, topK: topK, last: -1, watchers: map[*Watcher]struct{}{}}
	n := int32(0)
	for _, l := range table {
		m.first = append(m.first, n)
		n += int32(len(l))
	}
	m.first = append(m.first, n)
	m.used = make([]uint32, n)
	m.view.used, m.view.places = make([]uint32, n), make([]byte, n)
	return m
}

// routed counts a layer's choices, rows x top-k. A layer that does not come after the one before begins another pass.
func (m *monitor) routed(layer int, choices []int32) {
	now := fault.Now()
	m.mu.Lock()
	if gap := now.Sub(m.lastAt); gap < passGap {
		m.busy += gap
	}
	m.lastAt = now
	if layer <= m.last || m.passes == 0 {
		if m.due && now.Sub(m.view.at) >= watchEvery {
			m.publish(now)
		}
		if m.ringed == 0 || now.Sub(m.ring[(m.ringed-1)%sampleRing].at) >= sampleEvery {
			m.ring[m.ringed%sampleRing] = m.sample(now)
			m.ringed++
		}
		m.passes++
		m.rows += int64(len(choices) / m.topK)
	}
	m.last = layer
	used := m.used[m.first[layer]:m.first[layer+1]]
	for _, e := range choices {
		used[e]++
	}
	m.mu.Unlock()
}

// sample is called with the lock held.
func (m *monitor) sample(now time.Time) moment {
	return moment{at: now, busy: m.busy, passes: m.passes, rows: m.rows, cache: m.cache.Counters()}
}

// publish copies the state for the watchers and wakes them. It is called with the lock held.
func (m *monitor) publish(now time.Time) {
	m.due = false
	v := &m.view
	v.mu.Lock()
	v.at, v.passes, v.rows = now, m.passes, m.rows
	copy(v.used, m.used)
	m.places(v.places)
	v.mu.Unlock()
	for w := range m.watchers {
		select {
		case w.wake <- struct{}{}:
		default: // awake already
		}
	}
}

// places writes where each expert is.
func (m *monitor) places(dst []byte) {
	m.cache.Places(dst)
	if m.kept == nil {
		return
	}
	for _, key := range m.kept(nil) {
		dst[int(m.first[key>>32])+int(uint32(key))-1] |= tiers.PlaceDevice
	}
}

// recent is what was done lately.
func (m *monitor) recent() Recent {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.sample(fault.Now())
	var old moment
	for i := max(0, m.ringed-sampleRing); i < m.ringed; i++ {
		if s := &m.ring[i%sampleRing]; m.lastAt.Sub(s.at) < sampleOld && s.rows < m.rows {
			old = *s
			break
		}
	}
	r := Recent{Busy: now.busy - old.busy, Passes: now.passes - old.passes, Rows: now.rows - old.rows, Cache: now.cache.Since(old.cache)}
	if !m.lastAt.IsZero() {
		r.Ended = now.at.Sub(m.lastAt)
	}
	return r
}

// Tiers is a snapshot; it takes the cache's lock for some ten microseconds.
func (e *Engine) Tiers() Tiers {
	gov, b := e.gov.snapshot()
	t := Tiers{Budget: b, Start: e.gov.plan.RAM, Governor: gov, Predictor: e.guesser.name, Ignored: e.guesser.ignored, Lookahead: e.opt.Lookahead, Auto: e.opt.auto}
	t.VRAM = e.vram()
	if e.cache == nil {
		t.Limit = Limit{Code: LimitIdle, Words: "the model has no routed experts: nothing is read while it runs"}
		return t
	}
	t.Layers = e.cache.Layers(nil)
	t.Cache = e.cache.Stats()
	t.Recent = e.mon.recent()
	t.Limit = e.limit(&t.Recent)
	return t
}

// limitIdle is the silence after which the recent work is the past.
const limitIdle = 3 * time.Second

// limit judges the recent work.
func (e *Engine) limit(r *Recent) Limit {
	if r.Rows == 0 || r.Busy <= 0 {
		return Limit{Code: LimitIdle, Words: "nothing has run yet"}
	}
	c := &r.Cache
	l := Limit{Waiting: min(c.Blocked.Seconds()/r.Busy.Seconds(), 1)}
	rows := float64(r.Rows)
	if rate := c.BytesPerSecond(); rate > 0 {
		l.Terms.DiskMS = (float64(c.MissBytes) + float64(c.InFlight)*float64(e.cache.MeanBytes())) / rate / rows * 1e3
	}
	measured := e.measured.Load()
	if measured != nil {
		var dense, row float64
		for _, t := range e.denseTraffic() {
			dense += float64(t.bytes)
		}
		for _, t := range e.tokenTraffic() {
			if k := measured.kernel[t.typ]; k > 0 {
				row += float64(t.bytes) / k
			}
		}
		l.Terms.MemoryMS = (float64(r.Passes)*dense + float64(c.Touches)*float64(e.cache.MeanBytes())) / measured.memory / rows * 1e3
		l.Terms.ComputeMS = row * 1e3
	}
	percent := int(l.Waiting*100 + 0.5)
	switch {
	case r.Ended >= limitIdle:
		l.Code, l.Words = LimitIdle, fmt.Sprintf("nothing has run for %d seconds", int(r.Ended.Seconds()))
	case l.Waiting >= 0.5:
		l.Code, l.Words = LimitDisk, fmt.Sprintf("the disk: layers wait for experts to be read in %d %% of the time", percent)
	case measured == nil:
		l.Code, l.Words = LimitProcessor, fmt.Sprintf("the processor and its memory: layers wait for reads in %d %% of the time only", percent)
	case l.Terms.MemoryMS > l.Terms.ComputeMS:
		l.Code, l.Words = LimitMemory, fmt.Sprintf("memory bandwidth: weights are read from RAM, layers wait for the disk in %d %% of the time", percent)
	default:
		l.Code, l.Words = LimitCompute, fmt.Sprintf("arithmetic: the kernels take longer than the memory, layers wait for the disk in %d %% of the time", percent)
	}
	return l
}

// MeasureRates measures what the machine's memory and kernels can do (some tens of milliseconds on all threads), so that
// Tiers can tell them apart. Nothing should run meanwhile.
func (e *Engine) MeasureRates() {
	r := e.rates()
	e.measured.Store(&r)
}

// Experts writes the place of each expert (tiers.State and flags) and how often a visit of its layer used it of late, layer
// after layer. Both are nil for a model without experts.
func (e *Engine) Experts() (places []byte, uses []float32) {
	if e.cache == nil {
		return nil, nil
	}
	places, uses = make([]byte, e.cache.Count()), make([]float32, e.cache.Count())
	e.mon.places(places)
	e.cache.Uses(uses)
	return places, uses
}
