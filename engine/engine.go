package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
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
	cache   *tiers.Cache // nil for a model without experts
	shapes  []expertShape
	table   [][]tiers.Desc // where each expert lies, by layer
	budget  Budget
	store   string // the store that was taken
	load    time.Duration
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
	e := &Engine{opt: o, file: f, log: o.Log}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if e.model, err = model.Load(f, model.Options{MaxRows: o.Batch}); err != nil {
		return nil, err
	}
	if e.tok, err = tokenizer.New(f.Metadata); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Path, err)
	}
	for _, w := range e.tok.Warnings() {
		e.log.Warn(w, "model", filepath.Base(o.Path))
	}
	if err := e.loadTemplate(); err != nil {
		return nil, err
	}
	if err := e.plan(); err != nil {
		return nil, err
	}
	if e.dense, err = readDense(f, e.model.Dense()); err != nil {
		return nil, err
	}
	e.backend, err = cpu.New(cpu.Options{Threads: o.Threads, Exact: o.Exact, Alloc: host.Alloc, Free: host.Free})
	if err != nil {
		return nil, err
	}
	if err := e.model.Bind(e.backend, func(name string) []byte { return e.dense.views[name] }); err != nil {
		return nil, err
	}
	if err := e.openTiers(); err != nil {
		return nil, err
	}
	// Collecting early keeps the heap inside what the budget set aside for it; weights and slots are not in it.
	debug.SetMemoryLimit(e.budget.Runtime + e.budget.Work)
	e.load = time.Since(start)
	e.log.Info("model loaded", "arch", e.model.Config().Arch, "dense", e.budget.Dense, "arena", e.budget.Arena, "slots", e.budget.Slots,
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
	b := Budget{
		RAM:     o.RAM,
		Runtime: runtimeReserve,
		Dense:   denseBytes(e.model.Dense()),
		KV:      e.model.KVShape(o.Context, o.KeyType, o.ValType).Bytes(),
		Work:    workBytes(c, o.Batch),
	}
	for _, s := range e.file.Shards {
		b.Runtime += 3 * s.DataStart // tokenizer tables, template, directory
	}
	e.layOut()
	for _, l := range e.table {
		b.Experts += len(l)
	}
	var least int64
	if b.Experts > 0 {
		n := int64(b.Experts)
		b.Slot = (tiers.ArenaBytes(e.table, b.Experts) + n - 1) / n // the mean of their sizes
		least = tiers.MinBytes(e.table, tiers.Need{TopK: c.TopK, Lookahead: o.Lookahead, Guesses: c.TopK})
		b.Min = max(minSlots(c.TopK, o.Lookahead, b.Experts), int(min((least+b.Slot-1)/b.Slot, n)))
	}
	if b.RAM == 0 {
		var err error
		if b.RAM, err = machineRAM(); err != nil && !o.ExpertRAM.isSet() {
			return err
		}
	}
	if err := b.decide(o.ExpertRAM); err != nil {
		return fmt.Errorf("%s: %w", o.Path, err)
	}
	if b.Experts > 0 {
		b.Arena = max(tiers.ArenaBytes(e.table, b.Slots), least) // Slots times the mean, to the byte
	}
	if o.RAM == 0 && o.ExpertRAM.isSet() { // the arena was given and fits the machine: the promise is what it makes
		b.RAM = b.fixed() + b.Arena
	}
	e.budget = b
	return nil
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

// openTiers opens the store and the cache over it.
func (e *Engine) openTiers() error {
	if e.budget.Experts == 0 {
		e.store = "none"
		return nil
	}
	paths := make([]string, len(e.file.Shards))
	for i, s := range e.file.Shards {
		paths[i] = s.Path
	}
	var st tiers.Store
	var err error
	switch e.opt.Store {
	case "uring":
		st, err = tiers.NewUring(paths, tiers.StoreOptions{}, e.log)
	case "pread":
		st, err = tiers.NewPread(paths, tiers.StoreOptions{})
	case "mmap":
		st, err = tiers.NewMmap(paths, tiers.StoreOptions{})
	case "auto":
		st, err = tiers.NewUring(paths, tiers.StoreOptions{}, e.log)
		if err != nil {
			e.log.Info("io_uring is not available, reading with pread", "reason", err)
			st, err = tiers.NewPread(paths, tiers.StoreOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", e.opt.Store, err)
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

// Budget is where the memory goes.
func (e *Engine) Budget() Budget { return e.budget }

// Options are the completed options.
func (e *Engine) Options() Options { return e.opt }

// Close frees all memory. No session may be in use.
func (e *Engine) Close() error {
	var errs []error
	if e.cache != nil {
		errs = append(errs, e.cache.Close()) // closes its store
		e.cache = nil
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
