package engine

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"

	"terrace/gguf"
	"terrace/model"
	"terrace/plan"
	"terrace/tiers"
)

// costs is what the memory goes to, but for what depends on the RAM budget (plan.Budget.Promise); it completes the options
// of context and batch. Only headers have been read.
func (e *Engine) costs() (Budget, error) {
	o, c := &e.opt, e.model.Config()
	switch {
	case o.Context == 0, c.Context == 0 && o.Context == ContextMost:
		o.Context = min(defaultContext, max(c.Context, 1))
	case o.Context == ContextMost:
		o.Context = c.Context
	}
	if o.CapContext && c.Context > 0 && o.Context > c.Context {
		e.log.Warn("the context asked for is more than the model was made for: the model's is used", "asked", o.Context, "context", c.Context)
		o.Context = c.Context
	}
	if c.Context > 0 && o.Context > c.Context {
		return Budget{}, fmt.Errorf("%w: context size is %d, the model was made for %d positions", ErrUsage, o.Context, c.Context)
	}
	o.Batch = min(o.Batch, o.Context)
	shape := e.model.KVShape(o.Context, o.KeyType, o.ValType)
	if err := shape.Check(); err != nil {
		return Budget{}, fmt.Errorf("%w: %s: %w", ErrUsage, o.Path, err)
	}
	b := Budget{
		Runtime: runtimeReserve + o.Reserve,
		Dense:   densePromise(e.model.Dense(), o.Dense),
		KV:      e.stateBytes(o.Context),
		Table:   e.tableBudget(),
		Work:    e.model.WorkBytes(o.rows()),
		Batch:   o.Batch,
	}
	if o.Slots > 1 {
		b.Runtime += int64(o.Slots) * int64(c.Vocab) * slotVocab
	}
	for _, s := range e.file.Shards {
		b.Runtime += 3 * s.DataStart // tokenizer tables, template, directory
	}
	e.layOut()
	sizes := make([]int, len(e.table))
	for i, l := range e.table {
		sizes[i] = len(l)
		b.Experts += len(l)
	}
	b.Runtime += tiers.PolicyBytes(tiers.Reuse, sizes)
	if b.Experts > 0 && o.Lookahead > 0 {
		if err := e.openGuesser(); err != nil {
			return Budget{}, err
		}
		b.Predictor = e.guesser.bytes
	}
	if b.Experts > 0 {
		b.ArenaMin = tiers.MinBytes(e.table, tiers.Need{TopK: c.TopK, Lookahead: o.Lookahead, Guesses: c.TopK})
		b.ArenaMost = e.slotBytes(b.Experts)
	}
	return b, nil
}

// widths are the wider passes that a budget may choose where the batch is left to the engine.
func (e *Engine) widths() []plan.Width {
	o := &e.opt
	if !o.autoBatch {
		return nil
	}
	var out []plan.Width
	at := o.Batch
	defer e.model.SetMaxRows(e.model.MaxRows())
	for _, n := range []int{1024, 2048} {
		if n = min(n, o.Context); n > at {
			at = n
			e.model.SetMaxRows(n + o.Slots - 1) // windows have room for a pass
			out = append(out, plan.Width{Batch: n, KV: e.stateBytes(o.Context), Work: e.model.WorkBytes(e.model.MaxRows())})
		}
	}
	return out
}

// ShapeOf is what a plan needs to know about the model in f, opened with these options: what Open would count, from headers
// alone. Path, RAM and ExpertRAM are not looked at.
func ShapeOf(f *gguf.File, o Options) (plan.Shape, error) {
	o.Path = f.Path
	if err := o.check(); err != nil {
		return plan.Shape{}, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	e := &Engine{opt: o, file: f, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	var err error
	if e.model, err = model.Load(f, model.Options{MaxRows: o.rows(), Rope: o.Rope}); err != nil {
		return plan.Shape{}, err
	}
	b, err := e.costs()
	if err != nil {
		return plan.Shape{}, err
	}
	m, c := e.model, e.model.Config()
	z := m.StateSize(o.KeyType, o.ValType)
	s := plan.Shape{
		Path: f.Path, Arch: c.Arch, Types: e.quantLabel(), Layers: c.Layers,
		ExpertsPerLayer: c.Experts, ExpertsPerToken: c.TopK,
		KVPerToken: z.Token + z.Index, StateBytes: z.Recurrent + z.Conv,
		Context: e.opt.Context, Parallel: e.opt.Slots, Batch: e.opt.Batch, Lookahead: e.opt.Lookahead,
		KeyType: e.opt.KeyType.String(), ValType: e.opt.ValType.String(),
		Fixed: b, Wider: e.widths(), Checkpoint: int64(e.opt.Slots) * m.CheckpointBytes(),
	}
	s.Model, _ = f.Metadata.StringOr("general.name", "") // for people only
	s.Prompts, s.Entry = o.CacheRAM, e.largestEntry()
	for i := range f.Tensors {
		s.ParamsTotal += f.Tensors[i].Elements()
	}
	for _, t := range m.Dense() {
		s.DenseBytes += t.Length
	}
	for _, n := range m.LayerBytes() {
		s.CardDense += n
	}
	if t := m.Table(); t != nil {
		s.TableBytes = t.Length
	}
	for _, l := range m.Experts() {
		if len(l) > 0 {
			s.ExpertLayers++
		}
		for i := range l {
			n := l[i].Bytes()
			if s.ExpertMin == 0 || n < s.ExpertMin {
				s.ExpertMin = n
			}
			s.ExpertMax = max(s.ExpertMax, n)
			s.ExpertTotal += n
			for _, p := range []model.Piece{l[i].Gate, l[i].Up, l[i].Down} {
				s.ExpertParams += uint64(p.In * p.Out)
			}
		}
	}
	s.Traffic = e.traffic()
	for _, t := range s.Traffic {
		s.ParamsActive += t.DenseParams + t.ExpertsParams
	}
	half := int64(e.opt.Context / 2)
	s.Attend = (z.Token-z.Windowed)*half + z.Windowed*min(half, int64(z.Window))
	s.RowOps = e.rowOps(z)
	return s, nil
}

// rowOps is plan.Shape.RowOps for a prompt of rowsAsked tokens. Multiply-adds of attention and of a recurrent state run a vector
// at a time from registers: eight count as one element of what passes through memory.
func (e *Engine) rowOps(z model.StateSize) float64 {
	const rowsAsked, vector = 512, 8
	c := e.model.Config()
	ops := float64(c.Layers) * float64(8*c.Embd+c.TopK*(c.Embd+3*c.ExpertFF)+3*(c.SharedFF+c.FF))
	group := 1.0
	if c.KVHeads > 0 {
		group = float64(c.Heads) / float64(c.KVHeads)
	}
	ops += float64(z.Token) / 2 * group * rowsAsked / 2 / vector
	return ops + 3*float64(z.Recurrent)/4/vector
}

// traffic sums what one decoded token reads, by type, the largest first: every dense matrix but the embedding table (one
// row), and top-k experts a layer.
func (e *Engine) traffic() []plan.Traffic {
	sum := map[gguf.Type]*plan.Traffic{}
	of := func(t gguf.Type) *plan.Traffic {
		if sum[t] == nil {
			sum[t] = &plan.Traffic{Type: t.String()}
		}
		return sum[t]
	}
	for _, t := range e.model.Dense() {
		if t.Name == "token_embd.weight" && !e.model.Config().Tied {
			continue
		}
		x := of(t.Type)
		x.Dense += t.Length
		x.DenseParams += uint64(t.In * t.Out)
		if t.Name == "output.weight" || t.Name == "token_embd.weight" {
			x.HeadParams += uint64(t.In * t.Out)
		}
	}
	k := int64(e.model.Config().TopK)
	for _, l := range e.model.Experts() {
		if len(l) == 0 {
			continue
		}
		for _, m := range []model.Piece{l[0].Gate, l[0].Up, l[0].Down} {
			if m.Length == 0 {
				continue
			}
			x := of(m.Type)
			x.Experts += k * m.Length
			x.ExpertsParams += uint64(k) * uint64(m.In*m.Out)
		}
	}
	out := make([]plan.Traffic, 0, len(sum))
	for _, t := range sum {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b plan.Traffic) int {
		return cmp.Or(cmp.Compare(b.Dense+b.Experts, a.Dense+a.Experts), cmp.Compare(a.Type, b.Type))
	})
	return out
}
