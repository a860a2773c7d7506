package server

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func fuzzServer(f *testing.F) *Server {
	// Short answers where a body does not say: a run shall try many bodies.
	s, err := New(Options{SaveSlots: true, Metrics: true, Props: true, Embed: true, Rerank: true, Defaults: Defaults{Predict: 16}})
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Ready(openModel(f)); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	return s
}

// idle waits until nothing of a request is left.
func idle(t *testing.T, s *Server) {
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		n, b := s.gate.load()
		busy := 0
		for _, i := range s.model.Load().Scheduler.Slots() {
			if i.Processing {
				busy++
			}
		}
		if n == 0 && b == 0 && busy == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d requests, %d bytes, %d busy slots are left", n, b, busy)
		}
	}
}

// FuzzRequest: any body on any route gets an error object or a right answer, in bounded time, and leaves nothing behind.
func FuzzRequest(f *testing.F) {
	for i, s := range sound {
		f.Add(byte(i), []byte(s.body), "")
	}
	for i, s := range odd {
		f.Add(byte(8+i), []byte(s), "action=save")
	}
	s := fuzzServer(f)
	f.Fuzz(func(t *testing.T, route byte, body []byte, query string) {
		q := sound[int(route)%len(sound)]
		r, err := http.NewRequest(q.method, "http://localhost"+q.path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if query != "" {
			r.URL.RawQuery = query
		}
		w := httptest.NewRecorder()
		start := time.Now()
		s.ServeHTTP(w, r)
		if _, fault := judge(q.method, w.Result(), w.Body.Bytes()); fault != "" {
			t.Fatalf("%s %s: %s", q.method, q.path, fault)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Fatalf("%s %s took %v", q.method, q.path, d)
		}
		idle(t, s)
	})
}

// cutter is a client that leaves after some bytes, or stops reading.
type cutter struct {
	*httptest.ResponseRecorder
	left   int
	cancel context.CancelFunc
}

var errCut = errors.New("the client is cut off")

func (c *cutter) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		if c.cancel != nil {
			c.cancel()
		}
		return 0, errCut
	}
	return c.ResponseRecorder.Write(b)
}

func (c *cutter) FlushError() error {
	if c.left < 0 {
		return errCut
	}
	return nil
}

// FuzzCut: a stream that is cut at any byte, by a failed write or by the end of its request, is whole events up to there, and
// its slot is idle soon.
func FuzzCut(f *testing.F) {
	var streams []int
	for i, s := range sound {
		if strings.Contains(s.body, `"stream":true`) {
			streams = append(streams, i)
		}
	}
	for i := range streams {
		f.Add(byte(i), uint16(100*i), true, byte(i))
		f.Add(byte(i), uint16(3000), false, byte(0))
	}
	s := fuzzServer(f)
	f.Fuzz(func(t *testing.T, route byte, left uint16, write bool, more byte) {
		q := sound[streams[int(route)%len(streams)]]
		body := q.body
		if more%3 == 1 { // longer, so that it is cut within
			body = strings.NewReplacer(`"max_tokens":4`, `"max_tokens":60`, `"n_predict":4`, `"n_predict":60`, `"max_output_tokens":4`, `"max_output_tokens":60`).Replace(body)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, q.method, "http://localhost"+q.path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		w := &cutter{ResponseRecorder: httptest.NewRecorder(), left: int(left)}
		if !write {
			w.cancel = cancel
		}
		s.ServeHTTP(w, r)
		text := w.Body.String()
		if w.left >= 0 {
			if _, fault := judge(q.method, w.Result(), w.Body.Bytes()); fault != "" {
				t.Fatalf("%s: %s", q.path, fault)
			}
		} else if text != "" && !strings.HasSuffix(text, "\n\n") && !strings.HasPrefix(text, "{") {
			t.Fatalf("%s: the stream was cut within an event: %q", q.path, text[max(0, len(text)-200):])
		}
		idle(t, s)
	})
}
