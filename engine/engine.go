package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"terrace/chat"
	"terrace/compute"
	"terrace/gguf"
	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/model"
	"terrace/plan"
	"terrace/tiers"
	"terrace/tokenizer"
)

// ErrUsage is wrapped by refusals of options that can never work, whatever the machine.
var ErrUsage = errors.New("wrong option")

// Engine is a loaded model. Its sessions run one at a time.
type Engine struct {
	opt     Options
	file    *gguf.File
	model   *model.Model
	tok     *tokenizer.Tokenizer
	tmpl    *chat.Template
	backend compute.Backend
	gpu     *gpu // beside the CPU; nil: there is none
	lives   int  // of what sequences remember: a device that is lost takes it along
	dense   *dense
	rows    *tiers.Table // of a table that stays on disk; nil: the model has none
	cache   *tiers.Cache // nil for a model without experts
	shapes  []expertShape
	table   [][]tiers.Desc // where each expert lies, by layer
	budget  Budget
	heat    *heat // nil when it is off
	guesser guesser
	watch   *host.Watch // until the governor has it
	gov     *governor   // nil only while the engine opens
	store   string      // the store that was taken
	load    time.Duration
	told    tiers.Stats            // counters when the last request's statistics were made
	space   func() (string, error) // of a sequence's state
	mon     *monitor               // nil for a model without experts
	stall   stallWatch

	measured atomic.Pointer[rates] // nil before MeasureRates
	log      *slog.Logger
	quant    string
}

// Open loads a model: header, tokenizer, dense weights and an empty expert arena.
func Open(o Options) (opened *Engine, err error) {
	start := time.Now()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	o.step(LoadHeader, 0, 0)
	f, err := gguf.Open(o.Path)
	if err != nil {
		return nil, err
	}
	e := &Engine{opt: o, file: f, log: o.Log, watch: host.NewWatch(fault.Machine(o.machine))}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.space = sync.OnceValues(e.stateSpace)
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.model, err = model.Load(f, model.Options{MaxRows: o.rows(), Rope: o.Rope}); err != nil {
		return nil, err
	}
	if err := e.pickBackend(); err != nil {
		return nil, err
	}
	if err := e.plan(); err != nil {
		return nil, err
	}
	if e.dense, err = openDense(f, e.model.Dense(), e.opt.Dense, func(done, total int64) { o.step(LoadDense, done, total) }); err != nil {
		return nil, err
	}
	o.step(LoadStore, 0, 0)
	if err := e.openTiers(); err != nil {
		return nil, err
	}
	e.govern()
	// From here on a learned model's hottest experts are on their way, while the processor is busy with its vocabulary.
	o.step(LoadVocabulary, 0, 0)
	if e.tok, err = tokenizer.New(f.Metadata); err != nil {
		return nil, err
	}
	for _, w := range e.tok.Warnings() {
		e.log.Warn(w, "model", filepath.Base(o.Path))
	}
	if err := e.loadTemplate(); err != nil {
		return nil, err
	}
	o.step(LoadBackend, 0, 0)
	if err := e.openBackend(); err != nil {
		return nil, err
	}
	if e.dense.guard != nil {
		e.model.SetGuard(e.dense.guard)
	}
	if err := e.model.Bind(e.backend, func(name string) []byte { return e.dense.views[name] }); err != nil {
		return nil, err
	}
	if e.gpu != nil {
		e.gpu.bound()
	}
	if err := e.openRows(); err != nil {
		return nil, err
	}
	if err := e.bindGuesser(); err != nil {
		return nil, err
	}
	e.watchStalls()
	e.load = time.Since(start)
	o.step(LoadDone, 0, 0)
	e.log.Info("model loaded", "arch", e.model.Config().Arch, "dense", e.dense.bytes, "dense_in", e.opt.Dense, "arena", e.budget.Arena, "slots", e.budget.Slots,
		"experts", e.budget.Experts, "store", e.store, "backend", e.backend.Name(), "threads", o.Threads, "ms", e.load.Milliseconds())
	return e, nil
}

// plan fills the budget before anything large is read.
func (e *Engine) plan() error {
	most := e.opt.Context == ContextMost
	b, err := e.costs()
	if err != nil {
		return err
	}
	o, slots := &e.opt, e.slotBytes
	ram := o.RAM
	var s host.MemorySample
	if err := e.watch.Read(&s); err != nil && !(ram > 0 || o.ExpertRAM.isSet()) {
		return fmt.Errorf("the memory limit of the control group, give --ram: %w", err)
	} else if err != nil {
		e.log.Warn("the memory limit of the control group cannot be read", "error", err)
	}
	if ram == 0 {
		var err error
		if ram, err = autoRAM(&s); err != nil && !o.ExpertRAM.isSet() {
			return err
		}
	}
	if most {
		if err := e.fitContext(&b, ram); err != nil {
			return fmt.Errorf("%s: %w", o.Path, err)
		}
	}
	asked := b.ArenaMost
	if t := b; o.ExpertRAM.isSet() && arenaOf(&t, o.ExpertRAM, slots) == nil {
		asked = t.Arena
	}
	b.Widen(ram, asked, e.widths())
	o.Batch = b.Batch
	e.model.SetMaxRows(max(o.rows(), e.model.MaxRows()))
	b.Promise(ram, int64(o.Slots)*e.model.CheckpointBytes())
	b.KeepPrompts(o.CacheRAM, e.largestEntry())
	if o.SlotFiles && b.Cache == 0 {
		b.Runtime += e.largestEntry()
	}
	if err := decide(&b, o.ExpertRAM, slots); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	if o.RAM == 0 && o.ExpertRAM.isSet() { // the arena was given and fits the machine: the promise is what it makes
		b.RAM = b.Fixed() + plan.Mapped(b.Arena)
	}
	if err := fit(&b, &s, o.ExpertRAM); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	if b.Experts > 0 {
		b.Arena = max(b.ArenaIn(b.Now), b.ArenaMin)
		b.Slots = plan.SlotsIn(b.Arena, slots(b.Experts), b.Experts)
	}
	if b.Now < b.RAM {
		e.log.Warn("the RAM budget is more than the machine offers; the expert arena starts smaller and grows when it can", "budget", b.RAM, "now", b.Now, "limit", s.Limit, "available", s.Available)
	}
	e.budget = b
	return nil
}

// slotBytes is the size of an arena with so many slots.
func (e *Engine) slotBytes(n int) int64 { return tiers.ArenaBytes(e.table, n) }

// govern puts the arena under a governor. It looks at the machine by itself unless the arena was fixed.
func (e *Engine) govern() {
	var a resizer = noArena{}
	if e.cache != nil {
		a = e.cache
	}
	e.gov = newGovernor(a, e.budget, e.watch, e.log)
	e.watch = nil
	if e.cache != nil && !e.opt.ExpertRAM.isSet() {
		e.gov.start()
	}
}

// SetRAM changes the RAM budget while the engine is in use: the arena gives memory back or takes more, nothing that is lent
// is touched, and no result changes. The machine may offer less than the budget; then that is used. It refuses less than
// the smallest working set.
func (e *Engine) SetRAM(bytes int64) error { return e.gov.set(bytes) }

// Over is how many bytes the arena still holds beyond its size after it shrank: what is lent or being read goes when it
// comes back.
func (e *Engine) Over() int64 {
	target, live := e.gov.arena.Arena()
	return max(0, live-target)
}

// layOut fills the table of where each expert's matrices lie, and their types and shapes by layer.
func (e *Engine) layOut() {
	layers := e.model.Experts()
	out := make([][]tiers.Desc, len(layers))
	e.shapes = make([]expertShape, len(layers))
	for l, xs := range layers {
		out[l] = make([]tiers.Desc, len(xs))
		for i, x := range xs {
			d := &out[l][i]
			d.ID = tiers.ExpertID{Layer: uint16(l), Expert: uint16(i)}
			for p, m := range []model.Piece{x.Gate, x.Up, x.Down} {
				d.Pieces[p] = tiers.Piece{Shard: m.Shard, Offset: m.Offset, Length: m.Length}
			}
			e.shapes[l] = expertShape{gate: x.Gate.Matrix(nil), up: x.Up.Matrix(nil), down: x.Down.Matrix(nil)}
		}
	}
	e.table = out
}

// openTiers opens the store and the cache over it, and starts to read what was hot before.
func (e *Engine) openTiers() error {
	if e.budget.Experts == 0 {
		e.store = "none"
		return nil
	}
	st, err := e.openStore()
	if err != nil {
		return err
	}
	e.store = st.Name()
	c := e.model.Config()
	e.cache, err = tiers.NewCache(tiers.Options{
		Store: st, Experts: e.table, Bytes: e.budget.Arena, TopK: c.TopK, Lookahead: e.opt.Lookahead, Guesses: c.TopK, Log: e.log,
	})
	if err != nil {
		st.Close()
		return err
	}
	e.mon = newMonitor(e.cache, e.table, c.TopK)
	learned, err := e.openHeat()
	if err != nil {
		return err
	}
	if learned != nil {
		n := e.cache.Preload(learned.Rates())
		e.log.Info("heat profile", "file", e.heat.profile.Path, "tokens", learned.Tokens, "preload", n)
	}
	return nil
}

// loadTemplate compiles the file's chat template.
func (e *Engine) loadTemplate() error {
	src, err := e.file.Metadata.StringOr("tokenizer.chat_template", "")
	if err != nil {
		return err
	}
	if e.opt.Template != "" {
		src = e.opt.Template
	}
	text := func(id int32) string {
		if id < 0 {
			return ""
		}
		return e.tok.Text(id)
	}
	var special []string
	for id := int32(0); id < int32(e.tok.Vocab()); id++ {
		if e.tok.IsControl(id) {
			special = append(special, e.tok.Text(id))
		}
	}
	e.tmpl, err = chat.Default(src, chat.Options{BOS: text(e.tok.BOS()), EOS: text(e.tok.EOS()), Special: special})
	if err != nil {
		return fmt.Errorf("%s: tokenizer.chat_template: %w", e.opt.Path, err)
	}
	if e.tmpl.Fallback {
		e.log.Warn("the file has no chat template: ChatML is used", "model", filepath.Base(e.opt.Path))
	}
	return nil
}

// Model is the architecture with its configuration.
func (e *Engine) Model() *model.Model { return e.model }

// File is the header of the open model.
func (e *Engine) File() *gguf.File { return e.file }

// Tokenizer is the model's own.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// Template is the model's chat template, or the ChatML fallback.
func (e *Engine) Template() *chat.Template { return e.tmpl }

// Budget is where the memory goes now.
func (e *Engine) Budget() Budget {
	_, b := e.gov.snapshot()
	return b
}

// Options are the completed options.
func (e *Engine) Options() Options { return e.opt }

// Close frees all memory. No session may be in use.
func (e *Engine) Close() error {
	var errs []error
	e.stall.close() // it looks at all of them
	if e.heat != nil {
		e.heat.close()
		e.heat = nil
	}
	if e.watch != nil {
		e.watch.Close()
		e.watch = nil
	}
	if e.gov != nil {
		e.gov.close()
		e.gov = nil
	}
	if e.gpu != nil {
		e.gpu.close() // it lends from the cache
	}
	if e.cache != nil {
		errs = append(errs, e.cache.Close()) // closes its store
		e.cache = nil
	}
	if e.rows != nil {
		errs = append(errs, e.rows.Close())
		e.rows = nil
	}
	if e.backend != nil {
		errs = append(errs, e.backend.Close())
		e.backend = nil
	}
	e.gpu = nil
	if e.dense != nil {
		e.dense.free()
		e.dense = nil
	}
	return errors.Join(errs...)
}
