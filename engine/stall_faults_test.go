//go:build faults

package engine

import (
	"context"
	"regexp"
	"testing"
	"time"

	"terrace/internal/fault"
)

// TestStallRead: reads that take very long are named with their file, place and time, by every store, and the answer is right.
func TestStallRead(t *testing.T) {
	for _, store := range []string{"pread", "mmap", "uring"} {
		if store == "uring" && !uringWorks(t) {
			continue
		}
		e := mustOpen(t, Options{Path: tinyMoE, Context: 128, Threads: 2, Store: store, StallReport: 50 * time.Millisecond, ExpertRAM: ExpertBudget{Min: true}})
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		fault.Set(&fault.Plan{Seed: 1, ReadSlow: 10_000, Slow: 400 * time.Millisecond})
		done := make(chan error, 1)
		go func() { done <- s.Eval(context.Background(), 1) }()
		report := ""
		until(t, store+": it is reported", func() bool {
			if z := e.Stalls().Now; z != nil {
				report = z.Report
			}
			return report != ""
		})
		fault.Set(nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile(`^a session computes; in layer \d+ of \d+; 1 wait for experts, expert \d+ of layer \d+ \(` + regexp.QuoteMeta(tinyMoE) + ` at \d+\) is being read for \d+`)
		if !want.MatchString(report) {
			t.Errorf("%s: %s", store, report)
		}
		until(t, store+": it moves", func() bool { return e.Stalls().Now == nil })
		s.Close()
	}
}
