package grammar

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// SyntaxError is a fault in a GBNF text, at a line and column counted from 1, columns in characters.
type SyntaxError struct {
	Line, Column int
	Text         string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("grammar: line %d, column %d: %s", e.Line, e.Column, e.Text)
}

// ParseGBNF reads a grammar in llama.cpp's notation:
//
//	root ::= "yes" | "no" ("," [a-z]+){1,3}   # a comment
//
// Rules are NAME ::= alternatives, one a line, where a line may be broken behind ::= and |, before |, and within
// parentheses. There are "literals", [classes], [^negated ones], . for any character, (groups), names of rules, the counts
// * + ? {m} {m,} {m,n}, and <name> for a control token of the vocabulary that is spelled so with its brackets. Literals and
// classes know the escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH, each for one character. The text begins with rule
// root.
//
// Errors are *SyntaxError, or say that a rule is left-recursive, can never end, or that the grammar is too large.
func ParseGBNF(src string) (*Grammar, error) {
	if len(src) > maxSource {
		return nil, fmt.Errorf("grammar has %d bytes, at most %d are allowed", len(src), maxSource)
	}
	p := &gbnf{src: src, ids: map[string]int{}}
	if !utf8.ValidString(src) {
		for p.at < len(src) {
			if r, n := utf8.DecodeRuneInString(src[p.at:]); r == utf8.RuneError && n == 1 {
				break
			} else {
				p.at += n
			}
		}
		return nil, p.fail(p.at, "the text is not valid UTF-8")
	}
	if err := p.parse(); err != nil {
		return nil, err
	}
	root, ok := p.ids["root"]
	if !ok {
		return nil, fmt.Errorf("grammar: there is no rule root")
	}
	g, err := finish(p.rules, root)
	if err != nil {
		return nil, fmt.Errorf("grammar: %w", err)
	}
	return g, nil
}

type gbnf struct {
	src   string
	at    int
	rules []rule
	ids   map[string]int
	used  []int // where a rule was first used, by its number
}

func (p *gbnf) fail(at int, format string, args ...any) error {
	before := p.src[:min(at, len(p.src))]
	line := 1 + strings.Count(before, "\n")
	col := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return &SyntaxError{line, col, fmt.Sprintf(format, args...)}
}

// blank skips spaces and comments, and line breaks if lines.
func (p *gbnf) blank(lines bool) {
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			p.at++
		case c == '#':
			if i := strings.IndexAny(p.src[p.at:], "\r\n"); i >= 0 {
				p.at += i
			} else {
				p.at = len(p.src)
			}
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end.
func (p *gbnf) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return 0
}

func (p *gbnf) has(s string) bool { return strings.HasPrefix(p.src[p.at:], s) }

// what shows what stands at the place of an error.
func (p *gbnf) what() string {
	if p.at >= len(p.src) {
		return "the end of the text"
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.at:])
	return fmt.Sprintf("%q", r)
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *gbnf) name() string {
	start := p.at
	for p.at < len(p.src) && isWord(p.src[p.at]) {
		p.at++
	}
	return p.src[start:p.at]
}

func (p *gbnf) rule(name string, at int) int {
	id, ok := p.ids[name]
	if !ok {
		id = len(p.rules)
		p.ids[name] = id
		p.rules = append(p.rules, rule{name: name})
		p.used = append(p.used, at)
	}
	return id
}

func (p *gbnf) parse() error {
	p.blank(true)
	for p.at < len(p.src) {
		start := p.at
		name := p.name()
		if name == "" {
			return p.fail(p.at, "a rule's name is expected, not %s", p.what())
		}
		p.blank(false)
		if !p.has("::=") {
			return p.fail(p.at, "::= is expected behind the name %.40s, not %s", name, p.what())
		}
		p.at += len("::=")
		p.blank(true)
		id := p.rule(name, start)
		if p.rules[id].body != nil {
			return p.fail(start, "rule %.40s is defined twice", name)
		}
		body, err := p.alternatives(0)
		if err != nil {
			return err
		}
		p.rules[id].body = body
		if p.at < len(p.src) && p.src[p.at] != '\n' && p.src[p.at] != '\r' {
			return p.fail(p.at, "the end of rule %.40s is expected, not %s", name, p.what())
		}
		p.blank(true)
	}
	for id, r := range p.rules {
		if r.body == nil {
			return p.fail(p.used[id], "rule %.40s is not defined", r.name)
		}
	}
	return nil
}

// alternatives reads up to the end of a rule or, within parentheses, to the closing one.
func (p *gbnf) alternatives(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, p.fail(p.at, "parentheses are nested more than %d deep", maxDepth)
	}
	var all []*node
	for {
		s, err := p.sequence(depth)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		if p.peek() != '|' && depth == 0 { // the next line may begin with it
			at := p.at
			if p.blank(true); p.peek() != '|' {
				p.at = at
			}
		}
		if p.peek() != '|' {
			return alt(all...), nil
		}
		p.at++
		p.blank(true)
	}
}

func (p *gbnf) sequence(depth int) (*node, error) {
	var items []*node
	for {
		start := p.at
		c := p.peek()
		var item *node
		var err error
		switch {
		case p.at >= len(p.src):
			return seq(items...), nil
		case c == '"':
			item, err = p.literal()
		case c == '[':
			item, err = p.class()
		case c == '.':
			p.at++
			item = chars(allRunes)
		case c == '(':
			p.at++
			p.blank(true)
			if item, err = p.alternatives(depth + 1); err == nil && p.peek() != ')' {
				err = p.fail(p.at, ") is expected, not %s", p.what())
			}
			p.at++
		case c == '<':
			item, err = p.token()
		case c == '!':
			err = p.fail(p.at, "negated tokens are not supported")
		case isWord(c):
			name := p.name()
			item = &node{kind: kRef, ref: p.rule(name, start)}
		case c == '*' || c == '+' || c == '?' || c == '{':
			err = p.fail(p.at, "%c has nothing before it to repeat", c)
		default:
			return seq(items...), nil
		}
		if err != nil {
			return nil, err
		}
		p.blank(depth > 0)
		if item, err = p.counts(item, depth); err != nil {
			return nil, err
		}
		items = append(items, item)
	}
}

// counts reads the counts behind an item.
func (p *gbnf) counts(item *node, depth int) (*node, error) {
	for nested := 0; ; nested++ {
		least, most := 0, -1
		start := p.at
		switch p.peek() {
		case '*':
		case '+':
			least = 1
		case '?':
			most = 1
		case '{':
			p.at++
			p.blank(depth > 0)
			var err error
			if least, err = p.number(); err != nil {
				return nil, err
			}
			most = least
			p.blank(depth > 0)
			if p.peek() == ',' {
				p.at++
				p.blank(depth > 0)
				most = -1
				if p.peek() != '}' {
					if most, err = p.number(); err != nil {
						return nil, err
					}
					p.blank(depth > 0)
				}
			}
			if p.peek() != '}' {
				return nil, p.fail(p.at, "} is expected, not %s", p.what())
			}
			if most >= 0 && most < least {
				return nil, p.fail(start, "count {%d,%d} has its limits the wrong way round", least, most)
			}
		default:
			return item, nil
		}
		if nested == maxDepth {
			return nil, p.fail(start, "more than %d counts stand behind one another", maxDepth)
		}
		p.at++
		item = repeat(item, least, most)
		p.blank(depth > 0)
	}
}

func (p *gbnf) number() (int, error) {
	start, n := p.at, 0
	for p.at < len(p.src) && p.src[p.at] >= '0' && p.src[p.at] <= '9' {
		if n = n*10 + int(p.src[p.at]-'0'); n > maxRepeat {
			return 0, p.fail(start, "a count is above %d", maxRepeat)
		}
		p.at++
	}
	if p.at == start {
		return 0, p.fail(p.at, "a number is expected, not %s", p.what())
	}
	return n, nil
}

func (p *gbnf) literal() (*node, error) {
	start := p.at
	p.at++
	var b strings.Builder
	for {
		switch p.peek() {
		case '"':
			p.at++
			return text(b.String()), nil
		case 0:
			if p.at >= len(p.src) {
				return nil, p.fail(start, "this literal has no closing quote")
			}
		}
		r, err := p.char()
		if err != nil {
			return nil, err
		}
		b.WriteRune(r)
	}
}

func (p *gbnf) class() (*node, error) {
	start := p.at
	p.at++
	negated := p.peek() == '^'
	if negated {
		p.at++
	}
	var ranges []runeRange
	for p.peek() != ']' {
		if p.at >= len(p.src) {
			return nil, p.fail(start, "this class has no closing bracket")
		}
		from := p.at
		lo, err := p.char()
		if err != nil {
			return nil, err
		}
		hi := lo
		if p.peek() == '-' && p.at+1 < len(p.src) && p.src[p.at+1] != ']' {
			p.at++
			if hi, err = p.char(); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, p.fail(from, "range %q-%q goes backwards", lo, hi)
			}
		}
		ranges = append(ranges, runeRange{lo, hi})
	}
	p.at++
	s := newSet(ranges...)
	if negated {
		s = s.not()
	}
	if len(s) == 0 {
		return nil, p.fail(start, "this class has no characters")
	}
	return chars(s), nil
}

// char reads a character of a literal or class, which may be an escape.
func (p *gbnf) char() (rune, error) {
	start := p.at
	r, n := utf8.DecodeRuneInString(p.src[p.at:])
	p.at += n
	if r != '\\' {
		return r, nil
	}
	c := p.peek()
	p.at++
	digits := 0
	switch c {
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case '\\', '"', '[', ']':
		return rune(c), nil
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		p.at = start + 1
		return 0, p.fail(start, "escape \\ before %s is not known", p.what())
	}
	v := int64(0)
	for i := range digits {
		d := strings.IndexByte("0123456789abcdef", p.peek()|0x20)
		if p.at >= len(p.src) || d < 0 || d < 10 && p.peek() < '0' {
			return 0, p.fail(start, "escape \\%c has %d digits, %d are needed", c, i, digits)
		}
		v = v<<4 | int64(d)
		p.at++
	}
	if v > math.MaxInt32 || !utf8.ValidRune(rune(v)) {
		return 0, p.fail(start, "escape \\%c: %X is no character", c, v)
	}
	return rune(v), nil
}

// token reads <name>.
func (p *gbnf) token() (*node, error) {
	start := p.at
	i := strings.IndexAny(p.src[p.at:], ">\n")
	if i < 0 || p.src[p.at+i] != '>' {
		return nil, p.fail(start, "this token has no closing >")
	}
	s := p.src[p.at : p.at+i+1]
	if strings.HasPrefix(s, "<[") || len(s) < 3 {
		return nil, p.fail(start, "tokens are written <name>; numbers of tokens are not supported")
	}
	p.at += i + 1
	return mark(s), nil
}
