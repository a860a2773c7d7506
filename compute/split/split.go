// Package split is a backend of two, a device's and the host's: the layers that the device has room for run there, those before them on
// the host, and experts in the host's memory are computed by the host while the device computes those that it keeps.
//
// It holds no arithmetic and decides nothing about who is kept where. Results are those of the two backends, in the order in which
// operations are recorded; where an expert runs shows in no bit as long as both compute an expert alike.
//
// Weights and caches belong to a side for good; tensors are wherever they were written last and are copied when the other side
// reads them. A device may be lost (Lose) and come back (Take): weights are bound anew, and what caches held on the device is gone.
package split

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"terrace/compute"
	"terrace/gguf"
)

// The sides.
const (
	host = iota
	dev
)

// Device is a backend whose encoder takes rows from the host while it runs.
type Device interface {
	compute.Backend
	compute.Slots
}

// Options configure a Backend.
type Options struct {
	Host   compute.HostRows
	Device Device
	// First is the first layer on the device; those before it are the host's.
	First int
	// States says how many layers of KV caches, of recurrent states and of block indices come before a layer; nil: none do.
	States func(layer int) (kv, recurrent, index int)
	// Experts: experts in the host's memory may be computed there. Otherwise the device computes all that its layers ask for.
	Experts bool
	Log     *slog.Logger // nil: silent
}

// Backend implements compute.Backend on both sides. It and what it makes serve one goroutine at a time, but for compute.Slots.
type Backend struct {
	opt   Options
	log   *slog.Logger
	side  [2]compute.Backend // that of a lost device is nil
	first int                // layer; beyond all of them when there is no device
	layer int                // of the next weights
	gen   int                // rises when the device goes
	enc   encoder

	mu    sync.RWMutex
	slots compute.Slots // nil: there is no device

	weights []*weight
	states  map[state]struct{}
}

// state is something of a sequence that has layers on both sides.
type state interface {
	// place makes it anew, with the layers before the first device layer on the host, and takes over what the host holds.
	place() error
}

// nowhere is a layer behind all others.
const nowhere = 1 << 30

var (
	_ compute.Backend = (*Backend)(nil)
	_ compute.Slots   = (*Backend)(nil)
	_ compute.Placer  = (*Backend)(nil)

	_ compute.LayerKeeper = (*Backend)(nil)
)

// New joins two backends, which Close closes.
func New(o Options) *Backend {
	b := &Backend{opt: o, log: o.Log, side: [2]compute.Backend{o.Host, o.Device}, first: o.First, states: map[state]struct{}{}, slots: o.Device}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.enc.init(b)
	return b
}

// Name is the device's, with the host's.
func (b *Backend) Name() string {
	if b.side[dev] == nil {
		return b.side[host].Name()
	}
	return b.side[dev].Name() + " + " + b.side[host].Name()
}

// Supports implements compute.Backend.
func (b *Backend) Supports(t gguf.Type) bool {
	return b.side[host].Supports(t) && (b.side[dev] == nil || b.side[dev].Supports(t))
}

// Layer implements compute.Placer.
func (b *Backend) Layer(n int) { b.layer = n }

// of is the side of a layer.
func (b *Backend) of(layer int) int {
	if b.side[dev] == nil || b.first > 0 && layer < b.first {
		return host
	}
	return dev
}

// Encoder implements compute.Backend.
func (b *Backend) Encoder() compute.Encoder { return &b.enc }

// Close closes both.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.slots = nil
	b.mu.Unlock()
	var err error
	if b.side[dev] != nil {
		err = b.side[dev].Close()
	}
	return errors.Join(err, b.side[host].Close())
}

// keeper is the device's, or nil.
func (b *Backend) keeper() compute.Slots {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.slots
}

// Hold implements compute.Keeper.
func (b *Backend) Hold(key uint64) bool {
	s := b.keeper()
	return s != nil && s.Hold(key)
}

// Release implements compute.Keeper.
func (b *Backend) Release(key uint64) {
	if s := b.keeper(); s != nil {
		s.Release(key)
	}
}

// Keeps implements compute.Keeper.
func (b *Backend) Keeps(key uint64) bool {
	s := b.keeper()
	return s != nil && s.Keeps(key)
}

// HoldLayer implements compute.LayerKeeper.
func (b *Backend) HoldLayer(first uint64, n int) bool {
	k, ok := b.keeper().(compute.LayerKeeper)
	return ok && k.HoldLayer(first, n)
}

// ReleaseLayer implements compute.LayerKeeper.
func (b *Backend) ReleaseLayer(first uint64) {
	if k, ok := b.keeper().(compute.LayerKeeper); ok {
		k.ReleaseLayer(first)
	}
}

// Put implements compute.Slots.
func (b *Backend) Put(e *compute.Expert) error {
	s := b.keeper()
	if s == nil {
		return fmt.Errorf("%w: there is no device", compute.ErrNoRoom)
	}
	return s.Put(e)
}

// Drop implements compute.Slots.
func (b *Backend) Drop(key uint64) bool {
	s := b.keeper()
	return s != nil && s.Drop(key)
}

// Lose goes on without the device: everything is the host's from now on. What tensors and caches held on the device is gone; caches
// are empty. An error is of memory that the host has not.
func (b *Backend) Lose() error {
	d := b.side[dev]
	if d == nil {
		return nil
	}
	b.mu.Lock()
	b.slots = nil
	b.mu.Unlock()
	b.enc.reset()
	b.side[dev], b.first = nil, nowhere
	b.gen++
	b.enc.bind()
	for _, w := range b.weights {
		w.on[dev] = nil
	}
	err := b.placeAll()
	if cerr := d.Close(); cerr != nil {
		b.log.Warn("a lost device was not closed", "error", cerr)
	}
	return err
}

// Take goes on with a device, in place of the one that was lost. What caches hold goes along. After an error the device is not in
// use, and the caller's.
func (b *Backend) Take(d Device) error {
	if b.side[dev] != nil {
		panic("split: Take beside a device")
	}
	if err := b.enc.Submit(); err != nil {
		return err
	}
	for _, w := range b.weights {
		if w.stays || b.opt.First > 0 && w.layer < b.opt.First {
			continue
		}
		x, err := d.NewWeight(w.m)
		if err != nil {
			for _, w := range b.weights {
				w.on[dev] = nil
			}
			return err
		}
		w.on[dev] = x
	}
	b.side[dev], b.first = d, b.opt.First
	b.enc.bind()
	if err := b.placeAll(); err != nil {
		b.side[dev], b.first = nil, nowhere
		b.gen++
		b.enc.bind()
		for _, w := range b.weights {
			w.on[dev] = nil
		}
		return errors.Join(err, b.placeAll())
	}
	b.mu.Lock()
	b.slots = d
	b.mu.Unlock()
	return nil
}

func (b *Backend) placeAll() error {
	for s := range b.states {
		if err := s.place(); err != nil {
			return err
		}
	}
	return nil
}

// weight implements compute.Weight.
type weight struct {
	b     *Backend
	m     compute.Matrix
	layer int
	stays bool // on the host, since the device has no room
	on    [2]compute.Weight
}

func (w *weight) Type() gguf.Type { return w.m.Type }
func (w *weight) In() int         { return w.m.In }
func (w *weight) Out() int        { return w.m.Out }

// NewWeight implements compute.Backend. A weight that the device has no memory for is the host's.
func (b *Backend) NewWeight(m compute.Matrix) (compute.Weight, error) {
	w := &weight{b: b, m: m, layer: b.layer}
	s := b.of(w.layer)
	x, err := b.side[s].NewWeight(m)
	if err != nil && s == dev {
		if w.on[host], err = b.side[host].NewWeight(m); err == nil {
			b.log.Warn("a weight stays with the CPU: the device has no room for it", "type", m.Type.String(), "rows", m.Out, "columns", m.In)
			w.stays = true
			b.weights = append(b.weights, w)
			return w, nil
		}
	}
	if err != nil {
		return nil, err
	}
	w.on[s] = x
	b.weights = append(b.weights, w)
	return w, nil
}

// where is the side that has the weight.
func (w *weight) where() int {
	if w.on[dev] != nil {
		return dev
	}
	return host
}

// at is the weight on a side. One that the side does not have is brought there.
func (w *weight) at(s int) compute.Weight {
	if w.on[s] == nil {
		x, err := w.b.side[s].NewWeight(w.m)
		if err != nil {
			w.b.enc.fail(err)
			return w.on[1-s]
		}
		w.on[s] = x
	}
	return w.on[s]
}

func ownWeight(w compute.Weight) *weight {
	x, ok := w.(*weight)
	if !ok {
		panic(fmt.Sprintf("split: a weight of another backend (%T)", w))
	}
	return x
}

// weightAt is w on a side; nil stays nil.
func weightAt(w compute.Weight, s int) compute.Weight {
	if w == nil {
		return nil
	}
	return ownWeight(w).at(s)
}
