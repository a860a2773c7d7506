// Package grammar makes a model write what a grammar allows: GBNF, JSON Schema and the tool calls of chat templates,
// compiled to an automaton over bytes and, for each of its states, to the set of tokens that may come next.
//
// It does not sample, and it does not tokenize: a vocabulary is the bytes of its tokens, and Constrain joins a Matcher with
// whatever picks from logits.
//
// # How it works
//
// A Grammar is a tree of rules over characters. It compiles to a nondeterministic pushdown automaton over bytes, in which a
// character is its well-formed UTF-8 encoding and nothing else, so text that is accepted is valid UTF-8, also where tokens
// cut characters. States of the automaton are sets of configurations, each a position and a stack; stacks, states and the
// steps between states are kept once they were met (see machine), so a known step is one look into a table. A mask is one
// walk over the tree of the vocabulary's bytes, and it is kept with what it depends on: the top of the stacks, and counters
// as far as one token can count (see machine.mask).
package grammar

import (
	"fmt"
	"slices"
	"sync"
)

// Grammar is a compiled grammar. It may be used by several goroutines at once.
type Grammar struct {
	rules []rule
	root  int
	plain *program // the program, if it is the same for every vocabulary

	mu       sync.Mutex
	machines map[*Index]*shared
}

// shared is what the matchers of one grammar and one vocabulary work with.
type shared struct {
	mu      sync.Mutex
	machine *machine // the newest; matchers change over from a full one
	prog    *program
}

// rule is a named part of a grammar.
type rule struct {
	name string
	body *node
}

// kind says what a node is.
type kind uint8

const (
	kEmpty  kind = iota // the empty text
	kNever              // no text at all
	kSet                // one character of set
	kText               // the characters of text
	kSeq                // kids in turn
	kAlt                // one of kids
	kRepeat             // kids[0] from min to max times, max < 0: without end
	kRef                // rule ref
	kMark               // text: the control token that is spelled so, or the characters if there is none
	kFree               // anything, see free
)

// node is a piece of a grammar. Nodes may be shared, also between grammars, and do not change once built.
type node struct {
	kind     kind
	set      runeSet
	text     string
	kids     []*node
	min, max int
	ref      int
	free     *free
}

// free is text, in well-formed characters, up to the first of some texts.
type free struct {
	exits []exit
	ends  bool // the text may end without an exit
	loose bool // control tokens may stand between the characters
}

// exit ends a free text: with its last piece the rest of the grammar begins.
type exit struct {
	pieces []*node // kText and kMark
	first  bool    // only as the beginning, white space aside
	then   *node
}

var (
	empty = &node{kind: kEmpty}
	never = &node{kind: kNever}
)

func text(s string) *node {
	if s == "" {
		return empty
	}
	return &node{kind: kText, text: s}
}

func mark(s string) *node { return &node{kind: kMark, text: s} }

func chars(s runeSet) *node {
	if len(s) == 0 {
		return never
	}
	return &node{kind: kSet, set: s}
}

func seq(kids ...*node) *node {
	out := make([]*node, 0, len(kids))
	for _, k := range kids {
		switch k.kind {
		case kNever:
			return never
		case kEmpty:
		case kSeq:
			out = append(out, k.kids...)
		default:
			out = append(out, k)
		}
	}
	switch len(out) {
	case 0:
		return empty
	case 1:
		return out[0]
	}
	return &node{kind: kSeq, kids: out}
}

func alt(kids ...*node) *node {
	out := make([]*node, 0, len(kids))
	for _, k := range kids {
		switch {
		case k.kind == kNever || len(out) < 16 && slices.Contains(out, k):
		case k.kind == kAlt:
			out = append(out, k.kids...)
		default:
			out = append(out, k)
		}
	}
	switch len(out) {
	case 0:
		return never
	case 1:
		return out[0]
	}
	return &node{kind: kAlt, kids: out}
}

// repeat is kid from least to most times; most < 0: without end.
func repeat(kid *node, least, most int) *node {
	switch {
	case kid.kind == kEmpty || most == 0:
		return empty
	case kid.kind == kNever:
		if least == 0 {
			return empty
		}
		return never
	case least == 1 && most == 1:
		return kid
	}
	return &node{kind: kRepeat, kids: []*node{kid}, min: least, max: most}
}

func opt(kid *node) *node { return repeat(kid, 0, 1) }

// Limits of a grammar, so that no request can take more than its share of memory and time.
const (
	maxSource  = 1 << 20 // bytes of a GBNF text or a schema
	maxDepth   = 200     // nesting of groups, schemas and values
	maxRepeat  = 1 << 20 // largest count of a repetition
	maxProgram = 300_000 // instructions and edges of a compiled grammar
	maxConfigs = 1024    // ways to read a text at once
)

// finish checks rules, takes out what can never end, and compiles.
func finish(rules []rule, root int) (*Grammar, error) {
	rules, err := prune(rules, root)
	if err != nil {
		return nil, err
	}
	if err := checkRecursion(rules); err != nil {
		return nil, err
	}
	g := &Grammar{rules: rules, root: root, machines: map[*Index]*shared{}}
	prog, byVocab, err := compile(rules, root, nil)
	if err != nil {
		return nil, err
	}
	if !byVocab {
		g.plain = prog
	}
	return g, nil
}

// New makes a matcher at the beginning of the grammar. An error: the grammar is too large together with this vocabulary.
func (g *Grammar) New(ix *Index) (*Matcher, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	sh := g.machines[ix]
	if sh == nil {
		prog := g.plain
		if prog == nil {
			var err error
			if prog, _, err = compile(g.rules, g.root, ix); err != nil {
				return nil, err
			}
		}
		sh = &shared{prog: prog, machine: newMachine(prog, ix)}
		g.machines[ix] = sh
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	m := &Matcher{sh: sh, ix: ix, on: sh.machine}
	state, err := m.on.start()
	if err != nil {
		return nil, err
	}
	m.state = state
	return m, nil
}

// Bytes is about how much memory the grammar holds, what its matchers learned included.
func (g *Grammar) Bytes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.plain.bytes()
	for _, sh := range g.machines {
		sh.mu.Lock()
		n += sh.machine.size
		if sh.prog != g.plain {
			n += sh.prog.bytes()
		}
		sh.mu.Unlock()
	}
	return n
}

func (p *program) bytes() int {
	n := 0
	if p != nil {
		for i := range p.insts {
			n += 112 + 8*len(p.insts[i].edges) + 8*len(p.insts[i].marks) + 4*len(p.insts[i].eps)
		}
	}
	return n
}

// walk visits the nodes that n is made of, each once.
func walk(n *node, seen map[*node]bool, visit func(*node)) {
	if seen[n] {
		return
	}
	seen[n] = true
	visit(n)
	for _, k := range n.kids {
		walk(k, seen, visit)
	}
	if n.free != nil {
		for _, e := range n.free.exits {
			walk(e.then, seen, visit)
		}
	}
}

// prune takes out alternatives that never end, so that a text on its way can always be completed.
func prune(rules []rule, root int) ([]rule, error) {
	ends := make([]bool, len(rules))
	memo := map[*node]bool{}
	var can func(n *node) bool
	can = func(n *node) bool {
		if memo[n] {
			return true
		}
		ok := false
		switch n.kind {
		case kEmpty, kSet, kText, kMark:
			ok = true
		case kSeq:
			ok = true
			for _, k := range n.kids {
				ok = can(k) && ok
			}
		case kAlt:
			for _, k := range n.kids {
				ok = can(k) || ok
			}
		case kRepeat:
			ok = can(n.kids[0]) || n.min == 0
		case kRef:
			ok = ends[n.ref]
		case kFree:
			ok = n.free.ends
			for _, e := range n.free.exits {
				ok = can(e.then) || ok
			}
		}
		if ok {
			memo[n] = true
		}
		return ok
	}
	for more := true; more; {
		more = false
		for i, r := range rules {
			if !ends[i] && can(r.body) {
				ends[i], more = true, true
			}
		}
	}
	if !ends[root] {
		return nil, fmt.Errorf("rule %s: no text that it allows ever ends", rules[root].name)
	}
	built := map[*node]*node{}
	var clean func(n *node) *node
	clean = func(n *node) *node {
		if b := built[n]; b != nil {
			return b
		}
		b := n
		switch n.kind {
		case kSeq, kAlt, kRepeat:
			kids, same := make([]*node, len(n.kids)), true
			for i, k := range n.kids {
				kids[i] = clean(k)
				same = same && kids[i] == k
			}
			if same {
				break
			}
			switch n.kind {
			case kSeq:
				b = seq(kids...)
			case kAlt:
				b = alt(kids...)
			default:
				b = repeat(kids[0], n.min, n.max)
			}
		case kRef:
			if !ends[n.ref] {
				b = never
			}
		case kFree:
			f := *n.free
			f.exits = nil
			for _, e := range n.free.exits {
				e.then = clean(e.then)
				f.exits = append(f.exits, e) // one that never ends still ends the free text: it is no text then
			}
			b = &node{kind: kFree, free: &f}
		}
		built[n] = b
		return b
	}
	out := make([]rule, len(rules))
	for i, r := range rules {
		out[i] = rule{r.name, clean(r.body)}
	}
	return out, nil
}

// nullables tells for each node and rule whether it can be the empty text.
type nullables struct {
	rules []bool
	memo  map[*node]bool
}

func findNullables(rules []rule) *nullables {
	n := &nullables{rules: make([]bool, len(rules)), memo: map[*node]bool{}}
	for more := true; more; {
		more = false
		for i, r := range rules {
			if !n.rules[i] && n.can(r.body) {
				n.rules[i], more = true, true
			}
		}
	}
	return n
}

func (m *nullables) can(n *node) bool {
	if m.memo[n] {
		return true
	}
	ok := false
	switch n.kind {
	case kEmpty:
		ok = true
	case kSeq:
		ok = true
		for _, k := range n.kids {
			if !m.can(k) {
				ok = false
				break
			}
		}
	case kAlt:
		ok = slices.ContainsFunc(n.kids, m.can)
	case kRepeat:
		ok = n.min == 0 || m.can(n.kids[0])
	case kRef:
		ok = m.rules[n.ref]
	case kFree:
		ok = n.free.ends
	}
	if ok {
		m.memo[n] = true
	}
	return ok
}

// checkRecursion refuses left recursion: a rule that can begin with itself. It also refuses long counts of what may be empty.
func checkRecursion(rules []rule) error {
	null := findNullables(rules)
	first := make([]map[int]bool, len(rules)) // the rules that a rule can begin with
	for i, r := range rules {
		first[i] = map[int]bool{}
		memo := map[*node]bool{}
		var begin func(n *node)
		begin = func(n *node) {
			if memo[n] {
				return
			}
			memo[n] = true
			switch n.kind {
			case kRef:
				first[i][n.ref] = true
			case kSeq:
				for _, k := range n.kids {
					begin(k)
					if !null.can(k) {
						break
					}
				}
			case kAlt, kRepeat:
				for _, k := range n.kids {
					begin(k)
				}
			}
		}
		begin(r.body)
	}
	colour := make([]uint8, len(rules))
	var visit func(i int) error
	visit = func(i int) error {
		colour[i] = 1
		next := make([]int, 0, len(first[i]))
		for j := range first[i] {
			next = append(next, j)
		}
		slices.Sort(next)
		for _, j := range next {
			if colour[j] == 1 {
				return fmt.Errorf("rule %s is left-recursive: it can begin with itself", rules[j].name)
			}
			if colour[j] == 0 {
				if err := visit(j); err != nil {
					return err
				}
			}
		}
		colour[i] = 2
		return nil
	}
	for i := range rules {
		if colour[i] == 0 {
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	for _, r := range rules {
		var bad error
		walk(r.body, map[*node]bool{}, func(n *node) {
			if n.kind == kRepeat && n.max > maxEmptyRepeat && null.can(n.kids[0]) && bad == nil {
				bad = fmt.Errorf("rule %s repeats up to %d times what may be empty, at most %d is allowed", r.name, n.max, maxEmptyRepeat)
			}
		})
		if bad != nil {
			return bad
		}
	}
	return nil
}

// maxEmptyRepeat bounds the count of a repetition of what may be empty: such ones are written out.
const maxEmptyRepeat = 64
