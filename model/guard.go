package model

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
)

// ErrNotFinite is wrapped when a pass gave a number that is NaN or infinite; the error names the layer it came from.
var ErrNotFinite = errors.New("not a finite number")

// Guard watches over weights that are a mapping of a file, which others may cut or write to meanwhile.
type Guard interface {
	// Fault is the error that a fault at an address means; nil: it is none of the mapping's, and the pass panics.
	Fault(addr uintptr) error
	// Check says why what a pass has just read cannot be believed, or nil. It allocates nothing while all is well.
	Check() error
}

// SetGuard has passes look out for faults of a mapping; nil: they do not.
func (m *Model) SetGuard(g Guard) { m.guard = g }

// caught makes the error of a fault that the guard knows; any other panic goes on. It is to be deferred.
func (m *Model) caught(err *error) {
	if m.guard == nil {
		return
	}
	x := recover()
	if x == nil {
		return
	}
	if at, ok := x.(interface{ Addr() uintptr }); ok {
		if e := m.guard.Fault(at.Addr()); e != nil {
			*err = e
			return
		}
	}
	panic(x)
}

// guarded is walk, where faults of the guard's mapping are errors.
func (m *Model) guarded(w *work) (err error) {
	if m.guard == nil {
		return m.walk(w)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer m.caught(&err)
	if err := m.walk(w); err != nil {
		return err
	}
	return m.guard.Check()
}

// notFinite is the place of the first element that is NaN or infinite, or -1.
func notFinite(x []float32) int {
	const exponent = 0x7f800000
	for i, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return i
		}
	}
	return -1
}

// badLogits looks through the logits that a walk gave.
func (m *Model) badLogits(w *work) error {
	for i := range w.seqs {
		s := &w.seqs[i]
		if at := notFinite(s.out); at >= 0 {
			vocab := m.cfg.Vocab
			return fmt.Errorf("position %d: the logit of token %d is %g, %w", s.st.pos+s.rows-s.want+at/vocab, at%vocab, s.out[at], ErrNotFinite)
		}
	}
	return nil
}

// locate walks the same rows again, looks at the residual behind each block, and tells where err came from. Nothing was
// committed yet, so the second walk computes what the first did.
func (m *Model) locate(w *work, err error) error {
	w.probing, w.found = true, nil
	again := m.guarded(w)
	w.probing = false
	switch {
	case w.found != nil:
		return fmt.Errorf("%w: %w", err, w.found)
	case again == nil:
		return fmt.Errorf("%w; a second pass gave finite numbers: the memory or the processor is faulty", err)
	case errors.Is(again, ErrNotFinite):
		return fmt.Errorf("%w; the residual is finite behind every block before it", err)
	}
	return errors.Join(err, again)
}

// probe reads the residual behind a block of a layer; layer -1 is the embedding.
func (w *work) probe(layer int, block string) error {
	if !w.probing || w.found != nil {
		return nil
	}
	x := make([]float32, w.x.Rows()*w.x.Cols())
	w.enc.Read(x, w.x)
	if err := w.enc.Submit(); err != nil {
		return err
	}
	if at := notFinite(x); at >= 0 {
		where := fmt.Sprintf("layer %d, behind its %s", layer, block)
		if layer < 0 {
			where = "the embedding"
		}
		w.found = fmt.Errorf("it comes from %s: element %d of row %d of the residual is %g", where, at%w.x.Cols(), at/w.x.Cols(), x[at])
	}
	return nil
}
