package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
	"terrace/tiers"
)

const (
	heatEvery    = 5 * time.Minute // a running session's uses are saved so often,
	heatTokens   = 8192            // and after so many tokens
	heatLockWait = 2 * time.Second
	maxHeatFile  = 64 << 20
)

// HeatProfile is where a model's heat is kept. It may be used by several processes at once: each adds what it counted.
type HeatProfile struct {
	Path  string // of the file
	Model tiers.HeatModel
	Sizes []int // experts of each layer
}

// heatProfile names the profile of a model in the folder dir.
func heatProfile(f *gguf.File, m *model.Model, dir string) (*HeatProfile, error) {
	p := &HeatProfile{Model: tiers.HeatModel{Arch: m.Config().Arch, TopK: m.Config().TopK}}
	total := 0
	for _, l := range m.Experts() {
		p.Sizes = append(p.Sizes, len(l))
		total += len(l)
	}
	if total == 0 {
		return nil, fmt.Errorf("%s has no routed experts, and so no heat", f.Path)
	}
	var err error
	if p.Model.Fingerprint, err = f.Fingerprint(); err != nil {
		return nil, err
	}
	// Names are for people and for sharing; a file without them has a profile all the same.
	p.Model.Name, _ = f.Metadata.StringOr("general.name", "")
	p.Model.Base, _ = f.Metadata.StringOr("general.base_model.0.name", "")
	p.Path = filepath.Join(dir, "heat-"+p.Model.Fingerprint+".json")
	return p, nil
}

// OpenHeat names the heat profile of the model at path in the cache folder dir. Only headers are read; the profile itself
// need not exist.
func OpenHeat(path, dir string) (*HeatProfile, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return nil, err
	}
	return heatProfile(f, m, dir)
}

// Load reads the profile. A missing one is fs.ErrNotExist; one that is damaged, of another version or another model is an
// error that names the file.
func (p *HeatProfile) Load() (*tiers.Heat, error) {
	h, err := ReadHeat(p.Path)
	if err != nil {
		return nil, err
	}
	if h.Model.Fingerprint != p.Model.Fingerprint {
		return nil, fmt.Errorf("%s: %w: it is that of %s, the model's fingerprint is %s", p.Path, tiers.ErrOtherModel, h.Model.Fingerprint, p.Model.Fingerprint)
	}
	if err := h.Fits(p.Model, p.Sizes); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return h, nil
}

// ReadHeat reads a heat file of any model.
func ReadHeat(path string) (*tiers.Heat, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxHeatFile {
		return nil, fmt.Errorf("%s: no heat profile: want a regular file of at most %d bytes, it has %d", path, int64(maxHeatFile), st.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	h, err := tiers.DecodeHeat(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// merge adds uses to the profile on disk, which first ages by so many tokens; with replace the profile becomes h alone. What
// another process saved meanwhile is kept, and at no time is there a part of a file. A profile on disk that is of no use
// (Load) is replaced.
func (p *HeatProfile) merge(h *tiers.Heat, age int64, replace bool) error {
	if err := os.MkdirAll(filepath.Dir(p.Path), 0o755); err != nil {
		return err
	}
	unlock, err := host.LockFile(p.Path+".lock", heatLockWait)
	if err != nil {
		return err
	}
	defer unlock()
	sum := tiers.NewHeat(p.Model, p.Sizes)
	if !replace {
		if old, err := p.Load(); err == nil {
			old.Age(age)
			sum.Add(old)
		}
	}
	sum.Add(h)
	b, err := sum.Encode()
	if err != nil {
		return fmt.Errorf("heat profile: %w", err)
	}
	return host.ReplaceFile(p.Path, b)
}

// Import takes the profile of a heat file into this model's: that of the same model, perhaps in another quantisation, made
// here or elsewhere. Another model's is refused with both values (tiers.ErrOtherModel).
func (p *HeatProfile) Import(path string, replace bool) error {
	h, err := ReadHeat(path)
	if err != nil {
		return err
	}
	if err := h.Fits(p.Model, p.Sizes); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	// Uses of another place and time add to what was learned here and do not make it older.
	return p.merge(h, 0, replace)
}

// heat keeps an engine's heat profile up to date.
type heat struct {
	profile *HeatProfile
	counter *tiers.HeatCounter
	log     *slog.Logger

	mu      sync.Mutex  // one saves at a time
	pending *tiers.Heat // counted and not saved yet

	full chan struct{} // heatTokens were counted
	stop chan struct{}
	done sync.WaitGroup
}

// openHeat names the model's profile, starts to count, and returns what was learned before, nil when there is nothing.
// Nothing about a profile is an error for a run.
func (e *Engine) openHeat() (*tiers.Heat, error) {
	if e.opt.HeatDir == "" || e.budget.Experts == 0 {
		return nil, nil
	}
	p, err := heatProfile(e.file, e.model, e.opt.HeatDir)
	if err != nil {
		return nil, err
	}
	h := &heat{profile: p, counter: tiers.NewHeatCounter(p.Sizes), log: e.log, full: make(chan struct{}, 1), stop: make(chan struct{}), pending: tiers.NewHeat(p.Model, p.Sizes)}
	h.done.Go(h.run)
	e.heat = h
	old, err := p.Load()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.log.Warn("heat profile is ignored", "reason", err)
		}
		return nil, nil
	}
	return old, nil
}

// use counts a layer's choices of a pass. It is on the way of every token.
func (h *heat) use(layer int, choices []int32, topK int) {
	if h.counter.Use(layer, choices, len(choices)/topK) >= heatTokens {
		select {
		case h.full <- struct{}{}:
		default:
		}
	}
}

// run saves from time to time until the engine is closed.
func (h *heat) run() {
	tick := time.NewTicker(heatEvery)
	defer tick.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-tick.C:
		case <-h.full:
		}
		h.save()
	}
}

// save adds what was counted since the last save to the file. What cannot be saved is kept for the next time.
func (h *heat) save() {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.counter.Take()
	h.pending.Age(d.Tokens)
	h.pending.Add(d)
	if h.pending.Tokens == 0 {
		return
	}
	if err := h.profile.merge(h.pending, h.pending.Tokens, false); err != nil {
		h.log.Warn("heat profile is not saved", "reason", err)
		return
	}
	h.pending = tiers.NewHeat(h.profile.Model, h.profile.Sizes)
}

func (h *heat) close() {
	close(h.stop)
	h.done.Wait()
	h.save()
}
