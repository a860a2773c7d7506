package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"terrace/compute/cpu"
	"terrace/compute/split"
	"terrace/internal/host"
	"terrace/plan"
	"terrace/prefetch"
	"terrace/vulkan"
)

// gpuTest is what tests want of a GPU.
type gpuTest struct {
	fault  *vulkan.Fault
	mask   []string
	tier   int64         // bytes for experts, in place of what is left; negative: none
	frozen bool          // who is kept does not change once the room is taken
	retry  time.Duration // between two looks for a lost device; 0: deviceRetry
}

// gpu is the device beside the CPU.
type gpu struct {
	e     *Engine
	split *split.Backend
	opt   vulkan.Options
	first int // layer on it
	// b is the open device, nil while it is lost. A device that came back waits in found until a pass ends.
	b, found atomic.Pointer[vulkan.Backend]
	base     vulkan.Stats // of devices that were lost
	info     vulkan.DeviceInfo
	numerics vulkan.Numerics
	lost     atomic.Pointer[lossReport]
	times    int           // it was lost
	stop     chan struct{} // closed when the engine closes
	looking  chan struct{} // closed when nobody looks for the device
	tier     *vram         // nil: it keeps no experts
}

// lossReport is when and why a device was lost.
type lossReport struct {
	at  time.Time
	why string
}

// deviceRetry is the time between two looks for a lost device.
const deviceRetry = 10 * time.Second

// pickBackend decides whether a GPU computes. One that was asked for by name must be there; with "auto" the CPU computes where there
// is none worth it. It comes before the budget: a driver takes memory.
func (e *Engine) pickBackend() error {
	o := &e.opt
	if o.Backend == "cpu" || o.Backend == "auto" && !e.worthIt() {
		return nil
	}
	g := &gpu{e: e, stop: make(chan struct{})}
	g.opt = vulkan.Options{Device: o.Device, Exact: o.Exact, Memory: o.VRAM, CacheFile: o.PipelineCache, Log: e.log, Mask: o.gpu.mask, Fault: o.gpu.fault}
	b, err := vulkan.New(g.opt)
	if err == nil {
		g.b.Store(b)
		g.info, g.numerics = b.Info(), b.Numerics()
		e.gpu = g
		return nil
	}
	if o.Backend == "vulkan" {
		return fmt.Errorf("--backend vulkan: %w", err)
	}
	e.log.Warn("the CPU computes: the GPU cannot be used", "error", err)
	return nil
}

// openBackend makes what computes.
func (e *Engine) openBackend() error {
	o := &e.opt
	c, err := cpu.New(cpu.Options{Threads: o.Threads, Exact: o.Exact, Alloc: stateAlloc, Free: host.Free, Release: host.Release})
	if err != nil {
		return err
	}
	g := e.gpu
	if g == nil {
		e.backend = c
		return nil
	}
	b := g.b.Load()
	unified := b.Tier().Unified
	g.first = g.firstLayer(b)
	if n := e.model.Config().Layers; g.first > 0 {
		e.log.Info("layers stay with the CPU", "layers", min(g.first, n), "of", n)
	}
	g.split = split.New(split.Options{Host: c, Device: b, First: g.first, States: e.model.StatesBefore, Experts: !unified, Log: e.log})
	e.backend = g.split
	g.adopt(b)
	return nil
}

// adopt shows a device the memory that it may compute from, where it has none of its own.
func (g *gpu) adopt(b *vulkan.Backend) {
	e := g.e
	if !b.Tier().Unified {
		return
	}
	b.Adopt(e.dense.mem)
	if e.cache != nil {
		b.Adopt(e.cache.Memory())
		e.cache.OnRelease(b.Forget)
	}
}

// firstLayer is the first layer that the device has: as many of the last ones as were asked for, or as its memory holds with what
// their sequences and activations take.
func (g *gpu) firstLayer(b *vulkan.Backend) int {
	e := g.e
	n, o := e.model.Config().Layers, &e.opt
	switch {
	case o.GPULayers == GPULayersNone:
		return n + 1
	case o.GPULayers > 0:
		return max(0, n-o.GPULayers)
	case b.Tier().Unified:
		return 0
	}
	offer, held, _ := b.Memory()
	all := e.model.LayerBytes()
	total := int64(0)
	for _, x := range all {
		total += x
	}
	if plan.CardWhole(offer, held, total, e.budget.KV, e.budget.Work) {
		return 0
	}
	room := plan.CardRoom(offer, held, e.budget.Work) - all[n]
	first := n
	for first > 0 {
		if room -= all[first-1] + e.budget.KV/int64(max(n, 1)); room < 0 {
			break
		}
		first--
	}
	return first
}

// bound is called when the weights are where they belong: the rest of the device's memory is the experts'.
func (g *gpu) bound() {
	e := g.e
	b := g.b.Load()
	if e.cache != nil && !b.Tier().Unified && g.first < e.model.Config().Layers && e.opt.gpu.tier >= 0 {
		g.tier = newVRAM(g)
		e.mon.kept = func(dst []uint64) []uint64 {
			if b := g.b.Load(); b != nil {
				return b.Kept(dst)
			}
			return dst
		}
		g.tier.start()
	}
}

// reserve is what of a device's memory sequences and activations will take.
func (g *gpu) reserve() int64 {
	e := g.e
	n := int64(max(e.model.Config().Layers, 1))
	mine := max(0, n-int64(g.first))
	return e.budget.KV*mine/n + e.budget.Work
}

// close ends the look-out and the tier; the backend is closed by who has it.
func (g *gpu) close() {
	close(g.stop)
	if g.tier != nil {
		g.tier.close()
	}
	if g.looking != nil {
		<-g.looking
	}
	if b := g.found.Swap(nil); b != nil {
		_ = b.Close()
	}
	if g.split == nil { // the engine did not come so far
		if b := g.b.Load(); b != nil {
			_ = b.Close()
		}
	}
}

// stats is what all devices so far did.
func (g *gpu) stats() vulkan.Stats {
	s := g.base
	if b := g.b.Load(); b != nil {
		s = sum(s, b.Stats())
	}
	return s
}

func sum(a, b vulkan.Stats) vulkan.Stats {
	b.Dispatches += a.Dispatches
	b.Barriers += a.Barriers
	b.Submits += a.Submits
	b.Waits += a.Waits
	b.Uploaded += a.Uploaded
	b.Fallbacks += a.Fallbacks
	b.Hits += a.Hits
	b.Routed += a.Routed
	b.Replayed += a.Replayed
	return b
}

// placementDependent reports whether results may depend on where an expert was: in numbers too small for the device, or where the
// exact mode's sums are fused on one side only.
func (g *gpu) placementDependent() bool {
	return g.tier != nil && (!g.numerics.Subnormals || g.e.opt.Exact && !g.numerics.Fused)
}

// gone says whether err is that of a lost device, and if so goes on with the CPU: all that sequences remember has to be computed
// anew, which is the caller's part.
func (e *Engine) gone(err error) bool {
	g := e.gpu
	if g == nil || !errors.Is(err, vulkan.ErrLost) {
		return false
	}
	b := g.b.Swap(nil)
	if b == nil {
		return false
	}
	g.lost.Store(&lossReport{time.Now(), err.Error()})
	g.times++
	g.base = sum(g.base, b.Stats())
	e.log.Error("the GPU was lost: the CPU goes on", "device", g.info.String(), "error", err)
	if e.cache != nil {
		e.cache.OnRelease(nil)
	}
	if g.tier != nil {
		g.tier.pause()
	}
	if lerr := g.split.Lose(); lerr != nil {
		e.log.Error("the CPU cannot go on: its memory is refused", "error", lerr)
		return false
	}
	e.lives++
	g.look()
	return true
}

// look waits in the background for the device to come back.
func (g *gpu) look() {
	if g.looking != nil {
		<-g.looking
	}
	g.looking = make(chan struct{})
	every := g.e.opt.gpu.retry
	if every == 0 {
		every = deviceRetry
	}
	go func() {
		defer close(g.looking)
		for {
			select {
			case <-g.stop:
				return
			case <-time.After(every):
			}
			b, err := vulkan.New(g.opt)
			if err != nil {
				g.e.log.Debug("the GPU is not back", "error", err)
				continue
			}
			g.found.Store(b)
			return
		}
	}()
}

// regain takes a device back that was lost and has come back; between two passes, nothing else at work with sequences.
func (e *Engine) regain() {
	g := e.gpu
	if g == nil || g.found.Load() == nil {
		return
	}
	b := g.found.Swap(nil)
	g.adopt(b)
	if err := g.split.Take(b); err != nil {
		e.log.Warn("the GPU is back and cannot be used", "error", err)
		_ = b.Close()
		g.look()
		return
	}
	g.b.Store(b)
	g.lost.Store(nil)
	if g.tier != nil {
		g.tier.resume()
	}
	e.log.Info("the GPU is back", "device", g.info.String())
}

// unwell is the error of a lost device that nobody has met yet: what was copied out of sequences is of no use.
func (e *Engine) unwell() error {
	if e.gpu == nil {
		return nil
	}
	if b := e.gpu.b.Load(); b != nil {
		return b.Err()
	}
	return nil
}

// Health says what is wrong with the engine although it answers; "" where nothing is.
func (e *Engine) Health() string {
	if e.gpu == nil {
		return ""
	}
	r := e.gpu.lost.Load()
	if r == nil {
		return ""
	}
	return fmt.Sprintf("the GPU was lost %d seconds ago, the CPU computes (%s)", int(time.Since(r.at).Seconds()), r.why)
}

// worthIt reports whether there is a GPU that computes faster than the CPU: a discrete one, or one that was measured to.
func (e *Engine) worthIt() bool {
	if !host.MayHaveGPU() {
		return false
	}
	all, err := vulkan.Devices()
	if err != nil {
		e.log.Info("the CPU computes", "reason", err)
		return false
	}
	for i := range all {
		d := &all[i]
		if e.opt.Device != 0 && e.opt.Device != d.Number || !d.Usable() {
			continue
		}
		if gain, measured := e.measuredGain(d.Name); measured && gain || !measured && d.Kind == vulkan.Discrete {
			return true
		}
		e.log.Info("a device is left alone", "device", d.String(), "refused", d.Refused)
	}
	return false
}

// guessed is the cache as guesses see it.
func (e *Engine) guessed() prefetch.Cache {
	c := prefetch.Over(e.cache)
	if e.gpu != nil {
		return elsewhere{c, e.gpu.split}
	}
	return c
}

// measuredGain reports whether the machine's profile knows the device, and to be faster than the CPU.
func (e *Engine) measuredGain(name string) (gain, measured bool) {
	if e.opt.Profile == "" {
		return false, false
	}
	p := plan.LoadProfile(e.opt.Profile, e.log)
	g, ok := p.GPUs[name]
	if !ok || p.Memory == nil {
		return false, false
	}
	return g.Memory > p.Memory.Rate, true
}
