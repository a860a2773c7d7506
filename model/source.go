package model

import (
	"context"
	"fmt"

	"terrace/compute"
	"terrace/gguf"
	"terrace/router"
)

// Source is where the routed experts of a forward pass come from. The model declares it and whoever has the experts
// answers it, so that the model knows no storage. Layers are asked for in rising order, one request at a time.
type Source interface {
	// Lookahead is how many layers ahead Hint is wanted for a batch of rows tokens: 0, 1 or 2. It is asked once a forward
	// pass.
	Lookahead(rows int) int
	// Hint offers the router scores of layer target computed on the residual of layer at after its attention, before its
	// experts: rows x experts, row-major. The slice is valid during the call. Nearer layers come first; hints at a layer
	// come after its Begin, and all hints about a layer before its Begin.
	Hint(at, target int, scores []float32, rows int)
	// Begin asks for the distinct experts, in rising order, that layer needs; choices holds the rows x top-k experts in
	// the router's order, and scores the rows x experts router scores they were chosen by. The slices are valid until the
	// request is done.
	Begin(ctx context.Context, layer int, experts, choices []int32, scores []float32) (Request, error)
}

// Keeping is a Source that knows of layers all of whose experts a device keeps. The device chooses them itself then, and the pass does
// not wait for the host.
type Keeping interface {
	// Keeps answers the experts of a layer that has them all on the device, in a pass whose choices nobody has to see before it is
	// over; they stay until done. Nothing is Begun for the layer then.
	Keeps(layer int) (l *compute.ExpertLayer, done compute.Done, ok bool)
	// Chosen tells what the device chose, rows x top-k in the router's order, when the pass is over. The slice is valid during the
	// call.
	Chosen(layer int, choices []int32)
}

// chooser is an encoder that chooses experts by itself.
type chooser interface {
	// Chooses reports whether RoutedFFN can take the place of a choice on the host, with its bits, for so many rows.
	Chooses(r *router.Rule, rows int) bool
	// RoutedFFN adds to each row of sum what experts make of the row of x: those that r chooses by the row's scores, weighed as r
	// says and by factor. The layer is held until Submit. ids, rows x K, are there after Submit: the choices in the router's order,
	// or all -1 for a row whose scores cannot be compared.
	RoutedFFN(sum, scores, x compute.Tensor, r *router.Rule, l *compute.ExpertLayer, factor float32, ids []int32)
}

// Refiner is a Source that may want a second, better hint about the next layer: from the output of the layer at work, its
// experts included, in decode steps. It comes late, with only the next layer's attention before the need, and costs a wait
// of the backend for each layer.
type Refiner interface {
	Refine() bool
}

// Request hands out the experts of one layer in the order in which they become ready. Each expert comes once.
type Request interface {
	// Next gives an expert; its matrices are valid until Recycle or Done. With wait false ok is false when none is ready
	// now; with wait true it blocks until one is, ctx ends or reading failed. A failed read is an error of the next call,
	// whichever it is. It must not be called when all experts were handed out.
	Next(ctx context.Context, wait bool) (expert int32, e *compute.Expert, ok bool, err error)
	// Recycle tells that no expert handed out so far is in use any longer. A layer of a large batch may need more experts
	// than there are slots: then Next can only go on with slots that came back.
	Recycle()
	// Done ends the request and releases everything; the experts not handed out are not wanted any more.
	compute.Done
}

// Resident is a Source whose experts are all in memory: for tests, and for models that fit.
type Resident struct {
	layers [][]compute.Expert
	ahead  int
	req    residentRequest
}

var _ Source = (*Resident)(nil)

// NewResident takes the bytes of each expert matrix from bytes, which answers a view that stays valid, Length bytes
// long; ahead is the lookahead it asks hints for, and drops.
func NewResident(m *Model, ahead int, bytes func(e gguf.Extent) ([]byte, error)) (*Resident, error) {
	r := &Resident{ahead: ahead, layers: make([][]compute.Expert, m.cfg.Layers)}
	for l, experts := range m.Experts() {
		r.layers[l] = make([]compute.Expert, len(experts))
		for i := range experts {
			d, e := &experts[i], &r.layers[l][i]
			for _, p := range []struct {
				from *Piece
				to   *compute.Matrix
			}{{&d.Gate, &e.Gate}, {&d.Up, &e.Up}, {&d.Down, &e.Down}} {
				b, err := bytes(p.from.Extent)
				if err != nil {
					return nil, fmt.Errorf("layer %d, expert %d: %w", l, i, err)
				}
				if int64(len(b)) != p.from.Length {
					return nil, fmt.Errorf("layer %d, expert %d: %d bytes, want %d", l, i, len(b), p.from.Length)
				}
				*p.to = p.from.Matrix(b)
			}
		}
	}
	return r, nil
}

// Lookahead implements Source.
func (r *Resident) Lookahead(rows int) int { return r.ahead }

// Hint implements Source; there is nothing to fetch early.
func (r *Resident) Hint(at, target int, scores []float32, rows int) {}

// Begin implements Source.
func (r *Resident) Begin(_ context.Context, layer int, experts, _ []int32, _ []float32) (Request, error) {
	r.req = residentRequest{experts: r.layers[layer], ids: experts}
	return &r.req, nil
}

type residentRequest struct {
	experts []compute.Expert
	ids     []int32 // not handed out yet
}

func (q *residentRequest) Next(context.Context, bool) (int32, *compute.Expert, bool, error) {
	id := q.ids[0]
	q.ids = q.ids[1:]
	return id, &q.experts[id], true, nil
}

func (q *residentRequest) Recycle() {}
func (q *residentRequest) Done()    { q.ids = nil }
