package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A slow backtracking matcher for the patterns as they are published, to compare the hand-written splitters with. It
// knows alternatives, classes (with &&[^...]), groups with and without (?i:), (?!...), $ and the greedy ? * + {m,n}.

type node interface {
	// match calls then with every end of a match of the node at i, in order of preference, until one is accepted.
	match(s []rune, i int, then func(int) bool) bool
}

type (
	oneOf    func(r rune) bool
	sequence []node
	either   []node
	repeat   struct {
		n        node
		min, max int
	}
	notAhead struct{ n node }
	atEnd    struct{}
)

func (f oneOf) match(s []rune, i int, then func(int) bool) bool {
	return i < len(s) && f(s[i]) && then(i+1)
}

func (q sequence) match(s []rune, i int, then func(int) bool) bool {
	if len(q) == 0 {
		return then(i)
	}
	return q[0].match(s, i, func(j int) bool { return q[1:].match(s, j, then) })
}

func (e either) match(s []rune, i int, then func(int) bool) bool {
	for _, n := range e {
		if n.match(s, i, then) {
			return true
		}
	}
	return false
}

func (r repeat) match(s []rune, i int, then func(int) bool) bool {
	if r.max > 0 && r.n.match(s, i, func(j int) bool { return repeat{r.n, r.min - 1, r.max - 1}.match(s, j, then) }) {
		return true
	}
	return r.min <= 0 && then(i)
}

func (a notAhead) match(s []rune, i int, then func(int) bool) bool {
	return !a.n.match(s, i, func(int) bool { return true }) && then(i)
}

func (atEnd) match(s []rune, i int, then func(int) bool) bool { return i == len(s) && then(i) }

type regexParser struct {
	src  []rune
	at   int
	fold bool
}

func compile(pattern string) node {
	p := &regexParser{src: []rune(pattern)}
	n := p.alternatives()
	if p.at != len(p.src) {
		panic(fmt.Sprintf("%s: stopped at %d", pattern, p.at))
	}
	return n
}

func (p *regexParser) more() bool { return p.at < len(p.src) }

func (p *regexParser) eat(s string) bool {
	if strings.HasPrefix(string(p.src[p.at:]), s) {
		p.at += len([]rune(s))
		return true
	}
	return false
}

func (p *regexParser) alternatives() node {
	e := either{p.items()}
	for p.eat("|") {
		e = append(e, p.items())
	}
	return e
}

func (p *regexParser) items() node {
	var q sequence
	for p.more() && p.src[p.at] != '|' && p.src[p.at] != ')' {
		q = append(q, p.counted(p.item()))
	}
	return q
}

func (p *regexParser) counted(n node) node {
	const many = 1 << 20
	switch {
	case p.eat("?"):
		return repeat{n, 0, 1}
	case p.eat("*"):
		return repeat{n, 0, many}
	case p.eat("+"):
		return repeat{n, 1, many}
	case p.eat("{"):
		var lo, hi int
		if _, err := fmt.Sscanf(string(p.src[p.at:]), "%d,%d}", &lo, &hi); err != nil {
			panic(err)
		}
		for !p.eat("}") {
			p.at++
		}
		return repeat{n, lo, hi}
	}
	return n
}

func (p *regexParser) item() node {
	switch {
	case p.eat("(?i:"):
		p.fold = true
		n := p.alternatives()
		p.fold = false
		p.close()
		return n
	case p.eat("$"):
		return atEnd{}
	case p.eat("(?!"):
		n := p.alternatives()
		p.close()
		return notAhead{n}
	case p.eat("[^"):
		f := p.class()
		return oneOf(func(r rune) bool { return !f(r) })
	case p.eat("["):
		return oneOf(p.class())
	}
	return oneOf(p.char())
}

func (p *regexParser) close() {
	if !p.eat(")") {
		panic("no )")
	}
}

func (p *regexParser) class() func(rune) bool {
	var fs []func(rune) bool
	for !p.eat("]") {
		if p.eat("&&[^") {
			not := p.class()
			if !p.eat("]") {
				panic("no ] after &&")
			}
			these := fs
			return func(r rune) bool {
				return !not(r) && slices.ContainsFunc(these, func(f func(rune) bool) bool { return f(r) })
			}
		}
		if p.at+2 < len(p.src) && p.src[p.at+1] == '-' && p.src[p.at+2] != ']' {
			lo, hi := p.src[p.at], p.src[p.at+2]
			p.at += 3
			fs = append(fs, func(r rune) bool { return r >= lo && r <= hi })
			continue
		}
		fs = append(fs, p.char())
	}
	return func(r rune) bool {
		for _, f := range fs {
			if f(r) {
				return true
			}
		}
		return false
	}
}

func (p *regexParser) char() func(rune) bool {
	switch {
	case p.eat(`\p{L}`):
		return unicode.IsLetter
	case p.eat(`\p{N}`):
		return unicode.IsNumber
	case p.eat(`\p{M}`):
		return unicode.IsMark
	case p.eat(`\p{P}`):
		return unicode.IsPunct
	case p.eat(`\p{S}`):
		return unicode.IsSymbol
	case p.eat(`\p{`):
		end := p.at + slices.Index(p.src[p.at:], '}')
		name := string(p.src[p.at:end])
		p.at = end + 1
		tab := unicode.Categories[name]
		if tab == nil {
			tab = unicode.Scripts[name]
		}
		if tab == nil {
			panic(name)
		}
		return func(r rune) bool { return unicode.Is(tab, r) }
	case p.eat(`\s`):
		return unicode.IsSpace
	case p.eat(`\S`):
		return func(r rune) bool { return !unicode.IsSpace(r) }
	case p.eat(`\r`):
		return func(r rune) bool { return r == '\r' }
	case p.eat(`\n`):
		return func(r rune) bool { return r == '\n' }
	}
	p.eat(`\`)
	c := p.src[p.at]
	p.at++
	if p.fold {
		// ASCII only: the long s, which some engines fold to s, is left alone.
		return func(r rune) bool { return r == c || r < 128 && unicode.ToLower(r) == c }
	}
	return func(r rune) bool { return r == c }
}

// cut splits s by each pattern in turn, inside the pieces of the one before. Text between matches is a piece.
func cut(s string, patterns ...node) []string {
	pieces := [][]rune{[]rune(s)}
	if s == "" {
		pieces = nil
	}
	for _, pat := range patterns {
		var finer [][]rune
		for _, p := range pieces {
			from := 0
			for i := 0; i < len(p); {
				end := i
				pat.match(p, i, func(j int) bool { end = j; return j > i })
				if end == i {
					i++
					continue
				}
				if from < i {
					finer = append(finer, p[from:i])
				}
				finer = append(finer, p[i:end])
				i, from = end, end
			}
			if from < len(p) {
				finer = append(finer, p[from:])
			}
		}
		pieces = finer
	}
	out := make([]string, len(pieces))
	for i, p := range pieces {
		out[i] = string(p)
	}
	return out
}
