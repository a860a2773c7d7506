//go:build cgo && !novulkan

package vulkan

import (
	"fmt"
	"unsafe"

	"terrace/compute"
	"terrace/kernels"
	"terrace/router"
)

// route is what the device needs to choose the experts of a layer: where each lies, and what the rule has an expert.
type route struct {
	mem            *store
	of             *layerSlots
	version        uint64 // of the slots
	track          track
	gate, up, down uint64 // biases, 0: none
	pick, each     uint64
	table          uint64
	rule           *router.Rule
}

const (
	// flushWords is how much of a token is recorded before it is sent, 16 layers of Qwen3-MoE: sending costs too.
	flushWords = 5500
	// routeExperts, routeChosen and routeMost bound what is chosen on the device: experts, chosen of a row, and of all rows. Up to
	// routeRows rows have their experts for themselves, more share them.
	routeExperts, routeChosen, routeMost, routeRows = 1024, 128, 1 << 15, 8
	// shareRows is how many rows of an expert make a job where rows share experts.
	shareRows = 32
)

// Chooses reports whether RoutedFFN can take the place of a choice on the host, with its bits, for so many rows.
func (e *encoder) Chooses(r *router.Rule, rows int) bool {
	return e.b.pipe.numerics.Double && !e.b.opts.Exact && rows*r.K <= routeMost && r.Experts <= routeExperts && r.K <= routeChosen && r.Groups <= r.Experts/2
}

// RoutedFFN adds to each row of sum what experts make of the row of x: those that r chooses by the row's scores, weighed as r says
// and by factor. The layer is held until Submit. ids, rows x K, are there after Submit: the choices in the router's order, or all -1
// for a row whose scores cannot be compared.
func (e *encoder) RoutedFFN(sum, scores, x compute.Tensor, r *router.Rule, l *compute.ExpertLayer, factor float32, ids []int32) {
	e.drain()
	to, s, src := own(sum), own(scores), own(x)
	rows, n := to.rows, to.rows*r.K
	if rows == 0 {
		return
	}
	if to.rows != s.rows || s.rows != src.rows || s.cols != r.Experts || l.N != r.Experts || len(ids) != n || to == src || !e.Chooses(r, rows) {
		panic(fmt.Sprintf("vulkan: RoutedFFN of %d x %d by scores %d x %d into %d x %d, %d of %d experts, %d numbers", src.rows, src.cols, s.rows, s.cols,
			to.rows, to.cols, r.K, l.N, len(ids)))
	}
	one := l.Expert // with biases of one of them
	for _, b := range [...]*[]float32{&one.GateBias, &one.UpBias, &one.DownBias} {
		if len(*b)%l.N == 0 {
			*b = (*b)[:len(*b)/l.N]
		}
	}
	e.checkExpert(&one, src.cols, to.cols)
	t := e.route(l, r)
	ff, gated := l.Up.Out, l.Act != compute.ReLU2
	if !e.landing(4 * n) {
		return
	}
	b, land := e.down.take(4 * n)
	e.reads = append(e.reads, pending{unsafe.Slice((*byte)(unsafe.Pointer(&ids[0])), 4*n), b})
	// With few rows each of the chosen is a job; with many the rows of an expert are its jobs.
	count, most, index := n, 1, (*tensor)(nil)
	var jobs, weights *tensor
	if rows <= routeRows {
		jobs, weights = e.temp("route jobs", 1, 3*routeRows*r.K*jobBytes/4), e.temp("route weights", 1, routeRows*r.K)
		e.choose(r, t, s, jobs, weights, nil, land, ff, to.cols, factor)
	} else {
		count, most = r.Experts+n/shareRows, min(shareRows, rows)
		jobs, weights, index = e.temp("share jobs", 3*count, jobBytes/4), e.temp("share weights", n, 1), e.temp("share index", n, 1)
		chosen := e.temp("share chosen", n, 1)
		e.choose(r, t, s, nil, weights, chosen, 0, ff, to.cols, factor)
		e.share(r, t, chosen, index, jobs, land, ff, to.cols, count)
	}
	list := func(i int) uint64 { return jobs.addr() + uint64(i*count*jobBytes) }

	parts, g := e.temp("route parts", n, to.cols), e.temp("expert gate", n, ff)
	p := product{count: count, most: most, act: l.Act}
	switch {
	case gated && most == 1 && l.Gate.Type == l.Up.Type:
		p.at, p.pair = list(0), true
		e.routed(&p, g, src, &l.Gate, jobs)
	default:
		u := e.temp("expert up", n, ff)
		if gated {
			p.at = list(0)
			e.routed(&p, g, src, &l.Gate, jobs)
		}
		p.at = list(1)
		e.routed(&p, u, src, &l.Up, jobs)
		o := each{op: ewActivate, dst: g.addr(), x: g.addr(), y: u.addr(), n: n * ff, cols: ff, a: int(l.Act)}
		if !gated {
			o.x = u.addr()
		}
		e.in(&u.track, &g.track)
		e.out(&g.track)
		e.each(o)
		g.touch()
	}
	p = product{count: count, most: most, at: list(2)}
	e.routed(&p, parts, g, &l.Down, jobs)
	if index != nil {
		e.in(&index.track, &parts.track, &weights.track)
		e.weigh(to, parts, index.addr(), weights.addr(), r.K)
	} else {
		e.later(summed{x: to, y: parts, weights: weights, k: r.K})
	}
	e.stats.Hits += int64(n)
	e.stats.Routed++
	if len(e.list) > flushWords { // the device begins while the rest is recorded; the sum may wait all the same
		if err := e.send(); err != nil {
			e.fail(err)
		}
	}
}

// choose records the choice of experts. With jobs it makes those of single rows and leaves the choices where the host finds them, at
// land; without it leaves them in chosen.
func (e *encoder) choose(r *router.Rule, t *route, s, jobs, weights, chosen *tensor, land uint64, ff, out int, factor float32) {
	flags, cut, list := uint32(r.Gating), uint32(0), uint64(0)
	if r.Normalize {
		flags |= 16
	}
	if r.Groups > 1 {
		cut = uint32(r.Groups) | uint32(r.GroupsUsed)<<16
	}
	e.in(&s.track, &t.track)
	e.out(&weights.track)
	if jobs != nil {
		e.out(&jobs.track)
		list = jobs.addr()
	} else {
		e.out(&chosen.track)
		land = chosen.addr()
	}
	e.begin(shRoute, [4]uint32{uint32(r.Experts), uint32(r.K), flags, cut})
	e.u64(s.addr(), t.table, list, weights.addr(), land, t.gate, t.up, t.down, t.pick, t.each)
	e.u32(uint32(ff), uint32(out), uint32(s.rows))
	e.f32(r.Scale)
	e.f32(factor)
	e.dispatch(s.rows, 1, 1)
}

// share records what becomes of the choices of many rows: the rows by expert, where each choice lies among them, and jobs, of which
// there is room for count a list.
func (e *encoder) share(r *router.Rule, t *route, chosen, index, jobs *tensor, land uint64, ff, out, count int) {
	rows := e.temp("share rows", chosen.rows, 1)
	e.in(&chosen.track, &t.track)
	e.out(&rows.track, &index.track, &jobs.track)
	e.begin(shShare, [4]uint32{uint32(r.Experts), uint32(r.K), shareRows})
	e.u64(chosen.addr(), land, rows.addr(), index.addr(), jobs.addr(), t.table, t.gate, t.up, t.down)
	e.u32(uint32(ff), uint32(out), uint32(chosen.rows), uint32(count))
	e.dispatch(1, 1, 1)
}

// routed records the products of jobs that the device has made: rows of x with a matrix shaped like m.
func (e *encoder) routed(p *product, dst, x *tensor, m *compute.Matrix, jobs *tensor) {
	kind, _ := kernels.KindOf(m.Type)
	p.typ, p.in, p.out, p.stride, p.dst, p.ld = m.Type, m.In, m.Out, m.Type.RowBytes(m.In), dst.addr(), dst.cols
	if p.inline = p.most == 1 && e.inline(x, m.Type, m.In, m.Out, p.count); p.inline {
		kind = kernels.ActF32
	}
	var at *track
	p.q, p.d, p.s, at = e.act(x, kind)
	e.in(at, &jobs.track)
	e.out(&dst.track)
	dst.touch()
	e.multiply(p)
}

// route is the table of a layer, made anew where its experts lie elsewhere than before.
func (e *encoder) route(l *compute.ExpertLayer, r *router.Rule) *route {
	t := &e.b.tier
	t.mu.Lock()
	of := t.layers[l.Key]
	if of == nil || of.pins == 0 || of.n != l.N {
		t.mu.Unlock()
		panic(fmt.Sprintf("vulkan: %d experts from %#x on are not held", l.N, l.Key))
	}
	version := of.version
	t.mu.Unlock()
	have := e.routes[l.Key]
	if have != nil && have.of == of && have.version == version && have.rule == r {
		return have
	}
	var words []uint32
	for _, s := range of.slots {
		for _, a := range [...]uint64{s.gate, s.up, s.down} {
			words = append(words, uint32(a), uint32(a>>32))
		}
	}
	var at [5]int // of the floats, in words
	for i, f := range [...][]float32{l.GateBias, l.UpBias, l.DownBias, r.Bias, r.ExpertScale} {
		if len(f) > 0 {
			at[i] = len(words)
			words = append(words, unsafe.Slice((*uint32)(unsafe.Pointer(&f[0])), len(f))...)
		}
	}
	n := &route{of: of, version: version, rule: r}
	if have != nil {
		e.keep(have.mem)
	}
	if n.mem = e.store(uint64(4 * len(words))); n.mem == nil {
		n.mem = &store{} // the next Submit fails
		return n
	}
	e.upload(n.mem.region, 0, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 4*len(words)), &n.track)
	n.table = n.mem.addr()
	for i, to := range [...]*uint64{&n.gate, &n.up, &n.down, &n.pick, &n.each} {
		if at[i] > 0 {
			*to = n.table + uint64(4*at[i])
		}
	}
	if e.routes == nil {
		e.routes = map[uint64]*route{}
	}
	e.routes[l.Key] = n
	return n
}
