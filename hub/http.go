package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxRedirects = 10
	maxTries     = 8 // failures in a row without a byte in between
	firstWait    = 200 * time.Millisecond
	longestWait  = 30 * time.Second
	patience     = 10 * time.Minute // the longest Retry-After that is waited for
)

var (
	errStalled    = errors.New("the connection was silent for too long")
	errWrongRange = errors.New("the server answered another range than was asked for")
	errChanged    = errors.New("the file changed on the server meanwhile")
	errNoRanges   = errors.New("the server gives no ranges of the file")
)

// statusError is an answer that is none.
type statusError struct {
	url   string
	code  int
	after time.Duration // to wait before the next try; 0: not said
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("%s: the server answers %d %s", e.url, e.code, http.StatusText(e.code))
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		s += " (a private or gated repository wants a token: HF_TOKEN)"
	case http.StatusNotFound:
		s += " (no such repository, revision or file)"
	}
	return s
}

func (e *statusError) Unwrap() error {
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrDenied
	case http.StatusNotFound, http.StatusGone:
		return ErrNotFound
	}
	return nil
}

// lasting says whether another try would be of no use.
func lasting(err error) bool {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.code < 500 && s.code != http.StatusTooManyRequests && s.code != http.StatusRequestTimeout || s.code == http.StatusNotImplemented
	}
	l, ok := errors.AsType[*lastingError](err)
	return ok && l != nil || errors.Is(err, errChanged) || errors.Is(err, errNoRanges) || errors.Is(err, ErrSpace) || errors.Is(err, ErrDamaged)
}

// lastingError is one that another try would meet again.
type lastingError struct{ error }

func (e *lastingError) Unwrap() error { return e.error }

// failures counts tries that brought nothing and says how long to wait before the next.
type failures struct{ n int }

// next waits; it answers err when enough was tried.
func (f *failures) next(ctx context.Context, c *Client, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if lasting(err) {
		return err
	}
	if f.n++; f.n >= maxTries {
		return fmt.Errorf("given up after %d tries: %w", f.n, err)
	}
	wait := min(firstWait<<(f.n-1), longestWait)
	wait = wait/2 + rand.N(wait/2+1) // not all at once
	if s, ok := errors.AsType[*statusError](err); ok && s.after > 0 {
		if wait = s.after; wait > patience {
			return fmt.Errorf("%w; it asks for a pause of %v", err, s.after)
		}
	}
	c.o.Log.Info("the hub is asked again", "reason", err, "after", wait)
	return c.o.sleep(ctx, wait)
}

// answer is a response behind all redirects. Its body must be closed.
type answer struct {
	status int
	header http.Header
	linked http.Header // of the first redirect: what the hub says of a file before it sends one to its store
	length int64       // -1: not said
	body   io.ReadCloser
	url    string // where the answer came from
	moved  bool
}

// body cuts a connection that is silent for too long.
type body struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.timer.Reset(b.stall)
	if err != nil && !errors.Is(err, io.EOF) {
		err = reason(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// reason is why a request failed, without the address that net/http puts before it: it may hold a signature.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// get sends one request and follows redirects. The token goes to the endpoint only, wherever a redirect leads.
func (c *Client) get(ctx context.Context, address string, header http.Header) (*answer, error) {
	if c.o.Offline {
		panic("hub: a request of a client that is offline")
	}
	a := &answer{url: address}
	for hop := 0; ; hop++ {
		u, err := url.Parse(a.url)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
			return nil, &lastingError{fmt.Errorf("%s: leads to %s, which is no address", display(address), display(a.url))}
		}
		ctx, cancel := context.WithCancelCause(ctx)
		timer := time.AfterFunc(c.o.stall, func() { cancel(errStalled) })
		giveUp := func() { timer.Stop(); cancel(nil) }
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
		if err != nil {
			giveUp()
			return nil, &lastingError{fmt.Errorf("%s: %w", display(a.url), err)}
		}
		for k, v := range header {
			req.Header[k] = v
		}
		req.Header.Set("User-Agent", c.o.Agent)
		req.Header.Set("Accept-Encoding", "identity")
		if c.o.Token != "" && sameOrigin(u, c.origin) {
			req.Header.Set("Authorization", "Bearer "+c.o.Token)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			err = fmt.Errorf("%s: %w", display(a.url), reason(ctx, err))
			giveUp()
			return nil, err
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			to, err := resp.Location()
			resp.Body.Close()
			giveUp()
			switch {
			case err != nil:
				return nil, &lastingError{fmt.Errorf("%s: redirect without an address", display(a.url))}
			case u.Scheme == "https" && to.Scheme != "https":
				return nil, &lastingError{fmt.Errorf("%s: redirects to %s, which is not encrypted", display(a.url), display(to.String()))}
			case hop == maxRedirects:
				return nil, &lastingError{fmt.Errorf("%s: more than %d redirects", display(address), maxRedirects)}
			}
			if a.linked == nil {
				a.linked = resp.Header
			}
			a.url, a.moved = to.String(), true
			continue
		}
		a.status, a.header, a.length = resp.StatusCode, resp.Header, resp.ContentLength
		a.body = &body{resp.Body, ctx, cancel, timer, c.o.stall}
		return a, nil
	}
}

// refuse is the error of a status that is no success; it closes the answer.
func (a *answer) refuse() error {
	a.body.Close()
	e := &statusError{url: display(a.url), code: a.status}
	if s := a.header.Get("Retry-After"); s != "" {
		if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n >= 0 && n < 1<<30 {
			e.after = time.Duration(n) * time.Second
		} else if t, err := http.ParseTime(s); err == nil {
			e.after = max(0, time.Until(t))
		}
	}
	return e
}

// source is one file on a server, from which ranges are read.
type source struct {
	address string // where it is asked for
	name    string // for errors
	size    int64  // bytes; -1: not known

	mu    sync.Mutex
	store string // where the last redirect led, asked directly while that works
}

// stream is an answer to a range: a body that begins at the wanted byte.
type stream struct {
	body  io.ReadCloser
	n     int64 // bytes it has at most
	total int64 // bytes of the file; -1: not said
	etag  string
	whole bool // the server ignored the range: what came before was read and thrown away
	a     *answer
}

// open asks for the bytes [from, to) of s. It fails with errWrongRange for another range and with a lasting error when
// the file has not the size it should.
func (c *Client) open(ctx context.Context, s *source, from, to int64) (*stream, error) {
	h := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}}
	s.mu.Lock()
	address := s.address
	if s.store != "" {
		address = s.store
	}
	s.mu.Unlock()
	a, err := c.get(ctx, address, h)
	if err != nil {
		return nil, err
	}
	if address != s.address && a.status >= 400 && a.status < 500 { // a signed address has run out
		a.body.Close()
		s.mu.Lock()
		if s.store == address {
			s.store = ""
		}
		s.mu.Unlock()
		if a, err = c.get(ctx, s.address, h); err != nil {
			return nil, err
		}
	}
	st := &stream{body: a.body, n: to - from, total: -1, etag: entity(a.header), a: a}
	changed := func(total int64) error {
		a.body.Close()
		return fmt.Errorf("%s: the server's file has %d bytes, want %d: %w", s.name, total, s.size, errChanged)
	}
	switch a.status {
	case http.StatusPartialContent:
		first, last, total, ok := contentRange(a.header.Get("Content-Range"))
		if !ok || first != from || last < first || last >= to {
			a.body.Close()
			return nil, fmt.Errorf("%s: asked for bytes %d to %d, got %q: %w", s.name, from, to-1, a.header.Get("Content-Range"), errWrongRange)
		}
		if st.total = total; s.size >= 0 && total >= 0 && total != s.size {
			return nil, changed(total)
		}
		st.n = last - first + 1
	case http.StatusOK:
		if st.whole, st.total = true, a.length; s.size >= 0 && a.length >= 0 && a.length != s.size {
			return nil, changed(a.length)
		}
		if _, err := io.CopyN(io.Discard, a.body, from); err != nil {
			a.body.Close()
			return nil, fmt.Errorf("%s: %w", s.name, short(err))
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if _, _, total, ok := contentRange(a.header.Get("Content-Range")); ok && s.size >= 0 && total >= 0 && total != s.size {
			return nil, changed(total)
		}
		return nil, a.refuse()
	default:
		return nil, a.refuse()
	}
	if e := a.header.Get("Content-Encoding"); e != "" && e != "identity" {
		a.body.Close()
		return nil, &lastingError{fmt.Errorf("%s: the server sends it encoded as %q, want it as it is", s.name, e)}
	}
	if a.moved && a.url != address {
		s.mu.Lock()
		s.store = a.url
		s.mu.Unlock()
	}
	return st, nil
}

// short makes the end of a body that came too early an error of its own.
func short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the connection ended too early")
	}
	return err
}

// entity is what names the content of an answer: its ETag without quotes, else its date.
func entity(h http.Header) string {
	if e := unquote(h.Get("Etag")); e != "" {
		return e
	}
	return h.Get("Last-Modified")
}

func unquote(etag string) string { return strings.Trim(strings.TrimPrefix(etag, "W/"), `"`) }

// contentRange reads "bytes 0-9/100" and "bytes */100"; total is -1 where it is a star.
func contentRange(s string) (first, last, total int64, ok bool) {
	s, ok = strings.CutPrefix(s, "bytes ")
	span, of, ok2 := strings.Cut(s, "/")
	if !ok || !ok2 {
		return 0, 0, 0, false
	}
	num := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			ok = false
		}
		return n
	}
	if total = -1; of != "*" {
		total = num(of)
	}
	if span == "*" {
		return -1, -1, total, ok
	}
	a, b, two := strings.Cut(span, "-")
	first, last = num(a), num(b)
	return first, last, total, ok && two && (total < 0 || last < total)
}
