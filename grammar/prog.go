package grammar

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// opcode is what an instruction does.
type opcode uint8

const (
	opBytes opcode = iota // takes a byte, or a control token
	opSplit               // goes on at each of eps
	opCall                // goes on at rule arg; next comes after it
	opEnd                 // ends a rule: goes on where it was called
	opEnter               // begins a counted repetition of the body at arg; next comes after it
	opLoop                // ends one round of the repetition that arg enters
)

// edge leads to next on the bytes from lo to hi.
type edge struct {
	lo, hi byte
	next   int32
}

// markEdge leads to next on a control token.
type markEdge struct{ id, next int32 }

// inst is an instruction. Programs run backwards from what follows: the position that comes after is known when an
// instruction is made, so a call that ends a rule needs no frame, and equal pieces before equal ends are made once.
type inst struct {
	op        opcode
	edges     []edge
	marks     []markEdge
	loose     int32 // opBytes: where other tokens without bytes lead, -1 if nowhere
	next, arg int32
	min, max  int32 // opEnter; max: forever if there is no end
	eps       []int32
}

// forever is a count without end.
const forever = 1<<31 - 1

// program is a compiled grammar. Position 0 is the end of every rule.
type program struct {
	insts   []inst
	starts  []int32 // of the rules
	root    int
	class   [256]uint8 // bytes that no instruction tells apart have one class
	classes int
	sample  [256]byte // a byte of each class
}

type compiler struct {
	prog    *program
	rules   []rule
	ix      *Index
	null    *nullables
	memo    map[place]int32
	tails   map[string]int32
	sizes   map[*node]int
	byVocab bool
	size    int
}

type place struct {
	n    *node
	next int32
}

type tooLarge struct{}

// compile makes a program of rules for a vocabulary; without one, control tokens are spelled out. byVocab tells whether
// there are any.
func compile(rules []rule, root int, ix *Index) (p *program, byVocab bool, err error) {
	c := &compiler{prog: &program{root: root}, rules: rules, ix: ix, null: findNullables(rules), memo: map[place]int32{}, tails: map[string]int32{}, sizes: map[*node]int{}}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(tooLarge); !ok {
				panic(r)
			}
			p, err = nil, fmt.Errorf("the grammar is too large: it makes more than %d instructions", maxProgram)
		}
	}()
	c.add(inst{op: opEnd})
	for _, r := range rules {
		c.prog.starts = append(c.prog.starts, c.node(r.body, 0))
	}
	c.prog.classify()
	return c.prog, c.byVocab, nil
}

func (c *compiler) add(in inst) int32 {
	if c.size += 1 + len(in.edges) + len(in.eps); c.size > maxProgram {
		panic(tooLarge{})
	}
	if in.op == opBytes && in.loose == 0 {
		in.loose = -1
	}
	c.prog.insts = append(c.prog.insts, in)
	return int32(len(c.prog.insts) - 1)
}

// node makes n, followed by next, and gives its position.
func (c *compiler) node(n *node, next int32) int32 {
	at := place{n, next}
	if p, ok := c.memo[at]; ok {
		return p
	}
	p := c.make(n, next)
	c.memo[at] = p
	return p
}

func (c *compiler) make(n *node, next int32) int32 {
	switch n.kind {
	case kEmpty:
		return next
	case kNever:
		return c.add(inst{op: opSplit})
	case kSet:
		return c.encoded(n.set.encodings(), next)
	case kText:
		return c.text(n.text, next)
	case kMark:
		c.byVocab = true
		if id, ok := c.control(n.text); ok {
			return c.add(inst{op: opBytes, marks: []markEdge{{id, next}}})
		}
		return c.text(n.text, next)
	case kSeq:
		for _, k := range slices.Backward(n.kids) {
			next = c.node(k, next)
		}
		return next
	case kAlt:
		return c.alt(n, next)
	case kRepeat:
		return c.repeat(n, next)
	case kRef:
		if next == 0 {
			return c.add(inst{op: opCall, arg: int32(n.ref), next: 0})
		}
		return c.add(inst{op: opCall, arg: int32(n.ref), next: next})
	}
	return c.free(n.free, next)
}

func (c *compiler) control(text string) (int32, bool) {
	if c.ix == nil {
		return 0, false
	}
	return c.ix.control(text)
}

func (c *compiler) text(s string, next int32) int32 {
	for i := len(s) - 1; i >= 0; i-- {
		next = c.add(inst{op: opBytes, edges: []edge{{s[i], s[i], next}}})
	}
	return next
}

// encoded makes an instruction for byte sequences, which are sorted.
func (c *compiler) encoded(encs [][]byteRange, next int32) int32 {
	key := fmt.Sprint(encs, next)
	if p, ok := c.tails[key]; ok {
		return p
	}
	var edges []edge
	for i := 0; i < len(encs); {
		first := encs[i][0]
		if len(encs[i]) == 1 {
			edges = append(edges, edge{first.lo, first.hi, next})
			i++
			continue
		}
		var rest [][]byteRange
		for ; i < len(encs) && encs[i][0] == first; i++ {
			rest = append(rest, encs[i][1:])
		}
		edges = append(edges, edge{first.lo, first.hi, c.encoded(rest, next)})
	}
	p := c.add(inst{op: opBytes, edges: edges})
	c.tails[key] = p
	return p
}

// alt makes an alternation with as few configurations as there can be, since maxConfigs bounds them: texts share their
// beginnings, and what is left of the alternatives that take a byte becomes one instruction.
func (c *compiler) alt(n *node, next int32) int32 {
	var texts []string
	var eps []int32
	for _, k := range n.kids {
		if s, ok := literal(k); ok && s != "" {
			texts = append(texts, s)
		} else {
			eps = append(eps, c.node(k, next))
		}
	}
	if len(texts) > 0 {
		slices.Sort(texts)
		eps = append(eps, c.texts(slices.Compact(texts), next))
	}
	slices.Sort(eps)
	eps = slices.Compact(eps)
	var edges []edge
	var rest []int32
	for _, p := range eps {
		if in := &c.prog.insts[p]; in.op == opBytes && len(in.marks) == 0 && in.loose < 0 && p != 0 {
			edges = append(edges, in.edges...)
			if len(edges) > maxProgram {
				panic(tooLarge{})
			}
		} else {
			rest = append(rest, p)
		}
	}
	if len(eps) > len(rest)+1 {
		slices.SortFunc(edges, func(a, b edge) int {
			return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi), cmp.Compare(a.next, b.next))
		})
		eps = append(rest, c.add(inst{op: opBytes, edges: slices.Compact(edges)}))
	}
	if len(eps) == 1 {
		return eps[0]
	}
	return c.add(inst{op: opSplit, eps: eps})
}

// literal is the one text that n stands for; false if it is not that simple.
func literal(n *node) (string, bool) {
	switch n.kind {
	case kText:
		return n.text, true
	case kSeq:
		var b strings.Builder
		for _, k := range n.kids {
			if k.kind != kText {
				return "", false
			}
			b.WriteString(k.text)
		}
		return b.String(), true
	}
	return "", false
}

// texts makes an instruction for texts, which are sorted, differ, and are not empty.
func (c *compiler) texts(all []string, next int32) int32 {
	var edges []edge
	for i := 0; i < len(all); {
		j, first := i+1, all[i][0]
		for j < len(all) && all[j][0] == first {
			j++
		}
		// They are sorted, so what the first and the last have in common is common to all between them.
		same := 1
		for a, b := all[i], all[j-1]; same < len(a) && same < len(b) && a[same] == b[same]; {
			same++
		}
		var longer []string
		for _, s := range all[i:j] {
			if len(s) > same {
				longer = append(longer, s[same:])
			}
		}
		add := func(to int32) { edges = append(edges, edge{first, first, c.text(all[i][1:same], to)}) }
		if len(all[i]) == same {
			add(next)
		}
		if len(longer) > 0 {
			add(c.texts(longer, next))
		}
		i = j
	}
	return c.add(inst{op: opBytes, edges: edges})
}

// sizeOf is about how many instructions n makes.
func (c *compiler) sizeOf(n *node) int {
	if s, ok := c.sizes[n]; ok {
		return s
	}
	s := 1
	switch n.kind {
	case kSet:
		s += min(len(n.set), 4)
	case kText, kMark:
		s += len(n.text)
	case kFree:
		s += maxUnrolled
	}
	for _, k := range n.kids {
		s = min(s+c.sizeOf(k), maxProgram)
	}
	if n.kind == kRepeat && n.max > 1 {
		s = min(s*2, maxProgram)
	}
	c.sizes[n] = s
	return s
}

// maxUnrolled is the size up to which a counted repetition is written out; larger ones count while they run.
const maxUnrolled = 24

func (c *compiler) repeat(n *node, next int32) int32 {
	kid, least, most := n.kids[0], n.min, n.max
	nullable := c.null.can(kid)
	if nullable {
		least = 0
	}
	if most < 0 && least <= 1 || most < 0 && least*c.sizeOf(kid) <= maxUnrolled {
		loop := c.add(inst{op: opSplit})
		body := c.node(kid, loop)
		c.prog.insts[loop].eps = []int32{body, next}
		at := loop
		for range least {
			at = c.node(kid, at)
		}
		return at
	}
	if most == 1 {
		return c.add(inst{op: opSplit, eps: []int32{c.node(kid, next), next}})
	}
	if nullable || most >= 0 && most*c.sizeOf(kid) <= maxUnrolled {
		at := next
		for range most - least {
			at = c.add(inst{op: opSplit, eps: []int32{c.node(kid, at), next}})
		}
		for range least {
			at = c.node(kid, at)
		}
		return at
	}
	end := int32(forever)
	if most >= 0 {
		end = int32(most)
	}
	enter := c.add(inst{op: opEnter, next: next, min: int32(least), max: end})
	loop := c.add(inst{op: opLoop, arg: enter})
	body := c.node(kid, loop)
	c.prog.insts[enter].arg = body
	return enter
}

// The states of well-formed UTF-8: between characters, and within one, where certain bytes must follow.
const (
	utfGround = iota
	utfOne    // one more
	utfTwo
	utfThree
	utfE0 // two more, the first from 0xa0
	utfED // two more, the first to 0x9f
	utfF0 // three more, the first from 0x90
	utfF4 // three more, the first to 0x8f
)

// utf8Step is the state after b; false if b must not come.
func utf8Step(state int, b byte) (int, bool) {
	in := func(lo, hi byte) bool { return b >= lo && b <= hi }
	switch state {
	case utfOne:
		return utfGround, in(0x80, 0xbf)
	case utfTwo:
		return utfOne, in(0x80, 0xbf)
	case utfThree:
		return utfTwo, in(0x80, 0xbf)
	case utfE0:
		return utfOne, in(0xa0, 0xbf)
	case utfED:
		return utfOne, in(0x80, 0x9f)
	case utfF0:
		return utfTwo, in(0x90, 0xbf)
	case utfF4:
		return utfTwo, in(0x80, 0x8f)
	}
	switch {
	case b < 0x80:
		return utfGround, true
	case in(0xc2, 0xdf):
		return utfOne, true
	case b == 0xe0:
		return utfE0, true
	case b == 0xed:
		return utfED, true
	case in(0xe1, 0xef):
		return utfTwo, true
	case b == 0xf0:
		return utfF0, true
	case b == 0xf4:
		return utfF4, true
	case in(0xf1, 0xf3):
		return utfThree, true
	}
	return 0, false
}

// freeState is where a free text stands: how far each exit's text has come, and within which character it is.
type freeState struct {
	progress string // pairs of exit and position, as bytes
	start    bool   // only white space so far
	utf      int
}

// free makes the automaton that looks for the exits of f.
func (c *compiler) free(f *free, next int32) int32 {
	const token = 256 // a control token is token + id
	// What looks like a control token to whoever reads the text ends it too: each exit has a pattern in which control tokens
	// are spelled out.
	var pats [][]int32
	var of []exit
	var used [256]bool
	tokens := map[int32]bool{}
	for _, e := range f.exits {
		var pat, spelled []int32
		marked := false
		for _, p := range e.pieces {
			id, ok := int32(0), false
			if p.kind == kMark {
				c.byVocab = true
				if id, ok = c.control(p.text); ok {
					pat, marked = append(pat, token+id), true
					tokens[id] = true
				}
			}
			for _, b := range []byte(p.text) {
				spelled = append(spelled, int32(b))
				if used[b] = true; !ok {
					pat = append(pat, int32(b))
				}
			}
		}
		pats, of = append(pats, pat), append(of, e)
		if marked {
			pats, of = append(pats, spelled), append(of, e)
		}
	}
	for _, b := range []byte(" \t\r\n") {
		used[b] = true
	}
	thens := make([]int32, len(of))
	for i, e := range of {
		thens[i] = c.node(e.then, next)
	}
	at := map[freeState]int32{} // positions to go to: with the end, if the text may end there
	takes := map[freeState]int32{}
	var todo []freeState
	enter := func(s freeState) int32 {
		if p, ok := at[s]; ok {
			return p
		}
		todo = append(todo, s)
		p := c.add(inst{op: opBytes})
		takes[s] = p
		if f.ends && s.utf == utfGround {
			p = c.add(inst{op: opSplit, eps: []int32{p, next}})
		}
		at[s] = p
		return p
	}
	// after is where symbol leads from s.
	after := func(s freeState, symbol int32, utf int) int32 {
		var b strings.Builder
		to := int32(-1)
		move := func(exit, pos int) {
			switch {
			case pats[exit][pos] != symbol || to >= 0:
			case pos+1 == len(pats[exit]):
				to = thens[exit]
			default:
				b.WriteByte(byte(exit))
				b.WriteByte(byte(pos + 1))
			}
		}
		for i := 0; i < len(s.progress); i += 2 {
			move(int(s.progress[i]), int(s.progress[i+1]))
		}
		for i, e := range of {
			if !e.first || s.start {
				move(i, 0)
			}
		}
		if to >= 0 {
			return to
		}
		blank := symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n'
		return enter(freeState{b.String(), s.start && blank, utf})
	}
	start := enter(freeState{start: true})
	for len(todo) > 0 {
		s := todo[0]
		todo = todo[1:]
		var edges []edge
		for v := range 256 {
			utf, ok := utf8Step(s.utf, byte(v))
			if !ok {
				continue
			}
			var to int32
			if used[v] {
				to = after(s, int32(v), utf)
			} else {
				to = enter(freeState{utf: utf})
			}
			if k := len(edges) - 1; k >= 0 && edges[k].next == to && int(edges[k].hi)+1 == v {
				edges[k].hi = byte(v)
			} else {
				edges = append(edges, edge{byte(v), byte(v), to})
			}
		}
		p := takes[s]
		if c.size += len(edges); c.size > maxProgram {
			panic(tooLarge{})
		}
		var marks []markEdge
		loose := int32(-1)
		if s.utf == utfGround {
			for id := range tokens {
				to := after(s, token+id, utfGround)
				if f.loose || !isFree(at, to) {
					marks = append(marks, markEdge{id, to})
				}
			}
			slices.SortFunc(marks, func(a, b markEdge) int { return int(a.id) - int(b.id) })
			if f.loose {
				loose = enter(freeState{})
			}
		}
		in := &c.prog.insts[p]
		in.edges, in.marks, in.loose = edges, marks, loose
	}
	return start
}

// isFree tells whether to is one of the free text's own positions at which no exit has begun.
func isFree(at map[freeState]int32, to int32) bool {
	p, ok := at[freeState{}]
	return ok && p == to
}

// classify finds the classes of bytes.
func (p *program) classify() {
	var cut [257]bool
	cut[0] = true
	for i := range p.insts {
		for _, e := range p.insts[i].edges {
			cut[e.lo], cut[int(e.hi)+1] = true, true
		}
	}
	c := -1
	for b := range 256 {
		if cut[b] {
			c++
			p.sample[c] = byte(b)
		}
		p.class[b] = uint8(c)
	}
	p.classes = c + 1
}
