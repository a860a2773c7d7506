package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
)

// route is an entry of the routing table.
type route struct {
	method, path string
	handle       handler
	open         bool // needs no key
	early        bool // answers while the model loads
	infer        bool // wants a slot: counts against the queue
	steer        bool // changes the server's state: without a key only for this machine and no foreign web page
	anthropic    bool // errors have Anthropic's shape
}

// routeOption sets a property of a route.
type routeOption func(*route)

func openRoute(r *route)  { r.open = true }
func earlyRoute(r *route) { r.early = true }
func inferRoute(r *route) { r.infer = true }
func steerRoute(r *route) { r.steer = true }
func anthropic(r *route)  { r.anthropic = true }

// add puts a route into the table, under the server's prefix. A path may hold one {id}, as a whole segment at its end.
func (s *Server) add(method, path string, h handler, opts ...routeOption) {
	rt := &route{method: method, path: path, handle: h}
	for _, o := range opts {
		o(rt)
	}
	key, pattern := strings.CutSuffix(s.opt.Prefix+path, "/{id}")
	table := s.exact
	if pattern {
		table = s.under
	}
	for _, old := range table[key] {
		if old.method == method {
			panic(fmt.Sprintf("server: two routes for %s %s", method, path))
		}
	}
	table[key] = append(table[key], rt)
}

// both adds a route under /v1 and without it.
func (s *Server) both(method, path string, h handler, opts ...routeOption) {
	s.add(method, "/v1"+path, h, opts...)
	s.add(method, path, h, opts...)
}

// find looks a request up; nil if there is no such route.
func (s *Server) find(method, path string) (rt *route, id string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for _, r := range s.exact[path] {
		if r.method == method {
			return r, ""
		}
	}
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		for _, r := range s.under[path[:i]] {
			if r.method == method {
				return r, path[i+1:]
			}
		}
	}
	return nil, ""
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Server", "terrace")
	s.cors(h, r)
	if r.Method == http.MethodOptions {
		s.preflight(h)
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return
	}
	rt, id := s.find(r.Method, r.URL.Path)
	if rt == nil {
		rt = &route{path: r.URL.Path, handle: func(*call) error { return errNotFound }, open: len(s.keys) == 0, early: true}
	}
	c := &call{s: s, w: w, r: r, rc: http.NewResponseController(w), route: rt, id: id}
	c.ctx, c.cancel = context.WithCancelCause(r.Context())
	defer c.cancel(nil)
	stop := context.AfterFunc(s.life, func() { c.cancel(errClosing) })
	defer stop()
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("a handler panicked", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			c.finish(&failure{code: http.StatusInternalServerError, kind: "server_error", message: "internal error"})
		}
		if c.held > 0 {
			s.gate.shrink(c.held)
		}
	}()
	c.finish(c.run())
}

// run checks what all routes check, reads the body and calls the handler.
func (c *call) run() error {
	s, rt := c.s, c.route
	if !rt.open && !s.allowed(c.r.Header) {
		return errNoKey
	}
	if rt.steer && len(s.keys) == 0 {
		if err := localOnly(c.r); err != nil {
			return err
		}
	}
	c.m = s.model.Load()
	if c.m == nil && !rt.early {
		return unavailable(5, "Loading model")
	}
	if rt.infer {
		if err := s.gate.enter(1); err != nil {
			return err
		}
		defer s.gate.leave(1)
	}
	if c.r.Method == http.MethodPost {
		if err := c.readBody(); err != nil {
			return err
		}
	}
	return rt.handle(c)
}

// allowed looks for a key. All keys are compared, each in constant time, by their hashes, so that no length shows either.
func (s *Server) allowed(h http.Header) bool {
	if len(s.keys) == 0 {
		return true
	}
	given := h.Get("Authorization")
	if given != "" {
		given = strings.TrimPrefix(given, "Bearer ")
	} else {
		given = h.Get("X-Api-Key")
	}
	sum, ok := sha256.Sum256([]byte(given)), 0
	for i := range s.keys {
		ok |= subtle.ConstantTimeCompare(sum[:], s.keys[i][:])
	}
	return ok == 1
}

// localOnly refuses a request that a web page of another origin may have made, or that came by a name which is not this
// machine's own: a name that an attacker points at 127.0.0.1 would make any page same-origin.
func localOnly(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if ip := net.ParseIP(host); !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
		return forbidden("without an API key this route answers only requests to localhost, not to %.80q", r.Host)
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return nil
	}
	u, err := url.Parse(origins[0])
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	if len(origins) > 1 || err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
		return forbidden("without an API key this route answers no web page of another origin (%.80q)", origins[0])
	}
	return nil
}

// cors sets the headers by which a browser lets a page of another origin read the reply.
func (s *Server) cors(h http.Header, r *http.Request) {
	origin := r.Header.Get("Origin")
	switch list := s.opt.CORS.Origins; {
	case len(list) == 0:
		if origin != "" {
			h.Set("Access-Control-Allow-Origin", origin)
		}
	case slices.Contains(list, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	case origin != "" && slices.Contains(list, origin):
		h.Set("Access-Control-Allow-Origin", origin)
	}
	h.Add("Vary", "Origin")
	if !s.opt.CORS.NoCredentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
}

func (s *Server) preflight(h http.Header) {
	methods, headers := s.opt.CORS.Methods, s.opt.CORS.Headers
	if methods == "" {
		methods = "GET, POST, DELETE, OPTIONS"
	}
	if headers == "" {
		headers = "*"
	}
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", headers)
}
