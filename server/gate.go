package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// gate bounds what clients can make the server hold: completions that wait or run, and the bytes of their bodies.
type gate struct {
	mu       sync.Mutex
	requests int
	most     int
	bytes    int64
	mostB    int64
	closed   bool
}

// enter admits n more completions that want a slot.
func (g *gate) enter(n int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosing
	}
	if g.requests+n > g.most {
		return unavailable(2, "%d requests wait or run and %d more came, at most %d may be there", g.requests, n, g.most)
	}
	g.requests += n
	return nil
}

func (g *gate) leave(n int) {
	g.mu.Lock()
	g.requests -= n
	g.mu.Unlock()
}

// grow admits n more bytes of bodies.
func (g *gate) grow(n int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bytes+n > g.mostB {
		return unavailable(2, "the bodies and grammars of requests take %d bytes, at most %d may be held", g.bytes+n, g.mostB)
	}
	g.bytes += n
	return nil
}

func (g *gate) shrink(n int64) {
	g.mu.Lock()
	g.bytes -= n
	g.mu.Unlock()
}

// load is how many requests and bytes are inside.
func (g *gate) load() (requests int, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests, g.bytes
}

// raise lets n more in.
func (g *gate) raise(n int) {
	g.mu.Lock()
	g.most += n
	g.mu.Unlock()
}

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// limited is a listener with at most cap(slots) connections open; further ones wait in the system's backlog.
type limited struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once
}

func limit(ln net.Listener, n int) *limited {
	return &limited{Listener: ln, slots: make(chan struct{}, n), done: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}) // a dead peer frees its slot
	}
	return &counted{Conn: c, l: l}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type counted struct {
	net.Conn
	l    *limited
	once sync.Once
}

// plainEnd ends the head of replies that net/http writes by itself, to what it does not take for a request.
const plainEnd = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write makes an error object of such a reply, which comes in one piece and whose text net/http begins with the status.
func (c *counted) Write(b []byte) (int, error) {
	if rest, ok := bytes.CutPrefix(b, []byte("HTTP/1.1 ")); ok && len(b) < 1<<10 {
		if line, text, ok := strings.Cut(string(rest), plainEnd); ok && len(line) > 3 && (line[0] == '4' || line[0] == '5') {
			if code, err := strconv.Atoi(line[:3]); err == nil {
				f := &failure{code: code, kind: "invalid_request_error", message: text}
				if code == http.StatusNotImplemented {
					f.kind = "not_supported_error"
				}
				body, err := json.Marshal(f.object(false))
				if err != nil {
					return 0, err
				}
				_, err = fmt.Fprintf(c.Conn, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", line, contentJSON, len(body), body)
				return len(b), err
			}
		}
	}
	return c.Conn.Write(b)
}

func (c *counted) Close() error {
	c.once.Do(func() { <-c.l.slots })
	return c.Conn.Close()
}
