package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
)

// Options are the settings of a server. Zero values ask for the defaults named.
type Options struct {
	Prefix string   // put in front of every path, as in "/api"; "" is none
	Keys   []string // requests must bring one of them; none: everybody may
	CORS   CORS

	Ping    time.Duration // silence of a stream before a comment line is sent; 0: 30 s, negative: never
	Timeout time.Duration // a request that makes no progress for so long is ended; 0: an hour

	Defaults Defaults
	Chat     ChatOptions

	SaveSlots bool // the scheduler has a folder for slots
	NoSlots   bool // GET /slots answers 501
	NoPage    bool // there is no web page
	Metrics   bool // GET /metrics is answered
	Props     bool // POST /props is answered
	Embed     bool // embedding routes are answered
	Rerank    bool // rerank routes are answered

	Pooling *engine.Pooling // how vectors of tokens become a text's; nil: as the model's file says

	Shift bool // a full context gives up a part and goes on, instead of ending the answer

	SuffixFirst bool // POST /infill puts the suffix before the prefix

	MaxRequests int   // completions that wait for a slot; 0: 512
	MaxBodies   int64 // bytes that all bodies held may take; 0: 256 MiB
	MaxBody     int64 // bytes of one body; 0: 64 MiB, at most MaxBodies
	MaxConns    int   // connections; 0: 1024
	MaxGrammars int64 // bytes of compiled grammars, those that are kept and what those at work learn; 0: 64 MiB

	OnReady func(m *Model) // called once requests are answered; may be nil

	Build string       // version, for build_info and fingerprints
	Log   *slog.Logger // nil: silent
}

// CORS says which web pages of other origins may read replies.
type CORS struct {
	Origins       []string // allowed ones, or "*"; none: every origin is, echoed
	Methods       string   // of a preflight's reply; "": GET, POST, DELETE, OPTIONS
	Headers       string   // "": *
	NoCredentials bool
}

// ChatOptions are what chat requests leave open.
type ChatOptions struct {
	Kwargs    json.RawMessage      // further template variables, a JSON object
	Reasoning chat.ReasoningFormat // where thoughts go
	NoThink   bool                 // ask the template for no thinking
	Budget    *int                 // tokens of thinking before its end is forced, -1: no limit; nil: -1
}

// Server answers requests, at first that the model is loading, then by the model. It is an http.Handler.
type Server struct {
	opt     Options
	log     *slog.Logger
	keys    [][sha256.Size]byte
	exact   map[string][]*route // by path
	under   map[string][]*route // by path without its last segment
	gate    gate
	watched watched
	scrape  scrape
	model   atomic.Pointer[Model]
	born    time.Time
	life    context.Context // ends when running requests shall
	kill    context.CancelFunc
}

// New makes a server without a model. It refuses options that contradict each other.
func New(o Options) (*Server, error) {
	if o.Prefix != "" && (!strings.HasPrefix(o.Prefix, "/") || strings.HasSuffix(o.Prefix, "/")) {
		return nil, fmt.Errorf("API prefix is %q, want a path that begins with a slash and does not end with one", o.Prefix)
	}
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Ping == 0 {
		o.Ping = 30 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = time.Hour
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 512
	}
	if o.MaxConns == 0 {
		o.MaxConns = 1024
	}
	def(&o.MaxBodies, 256<<20)
	def(&o.MaxBody, 64<<20)
	def(&o.MaxGrammars, 64<<20)
	o.MaxBody = min(o.MaxBody, o.MaxBodies)
	if o.Build == "" {
		o.Build = "development"
	}
	if o.MaxRequests < 0 || o.MaxConns < 0 || o.MaxBody < 0 || o.MaxGrammars < 0 || o.Timeout < 0 {
		return nil, fmt.Errorf("limits are %d requests, %d connections, %d bytes and %s, none may be negative", o.MaxRequests, o.MaxConns, o.MaxBody, o.Timeout)
	}
	s := &Server{opt: o, log: o.Log, exact: map[string][]*route{}, under: map[string][]*route{}, born: time.Now()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, k := range o.Keys {
		if k == "" {
			return nil, errors.New("an API key is empty")
		}
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	if o.Defaults.Sample.RepeatPenalty == 0 { // no such setting works: nothing was set
		s.opt.Defaults.Sample = sample.Defaults(1)
	}
	s.watched.jobs = map[string][]*job{}
	s.gate.most, s.gate.mostB = o.MaxRequests, o.MaxBodies
	s.life, s.kill = context.WithCancel(context.Background())
	s.routes()
	return s, nil
}

// Ready gives the server its model; from then on requests are answered. It fails on a model whose metadata are not what
// routes have to tell.
func (s *Server) Ready(m *Model) error {
	if err := m.complete(); err != nil {
		return err
	}
	m.limits.most, m.limits.slots = s.opt.MaxGrammars, m.Slots
	s.gate.raise(m.Slots)
	s.model.Store(m)
	return nil
}

// shutdownGrace is how long replies may take to end once all work is cancelled.
const shutdownGrace = 5 * time.Second

// Serve answers on ln, from the start, while load opens the model. It returns when ctx ends, after running requests were
// cancelled and told so, or with the error of load or of the listener. The model stays the caller's to close.
func (s *Server) Serve(ctx context.Context, ln net.Listener, load func(context.Context) (*Model, error)) error {
	h := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if len(s.keys) == 0 {
		s.log.Warn("no API key is set: whoever reaches the address may use the model", "address", ln.Addr().String())
	}
	failed := make(chan error, 2)
	go func() { failed <- h.Serve(limit(ln, s.opt.MaxConns)) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		m, err := load(ctx)
		if err == nil {
			err = s.Ready(m)
		}
		if err != nil {
			failed <- err
		} else if s.opt.OnReady != nil {
			s.opt.OnReady(m)
		}
	}()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.gate.close()
	s.kill()
	cancel(errClosing)
	<-loaded
	grace, stop := context.WithTimeout(context.Background(), shutdownGrace)
	defer stop()
	if h.Shutdown(grace) != nil {
		h.Close()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends all running requests, for a server that is used as a handler alone.
func (s *Server) Close() {
	s.gate.close()
	s.kill()
}

// routes fills the routing table.
func (s *Server) routes() {
	s.both("GET", "/health", s.health, openRoute, earlyRoute)
	s.both("GET", "/models", models)
	s.add("GET", "/props", props)
	s.add("POST", "/props", setProps, steerRoute)
	s.add("GET", "/slots", slots)
	s.add("POST", "/slots/{id}", slotAction, steerRoute)
	s.add("POST", "/completion", completion, inferRoute)
	s.add("POST", "/completions", completion, inferRoute)
	s.add("POST", "/v1/completions", openaiCompletion, inferRoute)
	s.both("POST", "/chat/completions", chatCompletions, inferRoute)
	s.both("POST", "/chat/completions/input_tokens", inputTokens)
	s.both("POST", "/chat/completions/control", control)
	s.add("POST", "/apply-template", applyTemplate)
	s.add("POST", "/tokenize", tokenize)
	s.add("POST", "/detokenize", detokenize)
	s.add("GET", "/lora-adapters", adapters)
	s.add("POST", "/lora-adapters", setAdapters, steerRoute)
	s.wireRoutes()
	s.pageRoutes()
}

func (s *Server) health(c *call) error {
	if c.m == nil {
		return unavailable(5, "Loading model")
	}
	v := map[string]any{"status": "ok"}
	if w := c.m.Engine.Health(); w != "" {
		v["degraded"] = w
	}
	if z := c.m.Engine.Stalls().Now; z != nil { // no key is needed here: what waits for what is in the log
		v["stalled"] = map[string]any{"seconds": int(time.Since(z.Since).Seconds()), "requests": z.Requests}
	}
	return c.json(v)
}
