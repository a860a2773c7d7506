package bench

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"terrace/engine"
)

// LoadConfig puts an HTTP endpoint of Terrace's under load: many clients at once, some of which leave in the middle of their
// answers, with requests among them that no server can answer. What is asked is greedy, and every answer is compared with the one
// that a single client had got before.
//
// The endpoint is a process with GET /metrics on. One that saves slots (--slot-save-path) has them emptied at the end.
type LoadConfig struct {
	URL, Key string
	Clients  int
	Duration time.Duration
	Leave    float64 // share of the clients that may leave before their answers end
	Bad      float64 // share of the requests that are refused by a correct server, or whose connection breaks
	Cases    int     // different questions
	Predict  int     // tokens of an answer at most
	Seed     uint64
	Every    time.Duration // between two looks at the server
	Label    string
	Resize   time.Duration // between two changes of the server's RAM budget; 0: it stays
	Progress func(line string)

	minute func(SoakMinute) // told the minutes as they end; nil: nobody is
}

func (c *LoadConfig) check() error {
	share := func(v float64) bool { return v >= 0 && v <= 1 }
	if c.Clients < 1 || c.Duration <= 0 || c.Cases < 1 || c.Predict < 1 || c.Every <= 0 || !share(c.Leave) || !share(c.Bad) {
		return fmt.Errorf("%w: %d clients, %s, %d cases of %d tokens, a look every %s, shares %g and %g: want at least 1, more than 0 and shares from 0 to 1", engine.ErrUsage,
			c.Clients, c.Duration, c.Cases, c.Predict, c.Every, c.Leave, c.Bad)
	}
	if !strings.HasPrefix(c.URL, "http://") && !strings.HasPrefix(c.URL, "https://") {
		return fmt.Errorf("%w: the endpoint is %q, want a URL", engine.ErrUsage, c.URL)
	}
	return nil
}

// LoadReport is what `bench load` prints.
type LoadReport struct {
	Machine Machine  `json:"machine"`
	Commit  string   `json:"commit"`
	Model   string   `json:"model"`
	Label   string   `json:"label"`
	Clients int      `json:"clients"`
	Slots   int      `json:"slots"`
	Context int      `json:"n_ctx"`
	Seconds float64  `json:"seconds"`
	Leave   float64  `json:"leaving_share"`
	Load    string   `json:"load_average"`
	Server  []string `json:"server_flags"` // where the program started it

	Kinds []LoadKind `json:"kinds"`
	All   LoadKind   `json:"all"`
	Bad   LoadBad    `json:"bad_requests"`

	PredictedPerSecond float64 `json:"predicted_per_second"` // of the server, whoever it was for
	PromptPerSecond    float64 `json:"prompt_per_second"`    // evaluated
	CachedShare        float64 `json:"cached_share"`         // of the tokens of prompts
	Postponed          int64   `json:"postponed"`            // tasks that gave up their slots for want of memory

	Start   LoadSample   `json:"start"`   // idle, before the load
	End     LoadSample   `json:"end"`     // idle, after it
	Emptied *LoadSample  `json:"emptied"` // with its slots erased; null where it does not save slots
	Samples []LoadSample `json:"samples"`
	Idle    float64      `json:"idle_after_ms"` // from the last client's end to the end of the server's work

	// Growth of what the server held in RAM, its prompt cache and its slots for experts not counted, over the second half of the time.
	SlopeMiB float64 `json:"rss_slope_mib_per_minute"`
	GrownMiB float64 `json:"rss_grown_mib"`

	Problems []string `json:"problems"` // none: all is as it must be
}

// LoadKind is what became of the requests of one kind.
type LoadKind struct {
	Kind      string  `json:"kind"`
	Requests  int     `json:"requests"`
	Same      int     `json:"same_answers"`
	Wrong     int     `json:"wrong_answers"`
	Cancelled int     `json:"cancelled"` // the client left
	Refused   int     `json:"refused"`   // 503
	Errors    int     `json:"errors"`
	TTFT50    float64 `json:"ttft_p50_ms"` // of streams
	TTFT99    float64 `json:"ttft_p99_ms"`
	Whole50   float64 `json:"whole_p50_ms"` // of answers that came to their end
	Whole99   float64 `json:"whole_p99_ms"`

	ttft, whole []float64
}

// LoadBad is what became of requests that a correct server refuses.
type LoadBad struct {
	Requests int `json:"requests"`
	Refused  int `json:"refused"`
	Broken   int `json:"broken_off"` // by the client, within a body
	Wrong    int `json:"wrong"`      // any other answer
}

// loader is a load at work.
type loader struct {
	c       *LoadConfig
	http    *http.Client
	cases   []*loadCase
	bad     []badRequest
	rep     *LoadReport
	mu      sync.Mutex // of what follows
	kinds   map[string]*LoadKind
	faults  map[string]int
	samples []LoadSample
	typical time.Duration // of an answer under load, for the moments at which clients leave
	fresh   atomic.Int64  // schemas that were never seen before
	resizes atomic.Int64  // of the server's budget
	told    minutes
}

// faultsKept is how many different faults a report tells.
const faultsKept = 20

func (l *loader) fault(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := fmt.Sprintf(format, a...)
	if _, ok := l.faults[s]; ok || len(l.faults) < faultsKept {
		l.faults[s]++
	}
}

func (l *loader) say(format string, a ...any) {
	if l.c.Progress != nil {
		l.c.Progress(fmt.Sprintf(format, a...))
	}
}

// Load measures. An error means that it could not; what the server did wrong is in the report.
func Load(ctx context.Context, c LoadConfig) (*LoadReport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.URL = strings.TrimSuffix(c.URL, "/")
	tr := &http.Transport{MaxIdleConnsPerHost: c.Clients + 4, DisableCompression: true}
	defer tr.CloseIdleConnections()
	l := &loader{c: &c, http: &http.Client{Transport: tr}, kinds: map[string]*LoadKind{}, faults: map[string]int{}, typical: time.Second}
	l.rep = &LoadReport{Machine: ThisMachine(), Commit: Commit(), Label: c.Label, Clients: c.Clients, Leave: c.Leave}
	if err := l.meet(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := l.alone(ctx); err != nil {
		return nil, err
	}
	l.say("%d questions asked alone in %s", len(l.cases), time.Since(start).Round(time.Millisecond))
	tr.CloseIdleConnections()
	var err error
	if l.rep.Start, err = l.idle(ctx); err != nil {
		return nil, err
	}
	l.run(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	tr.CloseIdleConnections()
	ended := time.Now()
	if l.rep.End, err = l.idle(ctx); err != nil {
		return nil, err
	}
	l.rep.Idle = float64(time.Since(ended)) / float64(time.Millisecond)
	for _, k := range l.cases { // the server is as good as before
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if got, err := l.ask(ctx, k, nil, false); err != nil {
			l.fault("asked alone after the load: %v", err)
		} else if d := k.want.differs(got); d != "" {
			l.fault("asked alone after the load, %s %d: %s", k.kind, k.n, d)
		}
	}
	if err := l.empty(ctx); err != nil {
		return nil, err
	}
	l.judge()
	return l.rep, nil
}

// run lets the clients work for the time.
func (l *loader) run(ctx context.Context) {
	c := l.c
	start := time.Now()
	until := start.Add(c.Duration)
	looks, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(looks, start) })
	if c.Resize > 0 {
		watching.Go(func() { l.resize(looks) })
	}
	var clients sync.WaitGroup
	for i := range c.Clients {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(c.Seed+1, uint64(i)))
			leaves := float64(i) < c.Leave*float64(c.Clients)
			for time.Now().Before(until) && ctx.Err() == nil {
				switch {
				case r.Float64() < c.Bad:
					l.sendBad(ctx, r)
				case r.IntN(16) == 0:
					l.sendFresh(ctx, r)
				default:
					l.sendCase(ctx, r, leaves)
				}
			}
		})
	}
	clients.Wait()
	l.rep.Seconds = time.Since(start).Seconds()
	stop()
	watching.Wait()
	l.rep.Load = LoadAverage()
}

// sendCase asks a question whose answer is known.
func (l *loader) sendCase(ctx context.Context, r *rand.Rand, leaves bool) {
	k := l.cases[r.IntN(len(l.cases))]
	var leave *leaving
	if leaves {
		l.mu.Lock()
		typical := l.typical
		l.mu.Unlock()
		leave = &leaving{events: -1, after: time.Duration(r.Float64() * 1.3 * float64(typical))}
		if k.stream && r.IntN(2) == 0 {
			leave.events, leave.after = r.IntN(l.c.Predict+4), time.Hour
		}
	}
	start := time.Now()
	got, err := l.ask(ctx, k, leave, true)
	took := time.Since(start)
	if ctx.Err() != nil {
		return
	}
	differs := ""
	if err == nil {
		differs = k.want.differs(got)
	}
	l.mu.Lock()
	x := l.kinds[k.kind]
	x.Requests++
	refused := false
	switch {
	case err == errLeft:
		x.Cancelled++
	case isRefusal(err):
		x.Refused++
		refused = true
	case err != nil:
		x.Errors++
	case differs != "":
		x.Wrong++
	default:
		x.Same++
		x.whole = append(x.whole, took.Seconds()*1e3)
		l.typical += (took - l.typical) / 16
	}
	if got.first > 0 {
		x.ttft = append(x.ttft, got.first.Seconds()*1e3)
	}
	l.mu.Unlock()
	switch {
	case differs != "":
		l.fault("%s %d: %s", k.kind, k.n, differs)
	case err != nil && err != errLeft && !refused:
		l.fault("%s: %v", k.kind, err)
	case refused: // as the server asks, about
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// judge makes the figures and the list of what is not as it must be.
func (l *loader) judge() {
	r := l.rep
	add := func(format string, a ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, a...)) }
	r.All.Kind = "all"
	for _, name := range loadKinds {
		x := l.kinds[name]
		if x == nil {
			continue
		}
		a := &r.All
		a.Requests, a.Same, a.Wrong, a.Cancelled, a.Refused, a.Errors = a.Requests+x.Requests, a.Same+x.Same, a.Wrong+x.Wrong, a.Cancelled+x.Cancelled, a.Refused+x.Refused, a.Errors+x.Errors
		a.ttft, a.whole = append(a.ttft, x.ttft...), append(a.whole, x.whole...)
		x.figures()
		r.Kinds = append(r.Kinds, *x)
	}
	r.All.figures()
	r.Samples = l.samples
	predicted, prompt, cached := r.End.predicted-r.Start.predicted, r.End.prompt-r.Start.prompt, r.End.cached-r.Start.cached
	if r.Seconds > 0 {
		r.PredictedPerSecond, r.PromptPerSecond = predicted/r.Seconds, prompt/r.Seconds
	}
	if prompt+cached > 0 {
		r.CachedShare = cached / (prompt + cached)
	}
	r.Postponed = int64(r.End.postponed - r.Start.postponed)
	minutes, slope := growth(r.Samples)
	r.SlopeMiB, r.GrownMiB = slope/(1<<20), slope*minutes/(1<<20)

	if r.All.Wrong > 0 || r.All.Errors > 0 || r.Bad.Wrong > 0 {
		add("%d answers differ from those of a single client, %d requests failed, %d bad ones were answered in another way than they must be", r.All.Wrong, r.All.Errors, r.Bad.Wrong)
	}
	if r.All.Same == 0 {
		add("no answer came to its end")
	}
	for _, s := range slices.Sorted(maps.Keys(l.faults)) {
		add("%d times: %s", l.faults[s], s)
	}
	e := &r.End
	if e.Processing+e.Deferred+e.Inside > 0 || e.Bodies > 0 {
		add("after the load %d slots are busy, %d requests wait, %d are inside and %d bytes of bodies are held", e.Processing, e.Deferred, e.Inside, e.Bodies)
	}
	if e.Leases > 0 {
		add("after the load %d experts are lent", e.Leases)
	}
	if e.Goroutines > r.Start.Goroutines+goroutinesMore {
		add("%d goroutines before the load, %d after it", r.Start.Goroutines, e.Goroutines)
	}
	if e.Files > r.Start.Files+filesMore {
		add("%d open files before the load, %d after it", r.Start.Files, e.Files)
	}
	if x := r.Emptied; x != nil && x.Pages > 0 {
		add("with all slots erased %d of %d pages of context are taken", x.Pages, x.PagesMost)
	}
	if most := max(32, 0.05*float64(e.RSS)/(1<<20)); r.GrownMiB > most {
		add("what is held in RAM beside prompt cache and experts grew by %.1f MiB in the second half of the time, %.1f are allowed", r.GrownMiB, most)
	}
}

// goroutinesMore and filesMore are for the connection of the last look, which was not there at the first or is a new one.
const (
	goroutinesMore = 4
	filesMore      = 4
)

func (k *LoadKind) figures() {
	k.TTFT50, k.TTFT99 = quantile(k.ttft, 0.5), quantile(k.ttft, 0.99)
	k.Whole50, k.Whole99 = quantile(k.whole, 0.5), quantile(k.whole, 0.99)
}

// quantile is the smallest of v that at least the share q of them do not exceed; 0 of none.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	at := int(q*float64(len(s)) + 0.999999)
	return s[min(max(at-1, 0), len(s)-1)]
}

// growth fits a line to what was held over the second half of the samples: the minutes, and the bytes a minute.
func growth(all []LoadSample) (minutes, slope float64) {
	s := all[len(all)/2:]
	if len(s) < 3 {
		return 0, 0
	}
	var n, x, y, xx, xy float64
	for i := range s {
		at, held := s[i].Seconds/60, float64(s[i].held())
		n, x, y, xx, xy = n+1, x+at, y+held, xx+at*at, xy+at*held
	}
	d := n*xx - x*x
	if d <= 0 {
		return 0, 0
	}
	return (s[len(s)-1].Seconds - s[0].Seconds) / 60, (n*xy - x*y) / d
}
