package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"terrace/chat"
	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
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
	backend *cpu.Backend
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
	told    tiers.Stats // counters when the last request's statistics were made
	log     *slog.Logger
	quant   string
}

// Open loads a model: header, tokenizer, dense weights and an empty expert arena.
func Open(o Options) (opened *Engine, err error) {
	start := time.Now()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	f, err := gguf.Open(o.Path)
	if err != nil {
		return nil, err
	}
	e := &Engine{opt: o, file: f, log: o.Log, watch: host.NewWatch(o.machine)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.model, err = model.Load(f, model.Options{MaxRows: o.Batch, Rope: o.Rope}); err != nil {
		return nil, err
	}
	if err := e.plan(); err != nil {
		return nil, err
	}
	if e.dense, err = openDense(f, e.model.Dense(), e.opt.Dense); err != nil {
		return nil, err
	}
	if err := e.openTiers(); err != nil {
		return nil, err
	}
	e.govern()
	// From here on a learned model's hottest experts are on their way, while the processor is busy with its vocabulary.
	if e.tok, err = tokenizer.New(f.Metadata); err != nil {
		return nil, err
	}
	for _, w := range e.tok.Warnings() {
		e.log.Warn(w, "model", filepath.Base(o.Path))
	}
	if err := e.loadTemplate(); err != nil {
		return nil, err
	}
	e.backend, err = cpu.New(cpu.Options{Threads: o.Threads, Exact: o.Exact, Alloc: host.Alloc, Free: host.Free})
	if err != nil {
		return nil, err
	}
	if err := e.model.Bind(e.backend, func(name string) []byte { return e.dense.views[name] }); err != nil {
		return nil, err
	}
	if err := e.openRows(); err != nil {
		return nil, err
	}
	if err := e.bindGuesser(); err != nil {
		return nil, err
	}
	e.load = time.Since(start)
	e.log.Info("model loaded", "arch", e.model.Config().Arch, "dense", e.dense.bytes, "dense_in", e.opt.Dense, "arena", e.budget.Arena, "slots", e.budget.Slots,
		"experts", e.budget.Experts, "store", e.store, "threads", o.Threads, "ms", e.load.Milliseconds())
	return e, nil
}

// plan fills the budget before anything large is read.
func (e *Engine) plan() error {
	o, c := &e.opt, e.model.Config()
	if o.Context == 0 {
		o.Context = min(defaultContext, max(c.Context, 1))
	}
	if c.Context > 0 && o.Context > c.Context {
		return fmt.Errorf("%w: context size is %d, the model was made for %d positions", ErrUsage, o.Context, c.Context)
	}
	o.Batch = min(o.Batch, o.Context)
	shape := e.model.KVShape(o.Context, o.KeyType, o.ValType)
	if err := shape.Check(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUsage, o.Path, err)
	}
	b := Budget{
		RAM:     o.RAM,
		Runtime: runtimeReserve,
		Dense:   densePromise(e.model.Dense(), o.Dense),
		KV:      e.model.StateBytes(o.Context, o.KeyType, o.ValType),
		Table:   e.tableBudget(),
		Work:    e.model.WorkBytes(o.Batch),
	}
	for _, s := range e.file.Shards {
		b.Runtime += 3 * s.DataStart // tokenizer tables, template, directory
	}
	e.layOut()
	for _, l := range e.table {
		b.Experts += len(l)
	}
	b.Runtime += o.Reserve
	if b.Experts > 0 && o.Lookahead > 0 {
		if err := e.openGuesser(); err != nil {
			return err
		}
		b.Predictor = e.guesser.bytes
	}
	slots := e.slotBytes
	if b.Experts > 0 {
		b.ArenaMin = tiers.MinBytes(e.table, tiers.Need{TopK: c.TopK, Lookahead: o.Lookahead, Guesses: c.TopK})
		b.ArenaMost = slots(b.Experts)
	}
	var s host.MemorySample
	if err := e.watch.Read(&s); err != nil && !(b.RAM > 0 || o.ExpertRAM.isSet()) {
		return fmt.Errorf("the memory limit of the control group, give --ram: %w", err)
	} else if err != nil {
		e.log.Warn("the memory limit of the control group cannot be read", "error", err)
	}
	if b.RAM == 0 {
		var err error
		if b.RAM, err = autoRAM(&s); err != nil && !o.ExpertRAM.isSet() {
			return err
		}
	}
	copied := e.model.CheckpointBytes()
	b.Checkpoints = checkpoints(copied, b.RAM)
	b.KV += int64(b.Checkpoints) * copied
	b.Runtime += pageTables(b.Dense + b.KV + b.Table)
	if err := b.decide(o.ExpertRAM, slots); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	if o.RAM == 0 && o.ExpertRAM.isSet() { // the arena was given and fits the machine: the promise is what it makes
		b.RAM = b.fixed() + mapped(b.Arena)
	}
	if err := b.fit(&s, o.ExpertRAM); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	if b.Experts > 0 {
		b.Arena = max(b.arenaIn(b.Now), b.ArenaMin)
		b.Slots = int(float64(b.Arena)/float64(slots(b.Experts))*float64(b.Experts) + 1e-6) // sizes differ: about so many
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
	if e.dense != nil {
		e.dense.free()
		e.dense = nil
	}
	return errors.Join(errs...)
}
