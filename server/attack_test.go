package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestPlainNames: slots are saved under plain names only; everything else is refused before any file is looked at.
func TestPlainNames(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "../x", "a/../b", "/etc/passwd", `..\x`, `C:\x`, "a:b", "a\x00", "a\n", "a ", " a", "a.", "a..b", "*", "?", `"`, "<", ">", "|", "\u0085", "\u009f", "\xff\xfe", strings.Repeat("x", 256), "\x7f",
	} {
		if checkFileName(name) == nil {
			t.Errorf("%q is taken", name)
		}
	}
	for _, name := range []string{"a", "a.bin", "slot-1_2.bin", "ä", "日本", ".hidden", strings.Repeat("x", 255)} {
		if err := checkFileName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestKeyIsNeverTold: no log line and no answer holds a key, right or wrong, at the finest level of logging.
func TestKeyIsNeverTold(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	w := writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	})
	const key, wrong = "sk-right-0123456789", "sk-wrong-9876543210"
	h := newHost(t, Options{Keys: []string{key}, Metrics: true, SaveSlots: true, Log: slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	var said strings.Builder
	for _, k := range []string{key, wrong} {
		for i, s := range sound {
			r := h.call(s.method, s.path, s.body, func(r *http.Request) {
				r.Header.Set("Authorization", "Bearer "+k)
				if i%2 == 0 {
					r.Header.Del("Authorization")
					r.Header.Set("X-Api-Key", k)
				}
			})
			fmt.Fprintln(&said, r.header, r.body)
		}
	}
	h.s.log.Error("the log works")
	mu.Lock()
	defer mu.Unlock()
	for _, k := range []string{key, wrong, key[3:], wrong[3:]} {
		if strings.Contains(log.String(), k) || strings.Contains(said.String(), k) || strings.Contains(fmt.Sprintf("%+v", h.s.opt), k) && k != key && k != key[3:] {
			t.Errorf("%q is told", k)
		}
	}
	if !strings.Contains(log.String(), "the log works") {
		t.Error("nothing was logged")
	}
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestForeignPages: without a key, a page of another origin, or a name that points here, steers nothing.
func TestForeignPages(t *testing.T) {
	h := newHost(t, Options{SaveSlots: true, Props: true})
	for _, path := range []string{"/slots/0?action=erase", "/props", "/lora-adapters", "/v1/tiers/budget"} {
		for _, c := range []struct{ host, origin string }{
			{"evil.example", ""}, {"evil.example:8080", "http://evil.example:8080"}, {"", "http://evil.example"}, {"", "null"}, {"", "http://localhost.evil.example"}, {"", "https://127.0.0.1"}, {"", "file://"},
			{"127.0.0.1.evil.example", ""}, {"0.0.0.0", ""}, {"[::ffff:1.2.3.4]", ""}, {"localhost.", ""}, {"2130706433", ""}, {"", "http://127.0.0.1@evil.example"},
		} {
			r := h.call("POST", path, "{}", func(r *http.Request) {
				if c.host != "" {
					r.Host = c.host
				}
				if c.origin != "" {
					r.Header.Set("Origin", c.origin)
				}
			})
			r.wantError(t, 403, "permission_error")
		}
	}
	if r := h.call("POST", "/slots/0?action=erase", "{}"); r.status != 200 {
		t.Errorf("from here: %d %s", r.status, r.body)
	}
}

// TestSlowClients: connections that send their head or body byte by byte, or that are opened and left, do not keep others from
// an answer, and are ended.
func TestSlowClients(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	s, err := New(Options{MaxConns: 64})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	model := openModel(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln, func(context.Context) (*Model, error) { return model, nil }) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	addr := ln.Addr().String()
	var wg sync.WaitGroup
	ended := make(chan time.Duration, 100)
	for i := range 40 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		head := "POST /completion HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"
		if i%4 == 0 {
			head = "" // says nothing at all
		}
		wg.Go(func() {
			start := time.Now()
			io.WriteString(c, head)
			done := make(chan struct{})
			go func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					case <-time.After(100 * time.Millisecond):
						if head != "" {
							fmt.Fprintf(c, "X-%d: y\r\n", n)
						}
					}
				}
			}()
			io.Copy(io.Discard, c)
			close(done)
			ended <- time.Since(start)
		})
	}
	h := &host{T: t, s: s, url: "http://" + addr}
	worst := time.Duration(0)
	for range 20 {
		start := time.Now()
		h.ok("/completion", m{"prompt": "a", "n_predict": 2})
		worst = max(worst, time.Since(start))
	}
	if worst > 3*time.Second {
		t.Errorf("beside slow clients an answer took %v", worst)
	}
	wg.Wait()
	close(ended)
	for d := range ended {
		if d > 13*time.Second {
			t.Errorf("a head that never ends was waited for %v, want 10 s", d)
		}
	}
}
