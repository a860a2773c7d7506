package model

import (
	"fmt"

	"terrace/compute"
	"terrace/router"
)

// routed is the feed-forward part of a layer with experts.
type routed struct {
	at                         int // the layer
	in                         residual
	gate                       residual // how the router sees the residual
	apart                      bool     // which is not how the experts do
	gateIn                     buffer
	beside                     func(w *work)  // recorded while experts are read; nil: nothing
	router, scoreBias          compute.Weight // scoreBias is nil where there is none
	name, biasName             string         // of their tensors; biasName is "" where there is none
	rule                       *router.Rule
	act                        compute.Act
	ff                         int
	eps                        float32
	gateBias, upBias, downBias []float32 // experts x rows; nil: none
	shared                     *mlp      // the expert that every token uses, or nil
	sharedGate                 compute.Weight
	guess                      [maxAhead]compute.Weight // fitted routers of the layers ahead, nil: their own
	block, gates, parts        buffer
	scores                     [maxAhead + 1]buffer
	peeks                      [maxAhead]buffer
}

// run adds the experts' part to the residual and offers guesses about the next layers, about the last one for the rows it
// will have.
func (r *routed) run(w *work) error {
	e, rows := w.enc, w.x.Rows()
	r.in.enter(w, w.h, w.x)
	ahead := r.lookAhead(w)
	if ahead == 0 && r.onDevice(w) {
		return nil
	}
	for k := range ahead + 1 {
		if s := w.seen[k]; s != nil {
			e.Read(w.hostScores[k], s)
		}
	}
	m := w.m
	if s, ok := e.(compute.Sharer); ok {
		s.Share(w.h)
	}
	if m.watch != nil {
		w.watchMid = grown(w.watchMid, rows*m.width)
		e.Read(w.watchMid, w.x)
	}
	if err := e.Submit(); err != nil {
		return err
	}
	if m.watch != nil {
		m.watch(Watched{Layer: r.at, Rows: rows, In: w.watchIn[len(w.watchIn)-rows*m.width:], Mid: w.watchMid, Scores: w.hostScores[0]})
	}
	if err := r.choose(w, rows); err != nil {
		return err
	}
	req, err := w.src.Begin(w.ctx, r.at, w.distinct, w.choices, w.hostScores[0])
	if err != nil {
		return fmt.Errorf("layer %d: %w", r.at, err)
	}
	// Guesses come after the need: its reads are queued first, and no guess can take a slot from it.
	last := len(m.layers) - 1
	for k := 1; k <= ahead; k++ {
		if w.seen[k] == nil {
			continue
		}
		if r.at+k == last {
			w.src.Hint(r.at, last, w.last(w.hostScores[k], r.rule.Experts), w.want)
			continue
		}
		w.src.Hint(r.at, r.at+k, w.hostScores[k], rows)
	}
	if err := r.compute(w, req); err != nil {
		// What is recorded still reads the experts that the request holds.
		if serr := e.Submit(); serr != nil {
			err = serr
		}
		req.Done()
		return fmt.Errorf("layer %d: %w", r.at, err)
	}
	e.OnDone(req)
	if f, ok := w.src.(Refiner); ok && rows == 1 && ahead > 0 && w.seen[1] != nil && f.Refine() {
		return r.refine(w)
	}
	return nil
}

// onDevice leaves the choice of experts to a device that keeps all of them, and answers whether there is one.
func (r *routed) onDevice(w *work) bool {
	c, ok := w.enc.(chooser)
	k, keeping := w.src.(Keeping)
	first, n := len(w.chosen), w.x.Rows()*r.rule.K
	if !ok || !keeping || w.probing || w.m.watch != nil || !c.Chooses(r.rule, w.x.Rows()) {
		return false
	}
	// Room for all layers: what is there keeps its place until the pass has run.
	if need := len(w.tokens) * w.m.cfg.TopK * len(w.m.layers); first == 0 && cap(w.chosen) < need && len(w.tokens) <= maxChosen {
		w.chosen = make([]int32, 0, need)
	}
	if first+n > cap(w.chosen) {
		return false
	}
	l, done, ok := k.Keeps(r.at)
	if !ok {
		return false
	}
	l.Act, l.GateBias, l.UpBias, l.DownBias = r.act, r.gateBias, r.upBias, r.downBias
	sum, factor, plain := r.begin(w)
	w.chosen = w.chosen[:first+n]
	w.there = append(w.there, there{r, first, n})
	c.RoutedFFN(sum, w.seen[0], w.h, r.rule, l, factor, w.chosen[first:first+n])
	if !plain {
		r.in.leave(w, sum)
	}
	w.enc.OnDone(done)
	return true
}

// there is a layer whose experts the device has chosen: n of w.chosen, from first on.
type there struct {
	r        *routed
	first, n int
}

// chosenThere passes on what the device chose, when the pass has run.
func (w *work) chosenThere() error {
	for _, t := range w.there {
		ids := w.chosen[t.first : t.first+t.n]
		for _, id := range ids {
			if id < 0 || int(id) >= t.r.rule.Experts { // a second pass, which asks the host, finds out more
				return fmt.Errorf("layer %d: %w among the router's scores", t.r.at, ErrNotFinite)
			}
		}
		w.src.(Keeping).Chosen(t.r.at, ids)
	}
	return nil
}

// refine offers a second guess about the next layer, made of the layer's output.
func (r *routed) refine(w *work) error {
	e, t, h := w.enc, w.m.layers[r.at+1].routed, w.rows(r.peeks[0], 1)
	by := r.guess[0]
	if by != nil {
		e.RMSNorm(h, w.x, nil, r.eps)
	} else {
		by = t.router
		t.gate.peek(w, h, w.x)
	}
	e.MatMul(w.seen[1], by, h)
	if t.scoreBias != nil && r.guess[0] == nil {
		e.AddBias(w.seen[1], t.scoreBias)
	}
	e.Read(w.hostScores[1], w.seen[1])
	if err := e.Submit(); err != nil {
		return err
	}
	w.src.Hint(r.at, r.at+1, w.hostScores[1], 1)
	return nil
}

// lookAhead records the layer's router scores and those of the layers ahead, w.seen, and answers how far it looked.
func (r *routed) lookAhead(w *work) int {
	m, e, rows := w.m, w.enc, w.x.Rows()
	last := len(m.layers) - 1
	ahead := min(w.ahead, last-r.at)
	if w.want == 0 && r.at+ahead == last { // the last layer will need no experts
		ahead = max(ahead-1, 0)
	}
	n := r.rule.Experts
	w.seen = [maxAhead + 1]compute.Tensor{w.rows(r.scores[0], rows)}
	var plain compute.Tensor // the residual by its root mean square, once for all fitted guesses
	var from [maxAhead + 1]compute.Tensor
	for k := 1; k <= ahead; k++ {
		t := m.layers[r.at+k].routed
		if t == nil {
			continue
		}
		w.seen[k] = w.rows(r.scores[k], rows)
		switch {
		case r.guess[k-1] == nil:
			from[k] = w.rows(r.peeks[k-1], rows)
			t.gate.peek(w, from[k], w.x)
		case plain == nil:
			plain = w.rows(r.peeks[k-1], rows)
			e.RMSNorm(plain, w.x, nil, r.eps)
			from[k] = plain
		default:
			from[k] = plain
		}
	}
	own := w.h
	if r.apart {
		own = w.rows(r.gateIn, rows)
		r.gate.enter(w, own, w.x)
	}
	e.MatMul(w.seen[0], r.router, own)
	for k := 1; k <= ahead; k++ {
		if w.seen[k] == nil {
			continue
		}
		by := m.layers[r.at+k].routed.router
		if r.guess[k-1] != nil {
			by = r.guess[k-1]
		}
		e.MatMul(w.seen[k], by, from[k])
	}
	for k := range ahead + 1 {
		if w.seen[k] == nil {
			continue
		}
		if b := m.layers[r.at+k].routed.scoreBias; b != nil && (k == 0 || r.guess[k-1] == nil) {
			e.AddBias(w.seen[k], b)
		}
		w.hostScores[k] = grown(w.hostScores[k], rows*n)
	}
	return ahead
}

// choose routes the rows: choices, weights, and both sorted by expert.
func (r *routed) choose(w *work, rows int) error {
	n, top := r.rule.Experts, r.rule.K
	w.choices, w.weights, w.index = grown(w.choices, rows*top), grown(w.weights, rows*top), grown(w.index, rows*top)
	w.rowOf, w.pairOf = grown(w.rowOf, rows*top), grown(w.pairOf, rows*top)
	for i := range rows {
		at, to := i*n, i*top
		err := r.rule.TopK(w.hostScores[0][at:at+n], w.choices[to:to+top], w.weights[to:to+top], &w.scratch)
		if err != nil && notFinite(w.hostScores[0][at:at+n]) >= 0 {
			err = fmt.Errorf("%w: %w", ErrNotFinite, err)
		}
		if err != nil {
			return fmt.Errorf("layer %d, token %d: %w", r.at, w.where(i), err)
		}
	}
	w.group(n, top)
	return nil
}

// compute records the shared expert, while reads are on their way, then each expert as it arrives, and adds them up.
func (r *routed) compute(w *work, req Request) (err error) {
	defer w.m.caught(&err) // so that the request is closed, too
	sum, factor, plain := r.begin(w)
	parts := w.rows(r.parts, w.x.Rows()*r.rule.K)
	if err := r.experts(w, parts, req); err != nil {
		return err
	}
	if factor != 1 {
		for i := range w.weights {
			w.weights[i] = float32(w.weights[i] * factor)
		}
	}
	w.enc.WeightedSum(sum, parts, w.index, w.weights, r.rule.K)
	if !plain {
		r.in.leave(w, sum)
	}
	return nil
}

// begin records what comes before the experts, and answers what their outputs, times factor, are added to: the residual where that
// is plain.
func (r *routed) begin(w *work) (sum compute.Tensor, factor float32, plain bool) {
	e, rows := w.enc, w.x.Rows()
	factor, plain = r.in.plain()
	if !plain {
		factor = 1
	}
	if r.beside != nil {
		r.beside(w)
	}
	sum = w.x
	if r.shared != nil {
		y := w.rows(r.block, rows)
		r.shared.apply(w, y, w.h)
		if r.sharedGate != nil {
			g := w.rows(r.gates, rows)
			e.MatMul(g, r.sharedGate, w.h)
			e.GateRows(y, g)
		}
		if plain {
			r.in.leave(w, y)
		} else {
			sum = y
		}
	} else if !plain {
		sum = w.rows(r.block, rows)
		e.Clear(sum)
	}
	return sum, factor, plain
}

// experts records each expert of the layer as it arrives. Outputs lie in order of arrival; index finds them.
func (r *routed) experts(w *work, parts compute.Tensor, req Request) error {
	first := int32(0)
	for int(first) < len(w.choices) { // not until the request has none left: those whose reads failed are an error to be met
		id, x, ok, err := req.Next(w.ctx, false)
		if err == nil && !ok {
			// Nothing is ready: run what has arrived, so that its slots can hold what comes next.
			if err = w.enc.Submit(); err == nil {
				req.Recycle()
				id, x, ok, err = req.Next(w.ctx, true)
			}
		}
		if err != nil {
			return err
		}
		if !ok || w.taken[id] || w.offset[id+1] == w.offset[id] {
			panic(fmt.Sprintf("model: the source handed out expert %d (%t) out of turn, of %v", id, ok, w.distinct))
		}
		w.taken[id] = true
		x.Act = r.act
		x.GateBias, x.UpBias, x.DownBias = rowOf(r.gateBias, id, r.ff), rowOf(r.upBias, id, r.ff), rowOf(r.downBias, id, parts.Cols())
		from, to := w.offset[id], w.offset[id+1]
		w.enc.ExpertFFN(parts, int(first), x, w.h, w.rowOf[from:to])
		for j := from; j < to; j++ {
			w.index[w.pairOf[j]] = first + j - from
		}
		first += to - from
	}
	return nil
}

// rowOf is row i of n elements, nil where there are none.
func rowOf(x []float32, i int32, n int) []float32 {
	if x == nil {
		return nil
	}
	return x[int(i)*n : (int(i)+1)*n]
}

// group sorts the choices of a layer by expert.
func (w *work) group(experts, k int) {
	if len(w.taken) < experts {
		w.distinct, w.offset, w.taken = make([]int32, 0, experts), make([]int32, experts+1), make([]bool, experts)
	}
	clear(w.offset)
	clear(w.taken)
	for _, id := range w.choices {
		w.offset[id+1]++
	}
	w.distinct = w.distinct[:0]
	for id := range experts {
		if w.offset[id+1] > 0 {
			w.distinct = append(w.distinct, int32(id))
		}
		w.offset[id+1] += w.offset[id]
	}
	// offset[id] serves as the expert's write position and ends up as the next one's beginning; then it moves back.
	for p, id := range w.choices {
		at := w.offset[id]
		w.rowOf[at], w.pairOf[at] = int32(p/k), int32(p)
		w.offset[id]++
	}
	copy(w.offset[1:], w.offset[:experts])
	w.offset[0] = 0
}

// set makes r the layer's feed-forward part.
func (l *layer) set(r *routed) { l.ffn, l.routed = r, r }
