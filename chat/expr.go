package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// exprParser turns the tokens of one expression into source for the engine in which every operation is a call of ours:
// the engine resolves names, literals, calls, and, or, not and the inline if, nothing else. So operators have Python's
// precedence and types, and each of them is counted and bounded.
//
// Every method returns source that can stand as an argument or an operand of and/or/if after being put in brackets.
type exprParser struct {
	t     *translator
	toks  []token
	pos   int
	depth int
}

func (p *exprParser) peek() token {
	if p.pos < len(p.toks) {
		return p.toks[p.pos]
	}
	return token{kind: tokEnd, text: "end of tag"}
}

func (p *exprParser) isOp(s string) bool   { t := p.peek(); return t.kind == tokOp && t.text == s }
func (p *exprParser) isName(s string) bool { t := p.peek(); return t.kind == tokName && t.text == s }

func (p *exprParser) takeOp(s string) bool {
	if p.isOp(s) {
		p.pos++
		return true
	}
	return false
}

func (p *exprParser) takeName(s string) bool {
	if p.isName(s) {
		p.pos++
		return true
	}
	return false
}

func (p *exprParser) wantOp(s string) error {
	if !p.takeOp(s) {
		return fmt.Errorf("expected %q, found %s", s, clip(p.peek().text))
	}
	return nil
}

func (p *exprParser) wantEnd() error {
	if t := p.peek(); t.kind != tokEnd {
		return fmt.Errorf("unexpected %s", clip(t.text))
	}
	return nil
}

// ident takes a name that a template may use for its own variables.
func (p *exprParser) ident() (string, error) {
	t := p.peek()
	if t.kind != tokName {
		return "", fmt.Errorf("expected a name, found %s", clip(t.text))
	}
	if strings.HasPrefix(t.text, "__") {
		return "", fmt.Errorf("name %s begins with two underscores", clip(t.text))
	}
	if slices.Contains([]string{"true", "false", "none", "True", "False", "None", "null", "and", "or", "not", "if", "else", "in", "is", "for"}, t.text) {
		return "", fmt.Errorf("%q cannot be a name", t.text)
	}
	p.pos++
	return t.text, nil
}

// call gives the source of a call of one of our functions and notes that the template needs it.
func (p *exprParser) call(fn string, args ...string) string { return p.t.call(fn, args...) }

func (p *exprParser) deeper() error {
	if p.depth++; p.depth > 8*maxNesting {
		return fmt.Errorf("expression nests deeper than %d", 8*maxNesting)
	}
	return nil
}

// tuple parses one expression, or several with commas between them, which make a list.
func (p *exprParser) tuple() (string, error) {
	e, err := p.expr()
	if err != nil || !p.isOp(",") {
		return e, err
	}
	items := []string{e}
	for p.takeOp(",") {
		if t := p.peek(); t.kind == tokEnd || p.isOp(")") {
			break
		}
		if e, err = p.expr(); err != nil {
			return "", err
		}
		items = append(items, e)
	}
	return "[" + strings.Join(items, ", ") + "]", nil
}

func (p *exprParser) expr() (string, error) {
	if err := p.deeper(); err != nil {
		return "", err
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	for err == nil && p.takeName("if") {
		var cond, other string
		if cond, err = p.or(); err != nil {
			break
		}
		if p.takeName("else") {
			if other, err = p.expr(); err != nil {
				break
			}
			e = "((" + e + ") if (" + cond + ") else (" + other + "))"
		} else {
			e = "((" + e + ") if (" + cond + "))"
		}
	}
	return e, err
}

func (p *exprParser) chain(word string, next func() (string, error)) (string, error) {
	e, err := next()
	for err == nil && p.takeName(word) {
		var r string
		if r, err = next(); err == nil {
			e = "(" + e + " " + word + " " + r + ")"
		}
	}
	return e, err
}

func (p *exprParser) or() (string, error)  { return p.chain("or", p.and) }
func (p *exprParser) and() (string, error) { return p.chain("and", p.not) }

func (p *exprParser) not() (string, error) {
	if p.isName("not") {
		if err := p.deeper(); err != nil {
			return "", err
		}
		defer func() { p.depth-- }()
		p.pos++
		e, err := p.not()
		return "(not (" + e + "))", err
	}
	return p.compare()
}

func (p *exprParser) compare() (string, error) {
	left, err := p.sum()
	if err != nil {
		return "", err
	}
	var all []string
	for {
		fn := ""
		if t := p.peek(); t.kind == tokOp {
			fn = map[string]string{"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[t.text]
		} else if p.isName("in") {
			fn = "in"
		} else if p.isName("not") && p.pos+1 < len(p.toks) && p.toks[p.pos+1] == (token{tokName, "in"}) {
			fn = "notin"
			p.pos++
		}
		if fn == "" {
			break
		}
		p.pos++
		right, err := p.sum()
		if err != nil {
			return "", err
		}
		all = append(all, p.call(fn, left, right))
		left = right
	}
	switch len(all) {
	case 0:
		return left, nil
	case 1:
		return all[0], nil
	}
	return "(" + strings.Join(all, " and ") + ")", nil
}

// fold parses operands of left-associative operators; a run of the same one becomes one call with many arguments, so that
// a long concatenation copies its text once.
func (p *exprParser) fold(ops map[string]string, next func() (string, error)) (string, error) {
	e, err := next()
	if err != nil {
		return "", err
	}
	run := []string{e}
	last := ""
	for {
		t := p.peek()
		fn, ok := ops[t.text]
		if t.kind != tokOp || !ok {
			break
		}
		p.pos++
		r, err := next()
		if err != nil {
			return "", err
		}
		if fn != last && last != "" {
			run = []string{p.call(last, run...)}
		}
		last = fn
		run = append(run, r)
	}
	if last == "" {
		return e, nil
	}
	return p.call(last, run...), nil
}

func (p *exprParser) sum() (string, error) {
	return p.fold(map[string]string{"+": "add", "-": "sub"}, p.concat)
}

func (p *exprParser) concat() (string, error) {
	return p.fold(map[string]string{"~": "cat"}, p.product)
}

func (p *exprParser) product() (string, error) {
	return p.fold(map[string]string{"*": "mul", "/": "div", "//": "floordiv", "%": "mod"}, p.power)
}

func (p *exprParser) power() (string, error) {
	return p.fold(map[string]string{"**": "pow"}, func() (string, error) { return p.unary(true) })
}

func (p *exprParser) unary(filters bool) (string, error) {
	if err := p.deeper(); err != nil {
		return "", err
	}
	defer func() { p.depth-- }()
	var e string
	var err error
	switch {
	case p.takeOp("-"):
		if e, err = p.unary(false); err == nil {
			e = p.call("neg", e)
		}
	case p.takeOp("+"):
		e, err = p.unary(false)
	default:
		e, err = p.primary()
	}
	if err == nil {
		e, err = p.postfix(e)
	}
	if err == nil && filters {
		e, err = p.filters(e)
	}
	return e, err
}

func (p *exprParser) primary() (string, error) {
	t := p.peek()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			p.pos++
			return "true", nil
		case "false", "False":
			p.pos++
			return "false", nil
		case "none", "None":
			p.pos++
			return "none", nil
		case "null": // a literal for the engine; a name that is never defined in Jinja2
			p.pos++
			return prefix + "null", nil
		}
		return p.ident()
	case tokString:
		s := t.text
		for p.pos++; p.peek().kind == tokString; p.pos++ {
			s += p.peek().text
		}
		return p.t.quote(s), nil
	case tokInt:
		p.pos++
		if _, err := strconv.ParseInt(t.text, 10, 64); err != nil {
			return "", fmt.Errorf("integer %s does not fit 64 bits", clip(t.text))
		}
		return t.text, nil
	case tokFloat:
		p.pos++
		return p.call("num", p.t.quote(t.text)), nil
	case tokOp:
		switch t.text {
		case "(":
			p.pos++
			if p.takeOp(")") {
				return "[]", nil
			}
			e, err := p.tuple()
			if err == nil {
				err = p.wantOp(")")
			}
			return e, err
		case "[":
			p.pos++
			var items []string
			for !p.isOp("]") {
				e, err := p.expr()
				if err != nil {
					return "", err
				}
				items = append(items, e)
				if !p.takeOp(",") {
					break
				}
			}
			return "[" + strings.Join(items, ", ") + "]", p.wantOp("]")
		case "{":
			p.pos++
			return p.dict()
		}
	}
	return "", fmt.Errorf("unexpected %s", clip(t.text))
}

// dict parses a dict literal after its bracket. Keys go through key, because the engine would print them its own way; the
// blanks keep two brackets from looking like the end of a tag.
func (p *exprParser) dict() (string, error) {
	var items []string
	for !p.isOp("}") {
		k, err := p.expr()
		if err != nil {
			return "", err
		}
		if err := p.wantOp(":"); err != nil {
			return "", err
		}
		v, err := p.expr()
		if err != nil {
			return "", err
		}
		items = append(items, p.call("key", k)+" : "+v)
		if !p.takeOp(",") {
			break
		}
	}
	return "{ " + strings.Join(items, ", ") + " }", p.wantOp("}")
}

func (p *exprParser) postfix(e string) (string, error) {
	for {
		switch {
		case p.takeOp("."):
			t := p.peek()
			if t.kind == tokInt {
				p.pos++
				e = p.call("item", e, t.text)
				continue
			}
			if first, second, ok := strings.Cut(t.text, "."); ok && t.kind == tokFloat && digits(first) && digits(second) {
				p.pos++ // x.0.1 is two indexes
				e = p.call("item", p.call("item", e, first), second)
				continue
			}
			if t.kind != tokName {
				return "", fmt.Errorf("expected a name after '.', found %s", clip(t.text))
			}
			p.pos++
			if !p.isOp("(") {
				e = p.call("attr", e, p.t.quote(t.text))
				continue
			}
			args, err := p.args()
			if err != nil {
				return "", err
			}
			e = p.call("method", append([]string{e, p.t.quote(t.text)}, args.native()...)...)
		case p.takeOp("["):
			var err error
			if e, err = p.subscript(e); err != nil {
				return "", err
			}
		case p.isOp("("):
			args, err := p.args()
			if err != nil {
				return "", err
			}
			if e == "dict" || e == "namespace" {
				e = p.call(e, args.merged(p)...)
				continue
			}
			if args.unpacks {
				return "", fmt.Errorf("'**' is supported in dict() and namespace() only")
			}
			e = p.call("callable", e) + "(" + strings.Join(args.native(), ", ") + ")"
		default:
			return e, nil
		}
	}
}

func (p *exprParser) subscript(e string) (string, error) {
	var at [3]string
	n := 0
	for {
		if !p.isOp(":") && !p.isOp("]") {
			x, err := p.tuple()
			if err != nil {
				return "", err
			}
			at[n] = x
		}
		if !p.takeOp(":") {
			break
		}
		if n++; n == 3 {
			return "", fmt.Errorf("slice has more than three parts")
		}
	}
	if err := p.wantOp("]"); err != nil {
		return "", err
	}
	if n == 0 {
		if at[0] == "" {
			return "", fmt.Errorf("empty subscript")
		}
		return p.call("item", e, at[0]), nil
	}
	for i := range at {
		if at[i] == "" {
			at[i] = "none"
		}
	}
	return p.call("slice", e, at[0], at[1], at[2]), nil
}

// arguments are those of a call. order keeps what a merge of keywords and ** needs.
type arguments struct {
	plain   []string
	names   []string
	values  []string // of the same place in names; an empty name is a ** dict
	unpacks bool
}

func (a arguments) native() []string {
	all := slices.Clone(a.plain)
	for i, n := range a.names {
		all = append(all, n+"="+a.values[i])
	}
	return all
}

// merged gives plain arguments and keywords as a row of dicts in the order written.
func (a arguments) merged(p *exprParser) []string {
	all := slices.Clone(a.plain)
	for i, n := range a.names {
		if n == "" {
			all = append(all, a.values[i])
		} else {
			all = append(all, "{ "+p.t.quote(n)+" : "+a.values[i]+" }")
		}
	}
	return all
}

func (p *exprParser) args() (a arguments, err error) {
	if err = p.wantOp("("); err != nil {
		return a, err
	}
	for !p.isOp(")") {
		switch {
		case p.takeOp("**"):
			v, err := p.expr()
			if err != nil {
				return a, err
			}
			a.names, a.values, a.unpacks = append(a.names, ""), append(a.values, v), true
		case p.isOp("*"):
			return a, fmt.Errorf("'*' in a call is not supported")
		default:
			if p.peek().kind == tokName && p.pos+1 < len(p.toks) && p.toks[p.pos+1] == (token{tokOp, "="}) {
				n, err := p.ident()
				if err != nil {
					return a, err
				}
				p.pos++
				v, err := p.expr()
				if err != nil {
					return a, err
				}
				a.names, a.values = append(a.names, n), append(a.values, v)
				break
			}
			v, err := p.expr()
			if err != nil {
				return a, err
			}
			if len(a.names) > 0 {
				return a, fmt.Errorf("a plain argument follows a named one")
			}
			a.plain = append(a.plain, v)
		}
		if !p.takeOp(",") {
			break
		}
	}
	return a, p.wantOp(")")
}

// filters parses | and is, which bind tighter than every operator.
func (p *exprParser) filters(e string) (string, error) {
	for {
		switch {
		case p.takeOp("|"):
			t := p.peek()
			if _, ok := filterTable[t.text]; t.kind != tokName || !ok {
				return "", fmt.Errorf("unknown filter %s", clip(t.text))
			}
			p.pos++
			args := arguments{}
			if p.isOp("(") {
				var err error
				if args, err = p.args(); err != nil {
					return "", err
				}
			}
			if args.unpacks {
				return "", fmt.Errorf("'**' is supported in dict() and namespace() only")
			}
			e = p.call("f_"+t.text, append([]string{e}, args.native()...)...)
		case p.takeName("is"):
			negated := p.takeName("not")
			t := p.peek()
			if _, ok := testTable[t.text]; t.kind == tokEnd || !ok {
				return "", fmt.Errorf("unknown test %s", clip(t.text))
			}
			p.pos++
			args := arguments{}
			if p.isOp("(") {
				var err error
				if args, err = p.args(); err != nil {
					return "", err
				}
			} else if p.testArgument() {
				a, err := p.primary()
				if err == nil {
					a, err = p.postfix(a)
				}
				if err != nil {
					return "", err
				}
				args.plain = []string{a}
			}
			if args.unpacks || len(args.names) > 0 {
				return "", fmt.Errorf("test %s takes no named arguments", clip(t.text))
			}
			e = p.call("t_"+t.text, append([]string{e}, args.plain...)...)
			if negated {
				e = "(not " + e + ")"
			}
		case p.isOp("("):
			var err error
			if e, err = p.postfix(e); err != nil {
				return "", err
			}
		default:
			return e, nil
		}
	}
}

// testArgument reports whether the next token begins the one argument a test may have without brackets.
func (p *exprParser) testArgument() bool {
	switch t := p.peek(); t.kind {
	case tokName:
		return !slices.Contains([]string{"else", "or", "and", "if", "is", "in", "not"}, t.text)
	case tokString, tokInt, tokFloat:
		return true
	case tokOp:
		return t.text == "[" || t.text == "{"
	}
	return false
}
