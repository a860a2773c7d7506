package grammar

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// frame is a link of a stack. With a call, pos is where to go on; with a counted repetition, pos is the instruction that
// entered it, and lo and hi are the rounds that must and may still come, the running one included.
type frame struct {
	parent, pos int32
	lo, hi      int32
}

// The frames that every machine has.
const (
	bottom  = 0 // the end of the root: the text may end
	unknown = 1 // the rest of a stack that was cut off
)

// config is one way to read the text so far: what comes next, and the stack.
type config struct{ pos, frame int32 }

// state is all ways to read the text so far. Positions are opBytes instructions.
type state struct {
	configs []config
	accept  bool // the text may end here
	loose   bool // some position takes any token without bytes
	mask    *mask
}

// Steps are state numbers, or:
const (
	unmade  = 0       // not known yet; no state has this number
	dead    = -1      // nothing
	cutFlag = 1 << 30 // added to a state that a stack was cut too short for
)

// limitBytes is what a machine may hold where its index names no other bound; a larger one gives way to a new one.
const limitBytes = 16 << 20

// machine is the automaton of a program as far as it was walked, for one vocabulary. Frames, states and steps are kept
// once made; size says how much that is.
type machine struct {
	prog   *program
	ix     *Index
	frames []frame
	states []state
	steps  []int32 // by state and class of bytes

	frameIDs map[frame]int32
	stateIDs map[string]int32
	size     int
	err      error

	// scratch
	todo, found []config
	seen        map[config]struct{}
	key         []byte
	path        []int32
	accept, cut bool
	words       []uint64
	cutConfigs  []config
}

func newMachine(p *program, ix *Index) *machine {
	m := &machine{prog: p, ix: ix, frameIDs: map[frame]int32{}, stateIDs: map[string]int32{}, seen: map[config]struct{}{},
		path: make([]int32, ix.longest+1), words: make([]uint64, (ix.size+63)/64)}
	m.frames = append(m.frames, frame{parent: -1}, frame{parent: -1})
	m.states = append(m.states, state{}) // number 0 means unmade
	m.steps = append(m.steps, make([]int32, p.classes)...)
	return m
}

// full tells that the machine is to be replaced, because of its size or because of an error, which one text may have met
// and others need not.
func (m *machine) full() bool { return m.size > m.ix.most || m.err != nil }

// start is the state at the beginning.
func (m *machine) start() (int32, error) {
	m.todo = append(m.todo[:0], config{m.prog.starts[m.prog.root], bottom})
	s := m.close()
	return s, m.err
}

// push gives the number of a frame.
func (m *machine) push(f frame) int32 {
	if id, ok := m.frameIDs[f]; ok {
		return id
	}
	id := int32(len(m.frames))
	m.frames = append(m.frames, f)
	m.frameIDs[f] = id
	m.size += 80
	return id
}

// close follows what takes no byte from the configurations in todo, and gives the state of those that take one.
func (m *machine) close() int32 {
	clear(m.seen)
	m.found = m.found[:0]
	m.accept, m.cut = false, false
	for len(m.todo) > 0 {
		c := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if _, ok := m.seen[c]; ok {
			continue
		}
		m.seen[c] = struct{}{}
		if len(m.seen) > 8*maxConfigs || len(m.found) > maxConfigs {
			m.err = fmt.Errorf("the grammar can be read in more than %d ways at once", maxConfigs)
			m.todo = m.todo[:0]
			return dead
		}
		in := &m.prog.insts[c.pos]
		switch in.op {
		case opBytes:
			m.found = append(m.found, c)
		case opSplit:
			for _, p := range in.eps {
				m.todo = append(m.todo, config{p, c.frame})
			}
		case opCall:
			to := c.frame
			if in.next != 0 {
				to = m.push(frame{parent: c.frame, pos: in.next})
			}
			m.todo = append(m.todo, config{m.prog.starts[in.arg], to})
		case opEnd:
			switch c.frame {
			case bottom:
				m.accept = true
			case unknown:
				m.cut = true
			default:
				f := m.frames[c.frame]
				m.todo = append(m.todo, config{f.pos, f.parent})
			}
		case opEnter:
			if in.min == 0 {
				m.todo = append(m.todo, config{in.next, c.frame})
			}
			m.todo = append(m.todo, config{in.arg, m.push(frame{parent: c.frame, pos: c.pos, lo: in.min, hi: in.max})})
		case opLoop:
			if c.frame == unknown {
				m.cut = true
				continue
			}
			f := m.frames[c.frame]
			f.lo = max(f.lo-1, 0)
			if f.hi != forever {
				f.hi--
			}
			if f.lo == 0 {
				m.todo = append(m.todo, config{m.prog.insts[f.pos].next, f.parent})
			}
			if f.hi > 0 {
				m.todo = append(m.todo, config{m.prog.insts[f.pos].arg, m.push(f)})
			}
		}
	}
	if len(m.found) == 0 && !m.accept && !m.cut {
		return dead
	}
	slices.SortFunc(m.found, func(a, b config) int {
		return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.frame, b.frame))
	})
	return m.intern(m.found, m.accept, m.cut)
}

// intern gives the number of a state, with cutFlag if cut.
func (m *machine) intern(configs []config, accept, cut bool) int32 {
	m.key = m.key[:0]
	flags := byte(0)
	if accept {
		flags |= 1
	}
	if cut {
		flags |= 2
	}
	m.key = append(m.key, flags)
	for _, c := range configs {
		m.key = binary.LittleEndian.AppendUint32(m.key, uint32(c.pos))
		m.key = binary.LittleEndian.AppendUint32(m.key, uint32(c.frame))
	}
	if id, ok := m.stateIDs[string(m.key)]; ok {
		return id
	}
	id := int32(len(m.states))
	s := state{configs: slices.Clone(configs), accept: accept}
	for _, c := range configs {
		s.loose = s.loose || m.prog.insts[c.pos].loose >= 0
	}
	m.states = append(m.states, s)
	for range m.prog.classes {
		m.steps = append(m.steps, unmade)
	}
	m.size += 160 + 4*m.prog.classes + 16*len(configs)
	if cut {
		id |= cutFlag
	}
	m.stateIDs[string(m.key)] = id
	return id
}

// step makes the step from state s by the bytes of a class.
func (m *machine) step(s int32, class uint8) int32 {
	b := m.prog.sample[class]
	m.todo = m.todo[:0]
	for _, c := range m.states[s].configs {
		for _, e := range m.prog.insts[c.pos].edges {
			if e.lo > b {
				break
			}
			if b <= e.hi {
				m.todo = append(m.todo, config{e.next, c.frame})
			}
		}
	}
	to := int32(dead)
	if len(m.todo) > 0 {
		to = m.close()
	}
	m.steps[int(s)*m.prog.classes+int(class)] = to
	return to
}

// take is where the bytes b lead from state s.
func (m *machine) take(s int32, b []byte) int32 {
	for _, x := range b {
		class := m.prog.class[x]
		t := m.steps[int(s)*m.prog.classes+int(class)]
		if t == unmade {
			t = m.step(s, class)
		}
		if t == dead {
			return dead
		}
		s = t
	}
	return s
}

// takeControl is where a token without bytes leads from state s.
func (m *machine) takeControl(s, id int32) int32 {
	m.todo = m.todo[:0]
	for _, c := range m.states[s].configs {
		in := &m.prog.insts[c.pos]
		named := false
		for _, k := range in.marks {
			if k.id == id {
				m.todo = append(m.todo, config{k.next, c.frame})
				named = true
			}
		}
		if !named && in.loose >= 0 && m.ix.silent[id>>6]>>(id&63)&1 != 0 {
			m.todo = append(m.todo, config{in.loose, c.frame})
		}
	}
	if len(m.todo) == 0 {
		return dead
	}
	return m.close()
}

// mask is the tokens that may come next: words, or ids where they are few.
type mask struct {
	words []uint64
	ids   []int32
	count int
	cut   bool // not known: the stacks were cut too short
}

// mask gives the tokens that may follow state s, those that end the text included.
//
// What one token can do depends on the top of the stacks only, and on counters only as far as a token is long. So masks are
// made for states whose stacks are cut to a few frames and whose counters are rounded down: if the walk over the vocabulary
// never came to a cut, the mask holds for every state that looks the same from above. Else more frames are tried.
func (m *machine) mask(s int32) *mask {
	if k := m.states[s].mask; k != nil {
		return k
	}
	for depth := 3; ; depth *= 2 {
		if depth > 1000 {
			depth = forever
		}
		a := m.view(s, depth)
		k := m.states[a].mask
		if k == nil {
			if k = m.fill(a); m.err != nil {
				return nil
			}
			m.states[a].mask = k
		}
		if !k.cut {
			m.states[s].mask = k
			return k
		}
	}
}

// view is state s with stacks cut to depth frames, and counters rounded.
func (m *machine) view(s int32, depth int) int32 {
	m.cutConfigs = m.cutConfigs[:0]
	for _, c := range m.states[s].configs {
		m.cutConfigs = append(m.cutConfigs, config{c.pos, m.cutFrame(c.frame, depth)})
	}
	slices.SortFunc(m.cutConfigs, func(a, b config) int {
		return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.frame, b.frame))
	})
	return m.intern(slices.Compact(m.cutConfigs), m.states[s].accept, false)
}

func (m *machine) cutFrame(id int32, depth int) int32 {
	if id == bottom || id == unknown {
		return id
	}
	if depth == 0 {
		return unknown
	}
	f := m.frames[id]
	f.parent = m.cutFrame(f.parent, depth-1)
	if far := int32(m.ix.longest + 1); f.hi != 0 {
		f.lo = min(f.lo, far)
		if f.hi >= far {
			f.hi = forever
		}
	}
	return m.push(f)
}

// fill walks over the vocabulary.
func (m *machine) fill(s int32) *mask {
	clear(m.words)
	words := m.words
	nodes, classes := m.ix.nodes, m.prog.classes
	m.path[0] = s
	for i := 0; i < len(nodes); {
		n := &nodes[i]
		at := int(m.path[n.depth-1])
		class := m.prog.class[n.b]
		to := m.steps[at*classes+int(class)]
		if to == unmade {
			if to = m.step(int32(at), class); m.err != nil {
				return nil
			}
			if m.size > 4*limitBytes {
				m.err = errBranches
				return nil
			}
		}
		if to == dead {
			i = int(n.skip)
			continue
		}
		if to&cutFlag != 0 {
			return &mask{cut: true}
		}
		m.path[n.depth] = to
		if n.token >= 0 {
			for id := n.token; id >= 0; id = m.ix.more[id] {
				words[id>>6] |= 1 << (id & 63)
			}
		}
		i++
	}
	if m.states[s].loose {
		for i, w := range m.ix.silent {
			words[i] |= w
		}
	}
	for _, c := range m.states[s].configs {
		for _, k := range m.prog.insts[c.pos].marks {
			bit := uint64(1) << (k.id & 63)
			words[k.id>>6] &^= bit
			switch to := m.takeControl(s, k.id); {
			case to == dead:
			case to&cutFlag != 0:
				return &mask{cut: true}
			default:
				words[k.id>>6] |= bit
			}
		}
	}
	at := &m.states[s]
	if at.accept {
		for _, id := range m.ix.ends {
			words[id>>6] |= 1 << (id & 63)
		}
	}
	count := 0
	for _, w := range words {
		count += bits.OnesCount64(w)
	}
	k := &mask{count: count}
	if count*4 < len(words)*8 {
		k.ids = make([]int32, 0, count)
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				k.ids = append(k.ids, int32(i*64+trailing(w)))
			}
		}
	} else {
		k.words = slices.Clone(words)
	}
	m.size += 64 + 4*len(k.ids) + 8*len(k.words)
	return k
}

var errBranches = fmt.Errorf("the grammar branches too much: one token's mask needs more than %d MiB", 4*limitBytes>>20)

// adopt gives the state of this machine that is state s of another one.
func (m *machine) adopt(from *machine, s int32) int32 {
	var copyFrame func(id int32) int32
	copyFrame = func(id int32) int32 {
		if id == bottom || id == unknown {
			return id
		}
		f := from.frames[id]
		f.parent = copyFrame(f.parent)
		return m.push(f)
	}
	old := &from.states[s]
	m.cutConfigs = m.cutConfigs[:0]
	for _, c := range old.configs {
		m.cutConfigs = append(m.cutConfigs, config{c.pos, copyFrame(c.frame)})
	}
	slices.SortFunc(m.cutConfigs, func(a, b config) int {
		return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.frame, b.frame))
	})
	return m.intern(m.cutConfigs, old.accept, false)
}
