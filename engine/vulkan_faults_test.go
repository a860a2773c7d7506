//go:build faults && cgo && !novulkan

package engine

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"terrace/internal/fault"
)

// TestVulkanFaults takes memory and device away by chance: the CPU's text and logits, or one error that says what is missing; never
// another text, and it comes to an end. TERRACE_FAULTS is the number of seeds.
func TestVulkanFaults(t *testing.T) {
	want := onTheCPU(t, 40, 8)
	seeds := 6
	if n, err := strconv.Atoi(os.Getenv("TERRACE_FAULTS")); err == nil {
		seeds = n
	}
	defer fault.Set(nil)
	var all fault.Count
	right, refused := 0, 0
	for seed := range seeds {
		o := vulkanOptions()
		o.gpu.tier, o.gpu.retry = 1<<20, 10*time.Millisecond
		fault.Set(&fault.Plan{Seed: uint64(seed), Device: 300 * (seed % 3), DeviceLost: 150 * (seed % 4)})
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		e, err := Open(o)
		if err == nil {
			var s *Session
			if s, err = e.NewSession(); err == nil {
				for range 3 { // the device goes and comes back
					var r Result
					r, err = s.Generate(ctx, Request{Prompt: longPrompt(t, e)[:40], Max: 8, Sampler: greedy(t, e), IgnoreEOS: true, HashLogits: true})
					if err != nil {
						break
					}
					expects(t, fmt.Sprint("seed ", seed), r, want)
					right++
				}
				s.Close()
			}
			n := fault.Counts()
			all.Device, all.DeviceLost = all.Device+n.Device, all.DeviceLost+n.DeviceLost
			fault.Set(nil)
			if cerr := e.Close(); cerr != nil {
				t.Error(cerr)
			}
		}
		if err != nil {
			refused++
			if m := err.Error(); ctx.Err() != nil || strings.Contains(m, "\n") || !strings.Contains(m, "memory") && !strings.Contains(m, "lost") {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		stop()
	}
	if all.Device+all.DeviceLost == 0 || right == 0 {
		t.Errorf("nothing went wrong, or everything did: %+v, %d answers", all, right)
	}
	t.Logf("%d answers, %d errors; memory refused %d times, the device lost %d times", right, refused, all.Device, all.DeviceLost)
}
