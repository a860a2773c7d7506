//go:build cgo && !novulkan

package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/vulkan"
)

// gpuFamilies are architectures that between them use every operation; TERRACE_EXACT=whole takes all.
var gpuFamilies = []string{"deepseek2-lite", "gpt-oss-mxfp4", "qwen3next", "nemotron_h_moe", "qwen4exp", "gemma4", "lfm2moe"}

// TestVulkanFamilies compares the GPU's logits with the CPU's, in fast mode and bit by bit: an expert, and all else where the
// device can (vulkan.Numerics), is one arithmetic wherever it runs.
func TestVulkanFamilies(t *testing.T) {
	only := gpuFamilies
	if exactWhole {
		only = nil
	}
	all := families(t, only...)
	if exactWhole == false && len(all) < 4 {
		packed, _ := filepath.Glob("../testdata/golden/*/model.drawn.gz")
		t.Fatalf("%d of the fixtures %q are there; there are %q", len(all), only, packed)
	}
	cache := filepath.Join(t.TempDir(), "pipelines")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			o := Options{Path: all[name], ExpertRAM: ExpertBudget{Percent: 75}, Threads: 1, Batch: 16, Lookahead: 1, Backend: "cpu"}
			want := timeline(t, o)
			o.Backend, o.PipelineCache = "vulkan", cache
			if got := timeline(t, o); got != want {
				t.Errorf("logits %s, the CPU's are %s", got, want)
			}
		})
	}
}

// answer asks the trained model: a prompt and a greedy answer, their logits in a hash.
func answer(t *testing.T, e *Engine, prompt, n int) Result {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := s.Generate(context.Background(), Request{Prompt: longPrompt(t, e)[:prompt], Max: n, Sampler: greedy(t, e), IgnoreEOS: true, HashLogits: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// closed opens an engine, calls f and closes it.
func closed(t *testing.T, o Options, f func(e *Engine)) {
	t.Helper()
	e, end := opened(t, o)
	defer end()
	f(e)
}

// onTheCPU is what the CPU answers.
func onTheCPU(t *testing.T, prompt, n int) (want Result) {
	t.Helper()
	closed(t, Options{Path: tinyMoE, Context: 128, ExpertRAM: ExpertBudget{Percent: 50}, Backend: "cpu", Batch: 16}, func(e *Engine) { want = answer(t, e, prompt, n) })
	return want
}

// expects compares an answer with the CPU's.
func expects(t *testing.T, what string, got, want Result) {
	t.Helper()
	if !slices.Equal(got.Tokens, want.Tokens) || got.Stats.LogitsSHA256 != want.Stats.LogitsSHA256 {
		t.Errorf("%s: tokens %v with logits %s, the CPU's are %v and %s", what, got.Tokens, got.Stats.LogitsSHA256, want.Tokens, want.Stats.LogitsSHA256)
	}
}

// pipelineCache keeps compiled shaders between tests: a software device takes most of the time to make them.
var pipelineCache = sync.OnceValue(func() string { return filepath.Join(os.TempDir(), "terrace-test-pipelines-"+strconv.Itoa(os.Getpid())) })

// vulkanOptions are those of most of these tests: a device that keeps some of the experts, the others in RAM and on disk.
func vulkanOptions() Options {
	return Options{Path: tinyMoE, Context: 128, ExpertRAM: ExpertBudget{Percent: 50}, Backend: "vulkan", VRAM: 512 << 20, Batch: 16, Threads: 1, PipelineCache: pipelineCache()}
}

// TestVulkanTier is the promise of one hash, for the device: no, some and all experts in its memory, who is there changing or not,
// and in exact mode with the small ones behind TERRACE_EXACT=whole.
func TestVulkanTier(t *testing.T) {
	prompt, n := 24, 8
	if exactWhole {
		prompt, n = 100, 24
	}
	want := onTheCPU(t, prompt, n)
	var all int64
	closed(t, Options{Path: tinyMoE, Context: 128, Backend: "cpu"}, func(e *Engine) { all = e.Budget().ArenaMost })
	for _, percent := range []int64{0, 25, 50, 100} {
		for _, frozen := range []bool{false, true} {
			if frozen && !exactWhole && percent != 25 {
				continue
			}
			o := vulkanOptions()
			o.gpu.tier, o.gpu.frozen = all*percent/100+all*percent/800, frozen // segments and alignment take some
			if percent == 0 {
				o.gpu.tier = -1
			}
			closed(t, o, func(e *Engine) {
				for range 2 { // the second finds the experts of the first
					got := answer(t, e, prompt, n)
					expects(t, fmt.Sprintf("%d %% in VRAM, frozen %t", percent, frozen), got, want)
					if got.Stats.PlacementDependent != (percent > 0 && !e.gpu.numerics.Subnormals) {
						t.Errorf("placement_dependent is %t", got.Stats.PlacementDependent)
					}
				}
				if percent == 0 {
					return
				}
				for until := time.Now().Add(10 * time.Second); percent == 100 && e.gpu.b.Load().Tier().Experts < e.Budget().Experts && time.Now().Before(until); {
					time.Sleep(10 * time.Millisecond)
				}
				before := e.gpu.stats().Routed
				got := answer(t, e, prompt, n)
				expects(t, "once more", got, want)
				if chosen := e.gpu.stats().Routed - before; percent == 100 && chosen < int64((n-1)*e.model.Config().Layers) {
					t.Errorf("with all experts in VRAM the device chose those of %d layers in %d steps of %d", chosen, n, e.model.Config().Layers)
				}
				st, k := got.Stats, e.gpu.b.Load().Tier()
				if st.HitsVRAM == 0 || st.Touches != st.HitsVRAM+st.HitsRAM+st.HitsInflight+st.Misses || percent == 100 && st.HitsVRAM != st.Touches {
					t.Errorf("%d %%: %d hits in VRAM, %d in RAM, %d on their way, %d misses of %d", percent, st.HitsVRAM, st.HitsRAM, st.HitsInflight, st.Misses, st.Touches)
				}
				if !strings.HasPrefix(st.Backend, "vulkan") || st.Device == "" || st.GPUOps == 0 || st.CPUFallbackOps != 0 {
					t.Errorf("backend %q, device %q, %d operations on it, %d left to the CPU", st.Backend, st.Device, st.GPUOps, st.CPUFallbackOps)
				}
				t.Logf("%d %% in VRAM, frozen %t: %d of %d were there, %d swaps, %+v", percent, frozen, st.HitsVRAM, st.Touches, e.gpu.tier.moved.Load(), k)
			})
		}
	}
}

// TestVulkanLayers leaves layers on the CPU.
func TestVulkanLayers(t *testing.T) {
	want := onTheCPU(t, 40, 8)
	layers := []int{1, GPULayersNone}
	if exactWhole {
		layers = []int{GPULayersNone, 1, 2, 3, 100}
	}
	for _, n := range layers {
		o := vulkanOptions()
		o.GPULayers = n
		closed(t, o, func(e *Engine) {
			got := answer(t, e, 40, 8)
			expects(t, fmt.Sprintf("%d layers on the GPU", n), got, want)
			if on := got.Stats.GPUOps > 0; on != (n > 0) {
				t.Errorf("%d layers on the GPU: %d operations there", n, got.Stats.GPUOps)
			}
		})
	}
}

// TestVulkanUnified has device and CPU share one memory: no expert is copied, and where the driver does not take the host's memory
// each is copied once, which is said.
func TestVulkanUnified(t *testing.T) {
	want := onTheCPU(t, 40, 8)
	for _, mask := range [][]string{nil, {"host import"}} {
		o := vulkanOptions()
		o.VRAM, o.gpu.mask, o.ExpertRAM, o.RAM = 0, mask, ExpertBudget{}, 600<<20
		closed(t, o, func(e *Engine) {
			before := e.gpu.stats()
			got := answer(t, e, 40, 8)
			expects(t, fmt.Sprintf("one memory, without %q", mask), got, want)
			up, k := e.gpu.stats().Uploaded-before.Uploaded, e.gpu.b.Load().Tier()
			if !k.Unified {
				t.Skip("this device has memory of its own")
			}
			if (up == 0) != (mask == nil) || (k.Refused != "") != (mask != nil) || (k.Imports > 0) != (mask == nil) {
				t.Errorf("without %q: %d bytes were copied, %+v", mask, up, k)
			}
			if rss, err := host.RSS(); err != nil || got.Stats.PeakRSS > o.RAM && !raceEnabled { // whose shadows are memory too
				t.Errorf("peak %d bytes, the budget is %d (%+v, %v)", got.Stats.PeakRSS, o.RAM, rss, err)
			}
			t.Logf("without %q: %d bytes copied, peak %d MB, %+v", mask, up, got.Stats.PeakRSS>>20, k)
		})
	}
}

// TestVulkanLost loses the device at the start, in a prompt and in an answer: the CPU's text and logits, and a line in Health until the
// device is back.
func TestVulkanLost(t *testing.T) {
	want := onTheCPU(t, 40, 12)
	points := []float64{0.3, 0.8}
	if exactWhole {
		points = []float64{0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99}
	}
	var from, total int64
	f := &vulkan.Fault{}
	o := vulkanOptions()
	o.gpu.fault, o.gpu.tier = f, -1 // moving experts takes submissions of its own
	closed(t, o, func(e *Engine) {
		from = f.Submitted()
		expects(t, "undisturbed", answer(t, e, 40, 12), want)
		total = f.Submitted() - from
	})
	for _, at := range points {
		f := &vulkan.Fault{}
		o := vulkanOptions()
		o.gpu.fault, o.gpu.retry, o.gpu.tier = f, 20*time.Millisecond, 1<<20
		closed(t, o, func(e *Engine) {
			f.Lose.Store(f.Submitted() + 1 + int64(at*float64(total)))
			got := answer(t, e, 40, 12)
			expects(t, fmt.Sprintf("lost at %g of the work", at), got, want)
			if e.gpu.times != 1 || e.Health() == "" || !strings.HasPrefix(e.backend.Name(), "cpu") {
				t.Errorf("lost %d times, health %q, backend %s", e.gpu.times, e.Health(), e.backend.Name())
			}
			f.Lose.Store(0)
			for until := time.Now().Add(10 * time.Second); e.gpu.found.Load() == nil && time.Now().Before(until); {
				time.Sleep(5 * time.Millisecond)
			}
			before := e.gpu.stats().Dispatches
			expects(t, "with the device back", answer(t, e, 40, 12), want)
			if e.Health() != "" || !strings.HasPrefix(e.backend.Name(), "vulkan") || e.gpu.stats().Dispatches == before {
				t.Errorf("health %q, backend %s", e.Health(), e.backend.Name())
			}
		})
	}
}

// TestVulkanLostTogether loses the device under several jobs.
func TestVulkanLostTogether(t *testing.T) {
	run := func(o Options, f *vulkan.Fault, lose int64) (out [3][]int32, submitted int64) {
		closed(t, o, func(e *Engine) {
			s, err := e.NewScheduler(SchedulerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if lose > 0 {
				f.Lose.Store(f.Submitted() + lose)
			}
			var g sync.WaitGroup
			for i := range out {
				g.Go(func() {
					r, err := s.Do(context.Background(), Job{Prompt: longPrompt(t, e)[10*i : 10*i+30], Max: 8, Slot: -1, Chooser: greedy(t, e), IgnoreEOS: true})
					if err != nil {
						t.Error(err)
					}
					out[i] = r.Tokens
				})
			}
			g.Wait()
			if f != nil {
				submitted = f.Submitted()
			}
			if lose > 0 && e.gpu.times != 1 {
				t.Errorf("the device was lost %d times", e.gpu.times)
			}
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return out, submitted
	}
	o := vulkanOptions()
	o.Slots, o.Backend, o.VRAM = 3, "cpu", 0
	want, _ := run(o, nil, 0)
	for _, lose := range []int64{5, 40} {
		o := vulkanOptions()
		o.Slots, o.gpu.fault = 3, &vulkan.Fault{}
		o.gpu.retry = time.Hour
		if got, n := run(o, o.gpu.fault, lose); !slices.EqualFunc(got[:], want[:], slices.Equal[[]int32]) {
			t.Errorf("lost at submission %d of %d: %v, the CPU's are %v", lose, n, got, want)
		}
	}
}

// TestVulkanRefused refuses allocations, one after the other and for good: the right text, or an error that says so.
func TestVulkanRefused(t *testing.T) {
	want := onTheCPU(t, 40, 8)
	f := &vulkan.Fault{}
	o := vulkanOptions()
	o.gpu.fault, o.gpu.tier = f, 1<<20
	closed(t, o, func(e *Engine) { answer(t, e, 40, 8) })
	most, step := f.Allocated(), int64(3)
	if exactWhole {
		step = 1
	}
	right, refused := 0, 0
	for at := int64(1); at <= most; at += step {
		for _, times := range []int64{1, 0} {
			f := &vulkan.Fault{}
			f.Refuse.Store(at)
			f.Refusals.Store(times)
			o.gpu.fault = f
			e, err := Open(o)
			if err == nil {
				var s *Session
				var r Result
				if s, err = e.NewSession(); err == nil {
					r, err = s.Generate(context.Background(), Request{Prompt: longPrompt(t, e)[:40], Max: 8, Sampler: greedy(t, e), IgnoreEOS: true, HashLogits: true})
					s.Close()
				}
				if err == nil {
					right++
					expects(t, fmt.Sprintf("allocation %d refused %d times", at, times), r, want)
				}
				if cerr := e.Close(); cerr != nil {
					t.Error(cerr)
				}
			}
			if err != nil {
				refused++
				if !strings.Contains(err.Error(), "memory") || strings.Contains(err.Error(), "\n") {
					t.Errorf("allocation %d refused %d times: %v", at, times, err)
				}
			}
		}
	}
	t.Logf("%d allocations: %d right answers, %d errors", most, right, refused)
}

// TestVulkanResize takes VRAM back while the engine is in use.
func TestVulkanResize(t *testing.T) {
	want := onTheCPU(t, 40, 8)
	closed(t, vulkanOptions(), func(e *Engine) {
		expects(t, "at first", answer(t, e, 40, 8), want)
		v := e.gpu.tier
		v.mu.Lock()
		least := v.least(e.gpu.b.Load())
		v.mu.Unlock()
		before := e.gpu.b.Load().Tier()
		if err := e.SetVRAM(least - 1); !errors.Is(err, ErrDoesNotFit) {
			t.Errorf("less than the least: %v", err)
		}
		if err := e.SetVRAM(least); err != nil {
			t.Fatal(err)
		}
		if n := e.gpu.b.Load().Tier(); before.Experts == 0 || n.Bytes != 0 || n.Experts != 0 {
			t.Errorf("%+v, it was %+v", n, before)
		}
		expects(t, "with nothing there", answer(t, e, 40, 8), want)
		if err := e.SetVRAM(512 << 20); err != nil {
			t.Fatal(err)
		}
		expects(t, "with room again", answer(t, e, 40, 8), want)
		for until := time.Now().Add(5 * time.Second); e.gpu.b.Load().Tier().Experts == 0 && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
		}
		if e.gpu.b.Load().Tier().Experts == 0 {
			t.Error("the room is not filled")
		}
	})
}

// TestVulkanPlan: as many experts find room on a device as a plan says, within five hundredths of the model's: experts differ
// in size, and which are wanted first differs from run to run.
func TestVulkanPlan(t *testing.T) {
	f, err := gguf.Open(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	for _, vram := range []int64{40 << 20, 512 << 20} { // beyond what the device takes for itself
		o := vulkanOptions()
		o.VRAM = vram
		s, err := ShapeOf(f, o)
		if err != nil {
			t.Fatal(err)
		}
		m, err := plan.NamedMachine("cloud-2-cores")
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Make(s, m, plan.Size{Budget: 1 << 30, VRAM: vram})
		if err != nil {
			t.Fatal(err)
		}
		want, off := p.Rows[0].InVRAM, p.Rows[0].Parts.Experts/20
		closed(t, o, func(e *Engine) {
			answer(t, e, 100, 4) // every expert is wanted now and then
			count := func() int { return e.gpu.b.Load().Tier().Experts }
			for until := time.Now().Add(time.Minute); count() < want-off && time.Now().Before(until); {
				answer(t, e, 16, 4)
			}
			n := e.gpu.b.Load().Tier()
			t.Logf("%d bytes: %d experts, %d by the plan, %+v", vram, n.Experts, want, n)
			if n.Experts > want+off || n.Experts < want-off {
				t.Errorf("%d bytes: %d experts are on the device, %d by the plan", vram, n.Experts, want)
			}
		})
	}
}

// TestVulkanMissing refuses a device that is not there, and leaves "auto" to the CPU where the only device is a software one.
func TestVulkanMissing(t *testing.T) {
	_, err := Open(Options{Path: tinyMoE, Context: 64, Backend: "vulkan", Device: 99})
	if !errors.Is(err, vulkan.ErrUnavailable) || !strings.Contains(err.Error(), "99") {
		t.Errorf("device 99: %v", err)
	}
	all, err := vulkan.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(all, func(d vulkan.DeviceInfo) bool { return d.Kind == vulkan.Discrete }) {
		t.Skip("this machine has a GPU")
	}
	e := mustOpen(t, Options{Path: tinyMoE, Context: 64})
	if n := e.backend.Name(); !strings.HasPrefix(n, "cpu") {
		t.Errorf("auto took %s", n)
	}
}
