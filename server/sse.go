package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// writeLimit is how long one write to a client may take: a client that reads nothing for so long is gone.
const writeLimit = 30 * time.Second

// stream writes server-sent events. The reply begins with the first event or ping, so that an error before it is still a
// plain reply with its status. While nothing is sent for the ping interval, a comment line keeps the connection alive.
// Its methods may be called from several goroutines.
type stream struct {
	c     *call
	mu    sync.Mutex
	open  bool
	ended bool
	quiet bool // no more pings
	err   error
	buf   bytes.Buffer
	every time.Duration // <= 0: no pings
	timer *time.Timer
}

// stream makes the reply a stream; every is the ping interval of the request. The route's wrapper ends it.
func (c *call) stream(every time.Duration) *stream {
	s := &stream{c: c, every: every}
	s.mu.Lock() // a ping may be due at once
	if every > 0 {
		s.timer = time.AfterFunc(every, s.ping)
	}
	s.mu.Unlock()
	c.events = s
	return s
}

func (s *stream) ping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quiet {
		return
	}
	s.buf.Reset()
	s.buf.WriteString(":\n\n")
	s.flush()
}

// send writes one event, named if name is not empty, whose data is v as JSON. It flushes at once. An error means that
// nobody reads any more; it stays.
func (s *stream) send(name string, v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	if name != "" {
		s.buf.WriteString("event: ")
		s.buf.WriteString(name)
		s.buf.WriteByte('\n')
	}
	s.buf.WriteString("data: ")
	if err := encode(&s.buf, v); err != nil {
		return err
	}
	s.buf.WriteByte('\n')
	return s.flush()
}

// done writes OpenAI's last line.
func (s *stream) done() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Reset()
	s.buf.WriteString("data: [DONE]\n\n")
	return s.flush()
}

// hush stops the pings and tells whether the reply has begun.
func (s *stream) hush() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = true
	return s.open
}

// flush sends what is in buf.
func (s *stream) flush() error {
	if s.err != nil || s.ended {
		return s.err
	}
	if !s.open {
		s.open = true
		h := s.c.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		s.c.w.WriteHeader(http.StatusOK)
	}
	s.c.rc.SetWriteDeadline(time.Now().Add(writeLimit))
	if _, s.err = s.c.w.Write(s.buf.Bytes()); s.err == nil {
		s.err = s.c.rc.Flush()
	}
	if s.err != nil {
		s.err = errGone
		s.c.cancel(errGone)
		return s.err
	}
	if s.timer != nil {
		s.timer.Reset(s.every)
	}
	return nil
}

// end stops the pings.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// encode appends v as one line of JSON, characters of HTML as they are.
func encode(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
