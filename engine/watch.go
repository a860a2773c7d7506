package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Watcher follows what the routers choose and where experts go. It belongs to one goroutine, which takes changes as fast as
// it can use them, at most ten a second: one that comes late gets the sum of what it missed, so that a slow watcher holds
// no memory and delays nobody.
type Watcher struct {
	m      *monitor
	wake   chan struct{}
	used   []uint32
	places []byte
	passes int64
	rows   int64
	gave   time.Time // when the last change was given
	change Change
}

// Change is what happened since the change before, valid until the next one is asked for. Experts are numbered through the
// model, layer after layer.
type Change struct {
	Passes, Rows int64    // as in Recent
	Routed       []uint32 // of each expert that was chosen: number<<8 | rows that chose it, 255 for more
	Moved        []uint32 // of each expert whose place is another: number<<8 | place (tiers.State and flags)
	Missed       int      // periods that passed before the watcher asked
}

// ErrNoExperts is what Watch answers for a model without routed experts.
var ErrNoExperts = errors.New("the model has no routed experts")

// Watch begins to watch. places are those of all experts now, from which the changes go on.
func (e *Engine) Watch() (w *Watcher, places []byte, err error) {
	m := e.mon
	if m == nil {
		return nil, nil, ErrNoExperts
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.watchers); n >= maxWatchers {
		return nil, nil, fmt.Errorf("%w: %d of %d", ErrWatchers, n, maxWatchers)
	}
	now := time.Now()
	w = &Watcher{m: m, wake: make(chan struct{}, 1), used: make([]uint32, len(m.used)), places: make([]byte, len(m.used)), passes: m.passes, rows: m.rows, gave: now}
	copy(w.used, m.used)
	m.cache.Places(w.places)
	m.watchers[w] = struct{}{}
	return w, append([]byte(nil), w.places...), nil
}

// Close ends the watch.
func (w *Watcher) Close() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	delete(w.m.watchers, w)
}

// Next waits for something to change and returns it, at the earliest a tenth of a second after the change before. An error
// is that of ctx.
func (w *Watcher) Next(ctx context.Context) (*Change, error) {
	c := &w.change
	c.Missed = max(0, int(time.Since(w.gave)/watchEvery)-1)
	timer := time.NewTimer(time.Until(w.gave.Add(watchEvery)))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		w.ask()
		timer.Reset(watchPatient)
		select {
		case <-w.wake:
		case <-timer.C:
			w.look()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if w.compare() {
			w.gave = time.Now()
			return c, nil
		}
		timer.Reset(watchEvery)
	}
}

// ask wants the state at the end of the running pass. A word from before counts for nothing.
func (w *Watcher) ask() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.due = true
	select {
	case <-w.wake:
	default:
	}
}

// look takes the state by itself, when no pass ends.
func (w *Watcher) look() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.publish(time.Now())
}

// compare fills the change with what is new and tells whether anything is.
func (w *Watcher) compare() bool {
	c, v := &w.change, &w.m.view
	v.mu.Lock()
	defer v.mu.Unlock()
	c.Passes, c.Rows = v.passes-w.passes, v.rows-w.rows
	if c.Passes < 0 { // a view from before the watch
		return false
	}
	w.passes, w.rows = v.passes, v.rows
	c.Routed, c.Moved = c.Routed[:0], c.Moved[:0]
	for i, n := range v.used {
		if d := n - w.used[i]; d != 0 {
			c.Routed = append(c.Routed, uint32(i)<<8|min(d, 255))
			w.used[i] = n
		}
	}
	for i, p := range v.places {
		if p != w.places[i] {
			c.Moved = append(c.Moved, uint32(i)<<8|uint32(p))
			w.places[i] = p
		}
	}
	return len(c.Routed) > 0 || len(c.Moved) > 0
}
