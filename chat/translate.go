package chat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// prefix begins every name of ours in the translated source; templates cannot use names with two leading underscores.
const prefix = "__t_"

// translator rewrites a template for the engine. The engine keeps what it does well (names, scopes, loops, macros); white
// space is resolved here, every operation becomes a call that run.go answers, and each loop round and macro call reports
// itself, so that no template can run or grow without bound.
//
// In the translated source every tag has both trim marks and is followed by one newline: text that the engine
// could trim its own way does not exist, and its search for text beside a tag ends at once.
type translator struct {
	segs   []segment
	pos    int
	used   map[string]bool // functions the template calls, without prefix
	marks  map[rune]bool   // private-use characters in the template's own text
	serial int
	depth  int
}

// frame is one scope of the template: the names that set binds in it, and what may stand there.
type frame struct {
	sets   []string
	inLoop bool
	static int // bytes of literal text, inner scopes not counted
}

func (f *frame) bind(name string) {
	if !slices.Contains(f.sets, name) {
		f.sets = append(f.sets, name)
	}
}

// translate returns source for the engine, the functions it needs and the private-use characters of the template.
func translate(src string) (out string, used map[string]bool, marks map[rune]bool, err error) {
	segs, err := scan(src)
	if err != nil {
		return "", nil, nil, err
	}
	t := &translator{segs: segs, used: map[string]bool{}, marks: map[rune]bool{}}
	out, end, err := t.block(&frame{})
	if err != nil {
		return "", nil, nil, err
	}
	if end != "" {
		return "", nil, nil, fmt.Errorf("line %d: unexpected tag %s", t.segs[t.pos-1].line, end)
	}
	return out, t.used, t.marks, nil
}

func (t *translator) call(fn string, args ...string) string {
	t.used[fn] = true
	return prefix + fn + "(" + strings.Join(args, ", ") + ")"
}

// quote writes a string literal of the engine's kind.
func (t *translator) quote(s string) string {
	var b strings.Builder
	b.WriteByte('\'')
	for _, r := range s {
		switch r {
		case '\\', '\'':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '\n':
			b.WriteString(`\n`)
		default:
			if isPrivate(r) {
				t.marks[r] = true
			}
			b.WriteRune(r)
		}
	}
	b.WriteByte('\'')
	return b.String()
}

func statement(s string) string { return "{%- " + s + " -%}\n" }
func output(s string) string    { return "{{- " + s + " -}}\n" }

func (t *translator) temp() string {
	t.serial++
	return prefix + "v" + strconv.Itoa(t.serial)
}

// block translates segments up to a statement with one of the given keywords; end is that keyword, and the tag is
// consumed. At the end of the template, end is "".
func (t *translator) block(f *frame, ends ...string) (out, end string, err error) {
	if t.depth++; t.depth > maxNesting {
		return "", "", fmt.Errorf("blocks nest deeper than %d", maxNesting)
	}
	defer func() { t.depth-- }()
	var b strings.Builder
	for t.pos < len(t.segs) {
		s := t.segs[t.pos]
		t.pos++
		switch s.kind {
		case segText:
			f.static += len(s.text)
			b.WriteString(output(t.quote(s.text)))
			continue
		case segOutput:
			p := &exprParser{t: t, toks: s.toks}
			e, err := p.tuple()
			if err == nil {
				err = p.wantEnd()
			}
			if err != nil {
				return "", "", fmt.Errorf("line %d: %w", s.line, err)
			}
			b.WriteString(output(t.call("out", e)))
			continue
		}
		if len(s.toks) == 0 || s.toks[0].kind != tokName {
			return "", "", fmt.Errorf("line %d: tag does not begin with a keyword", s.line)
		}
		word := s.toks[0].text
		p := &exprParser{t: t, toks: s.toks, pos: 1}
		if slices.Contains(ends, word) {
			t.pos-- // the caller may want the tag's tokens
			return b.String(), word, nil
		}
		src, err := t.statement(word, p, f)
		if err != nil {
			if strings.HasPrefix(err.Error(), "line ") {
				return "", "", err
			}
			return "", "", fmt.Errorf("line %d: %w", s.line, err)
		}
		b.WriteString(src)
	}
	if len(ends) > 0 {
		return "", "", fmt.Errorf("%s is missing", ends[len(ends)-1])
	}
	return b.String(), "", nil
}

// endTag consumes the tag that ended a block and returns a parser of its tokens, after the keyword.
func (t *translator) endTag() *exprParser {
	p := &exprParser{t: t, toks: t.segs[t.pos].toks, pos: 1}
	t.pos++
	return p
}

// inner translates a body that has its own scope and must end with end.
func (t *translator) inner(f *frame, end string) (string, error) {
	body, _, err := t.block(f, end)
	if err == nil {
		t.endTag()
	}
	return body, err
}

func (t *translator) statement(word string, p *exprParser, f *frame) (string, error) {
	switch word {
	case "if":
		return t.ifBlock(p, f)
	case "for":
		return t.forLoop(p, f)
	case "set":
		return t.set(p, f)
	case "macro":
		return t.macro(p, f)
	case "call":
		return t.callBlock(p)
	case "filter":
		return t.filterBlock(p, f)
	case "break", "continue":
		if !f.inLoop {
			return "", fmt.Errorf("%s outside a loop", word)
		}
		return statement(word), p.wantEnd()
	case "generation": // marks the assistant's text for training; its body is rendered
		if err := p.wantEnd(); err != nil {
			return "", err
		}
		return t.inner(f, "endgeneration")
	}
	return "", fmt.Errorf("unknown or misplaced tag %s", clip(word))
}

func (t *translator) ifBlock(p *exprParser, f *frame) (string, error) {
	var b strings.Builder
	word := "if"
	for {
		cond, err := p.tuple()
		if err == nil {
			err = p.wantEnd()
		}
		if err != nil {
			return "", err
		}
		b.WriteString(statement(word + " (" + cond + ")"))
		ends := []string{"elif", "else", "endif"}
		body, end, err := t.block(f, ends...)
		if err != nil {
			return "", err
		}
		b.WriteString(body)
		p = t.endTag()
		if end == "else" {
			b.WriteString(statement("else"))
			if body, err = t.inner(f, "endif"); err != nil {
				return "", err
			}
			b.WriteString(body)
		}
		if end != "elif" {
			b.WriteString(statement("endif"))
			return b.String(), nil
		}
		word = "elif"
	}
}

// forLoop translates a loop. Jinja2 gives each round a fresh scope, the engine one for the whole loop; so a name that the
// body sets is first put back to what it was outside.
func (t *translator) forLoop(p *exprParser, outer *frame) (string, error) {
	var names []string
	bracket := p.takeOp("(")
	for {
		n, err := p.ident()
		if err != nil {
			return "", err
		}
		names = append(names, n)
		if !p.takeOp(",") {
			break
		}
	}
	if bracket {
		if err := p.wantOp(")"); err != nil {
			return "", err
		}
	}
	if !p.takeName("in") {
		return "", fmt.Errorf("for without in")
	}
	// The list of a for has no inline if at its top level: that word begins the filter.
	iter, err := p.or()
	if err != nil {
		return "", err
	}
	if p.isOp(",") {
		items := []string{iter}
		for p.takeOp(",") {
			if iter, err = p.or(); err != nil {
				return "", err
			}
			items = append(items, iter)
		}
		iter = "[" + strings.Join(items, ", ") + "]"
	}
	item := names[0]
	unpack := ""
	if len(names) > 1 {
		item = t.temp()
		for i, n := range names {
			unpack += statement("set " + n + " = " + t.call("unpack", item, strconv.Itoa(i), strconv.Itoa(len(names))))
		}
	}
	filter, gather := "", ""
	if p.takeName("if") {
		cond, err := p.expr()
		if err != nil {
			return "", err
		}
		if len(names) == 1 {
			filter = " if (" + t.call("round", "0") + " and (" + cond + "))"
		} else { // the engine would filter by the last name: what passes is gathered first, in a loop of its own
			kept := t.temp()
			gather = statement("set "+kept+" = "+t.call("fresh")) + statement("for "+item+" in "+t.call("iter", iter)) +
				statement("if "+t.call("round", "0")) + statement("endif") + unpack +
				statement("if "+cond) + statement("if "+t.call("push", kept, item)) + statement("endif") + statement("endif") + statement("endfor")
			iter = kept
		}
	}
	if p.isName("recursive") {
		return "", fmt.Errorf("recursive loops are not supported")
	}
	if err := p.wantEnd(); err != nil {
		return "", err
	}
	f := &frame{inLoop: true}
	body, end, err := t.block(f, "else", "endfor")
	if err != nil {
		return "", err
	}
	t.endTag()
	before, reset := "", ""
	for _, n := range f.sets {
		if slices.Contains(names, n) {
			continue
		}
		v := t.temp()
		before += statement("set " + v + " = " + n)
		reset += statement("set " + n + " = " + v)
	}
	src := gather + before + statement("for "+item+" in "+t.call("iter", iter)+filter) +
		statement("if "+t.call("round", strconv.Itoa(f.static))) + statement("endif") + reset + unpack + body
	if end == "else" {
		other, err := t.inner(outer, "endfor")
		if err != nil {
			return "", err
		}
		src += statement("else") + other
	}
	return src + statement("endfor"), nil
}

func (t *translator) set(p *exprParser, f *frame) (string, error) {
	bracket := p.takeOp("(")
	var names []string
	for {
		n, err := p.ident()
		if err != nil {
			return "", err
		}
		names = append(names, n)
		if !p.takeOp(",") {
			break
		}
	}
	if bracket {
		if err := p.wantOp(")"); err != nil {
			return "", err
		}
	}
	attr := ""
	if len(names) == 1 && p.takeOp(".") {
		a, err := p.ident()
		if err != nil {
			return "", err
		}
		attr = a
	}
	if !p.takeOp("=") {
		if err := p.wantEnd(); err != nil {
			return "", fmt.Errorf("set without =")
		}
		if len(names) > 1 || attr != "" {
			return "", fmt.Errorf("a set block has one plain name")
		}
		body, err := t.inner(f, "endset")
		if err != nil {
			return "", err
		}
		f.bind(names[0])
		return statement("set "+names[0]) + body + statement("endset"), nil
	}
	e, err := p.tuple()
	if err == nil {
		err = p.wantEnd()
	}
	if err != nil {
		return "", err
	}
	if attr != "" {
		// The engine would set an attribute of any dict; Jinja2 only that of a namespace.
		return statement("if "+t.call("setattr", names[0], t.quote(attr), e)) + statement("endif"), nil
	}
	if len(names) == 1 {
		f.bind(names[0])
		return statement("set " + names[0] + " = " + e), nil
	}
	v := t.temp()
	src := statement("set " + v + " = " + e)
	for i, n := range names {
		f.bind(n)
		src += statement("set " + n + " = " + t.call("unpack", v, strconv.Itoa(i), strconv.Itoa(len(names))))
	}
	return src, nil
}

func (t *translator) macro(p *exprParser, f *frame) (string, error) {
	name, err := p.ident()
	if err != nil {
		return "", err
	}
	params, defaults, err := p.params()
	if err != nil {
		return "", err
	}
	inner := &frame{}
	body, err := t.inner(inner, "endmacro")
	if err != nil {
		return "", err
	}
	f.bind(name)
	return statement("macro "+name+"("+strings.Join(params, ", ")+")") + t.enter(inner) + defaults + body + t.leave() +
		statement("endmacro"), nil
}

// enter and leave bracket the body of a macro or call block, so that recursion is bounded.
func (t *translator) enter(f *frame) string {
	return statement("if "+t.call("enter", strconv.Itoa(f.static))) + statement("endif")
}

func (t *translator) leave() string { return statement("if "+t.call("leave")) + statement("endif") }

// params parses a macro's parameter list; defaults is source that fills what the caller left out.
func (p *exprParser) params() (params []string, defaults string, err error) {
	if err = p.wantOp("("); err != nil {
		return nil, "", err
	}
	for !p.isOp(")") {
		n, err := p.ident()
		if err != nil {
			return nil, "", err
		}
		params = append(params, n)
		if p.takeOp("=") {
			e, err := p.expr()
			if err != nil {
				return nil, "", err
			}
			defaults += statement("if "+p.call("t_undefined", n)) + statement("set "+n+" = "+e) + statement("endif")
		}
		if !p.takeOp(",") {
			break
		}
	}
	if err = p.wantOp(")"); err == nil {
		err = p.wantEnd()
	}
	return params, defaults, err
}

func (t *translator) callBlock(p *exprParser) (string, error) {
	var params []string
	if p.takeOp("(") {
		for !p.isOp(")") {
			n, err := p.ident()
			if err != nil {
				return "", err
			}
			params = append(params, n)
			if !p.takeOp(",") {
				break
			}
		}
		if err := p.wantOp(")"); err != nil {
			return "", err
		}
	}
	e, err := p.unary(false)
	if err == nil {
		err = p.wantEnd()
	}
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(e, prefix+"callable(") {
		return "", fmt.Errorf("call block without a macro call")
	}
	f := &frame{}
	body, err := t.inner(f, "endcall")
	if err != nil {
		return "", err
	}
	return statement("call("+strings.Join(params, ", ")+") "+e) + t.enter(f) + body + t.leave() + statement("endcall"), nil
}

// filterBlock renders its body into a variable of its own and puts that through the filters.
func (t *translator) filterBlock(p *exprParser, f *frame) (string, error) {
	v := t.temp()
	p.toks = slices.Insert(slices.Clone(p.toks), p.pos, token{tokOp, "|"})
	e, err := p.filters(v)
	if err == nil {
		err = p.wantEnd()
	}
	if err != nil {
		return "", err
	}
	body, err := t.inner(f, "endfilter")
	if err != nil {
		return "", err
	}
	return statement("set "+v) + body + statement("endset") + output(t.call("out", e)), nil
}
