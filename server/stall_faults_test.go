//go:build faults

package server

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"terrace/engine"
	"terrace/internal/fault"
)

// TestStalled: while reads take very long, /health stays what clients expect and says that requests stand still; afterwards it
// does not, the answer is right and the metrics have counted.
func TestStalled(t *testing.T) {
	defer fault.Set(nil)
	e, err := engine.Open(engine.Options{Path: chaosModel, Context: 256, Slots: 1, ExpertRAM: engine.ExpertBudget{Min: true}, StallReport: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewScheduler(engine.SchedulerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	srv, err := New(Options{Metrics: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	if err := srv.Ready(&Model{Engine: e, Scheduler: s, Alias: "tiny"}); err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		return w.Body.String()
	}
	if h := get("/health"); h != `{"status":"ok"}` && h != "{\"status\":\"ok\"}\n" {
		t.Fatal(h)
	}
	fault.Set(&fault.Plan{Seed: 1, ReadSlow: 10_000, Slow: 300 * time.Millisecond})
	answer := make(chan string, 1)
	go func() {
		code, text, msg := askChaos(context.Background(), srv, chaosPrompts[2], false)
		if code != 200 {
			text = msg
		}
		answer <- text
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		var h struct {
			Status  string
			Stalled *struct{ Seconds, Requests int }
		}
		if err := json.Unmarshal([]byte(get("/health")), &h); err != nil || h.Status != "ok" {
			t.Fatal(h, err)
		}
		if h.Stalled != nil {
			if h.Stalled.Requests != 1 || h.Stalled.Seconds < 0 {
				t.Errorf("%+v, want 1 request", h.Stalled)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("/health does not tell")
		}
	}
	fault.Set(nil)
	slow := <-answer
	for end := time.Now().Add(30 * time.Second); strings.Contains(get("/health"), "stalled"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("/health still tells")
		}
	}
	if _, text, msg := askChaos(context.Background(), srv, chaosPrompts[2], false); text == "" || text != slow {
		t.Errorf("%q %s, and with slow reads %q", text, msg, slow)
	}
	if m := get("/metrics"); !strings.Contains(m, "\nterrace_stalls_total ") || strings.Contains(m, "\nterrace_stalls_total 0\n") {
		t.Error("the metrics have not counted")
	}
}
