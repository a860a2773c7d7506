package grammar

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// SchemaOptions say how values are written.
type SchemaOptions struct {
	Compact bool // without white space; else a space or a line break with an indent may stand where people put one
}

// SchemaError tells which part of a schema cannot be turned into a grammar.
type SchemaError struct {
	Path string // JSON Pointer from the root, beginning with #
	Text string
}

func (e *SchemaError) Error() string { return "json_schema: " + e.Path + ": " + e.Text }

// FromSchema makes a grammar of the values that a JSON Schema allows (2020-12, and what older drafts wrote for it). Every
// text of the grammar validates; not every valid value is a text of it: properties come in the schema's order, objects with
// properties have no others unless additionalProperties asks for them, numbers have up to 15 digits, and a key that may not
// be one of the properties has no escapes.
//
// It knows type, enum, const, properties, required, additionalProperties, minProperties, maxProperties, items,
// additionalItems, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format, minimum, maximum,
// exclusiveMinimum, exclusiveMaximum, multipleOf, anyOf, oneOf whose choices exclude each other, allOf, and $ref within the
// schema. Other keywords that would forbid something are refused, and so is what cannot be expressed: the error, a
// *SchemaError, names the place. Annotations, formats and keywords that JSON Schema does not know are ignored.
func FromSchema(schema json.RawMessage, o SchemaOptions) (*Grammar, error) {
	root, err := readValue(schema)
	if err != nil {
		return nil, &SchemaError{"#", "the schema is no JSON: " + oneLine(err)}
	}
	b := newBuilder(root, o.Compact)
	n, err := b.root(root, "#")
	if err != nil {
		return nil, err
	}
	return b.finish(n)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// types are the kinds of JSON values; a number is either an integer or not.
type types uint8

const (
	tNull types = 1 << iota
	tBool
	tInteger
	tFraction
	tString
	tArray
	tObject
	tAll    types = 1<<7 - 1
	tNumber       = tInteger | tFraction
)

var typeNames = map[string]types{"null": tNull, "boolean": tBool, "integer": tInteger, "number": tNumber, "string": tString, "array": tArray, "object": tObject}

// builder makes the nodes of one schema.
type builder struct {
	doc     *value
	docPath string // of doc, for errors
	rules   []rule
	named   map[string]int // rules of schemas that others refer to, by what they are made of
	any     int            // the rule of any value, -1 if there is none yet
	space   *node          // white space at brackets and commas
	colon   *node
	style   style
	// Of styleRaw: what ends a value, which is part of it; the text of that which no value may hold; and whether a string
	// must not look like another value.
	stopNode  *node
	stopExits []exit
	stop      string
	wary      bool
	textSep   *node // before a string, and before another value
	jsonSep   *node
	avoid     bool       // JSON strings have no <, which begins tags
	call      *callStyle // how the parameters of a call are written; nil: as an object
	why       *SchemaError
	work      int // schemas turned, to bound how alternatives multiply
	ids       map[*value]int
	bare      map[*value]*value // what without gave
}

// Limits of a schema.
const (
	maxWork    = 20000 // pieces, counted as often as they are used
	maxChoices = 256   // combinations of alternatives in one place
)

func newBuilder(doc *value, compact bool) *builder {
	b := &builder{doc: doc, docPath: "#", named: map[string]int{}, any: -1, space: empty, colon: text(":"), ids: map[*value]int{}, bare: map[*value]*value{}}
	if !compact {
		b.space = opt(alt(text(" "), seq(text("\n"), repeat(chars(setOf(" \t")), 0, 20))))
		b.colon = seq(text(":"), opt(text(" ")))
	}
	return b
}

// root makes the node of a whole schema.
func (b *builder) root(s *value, path string) (*node, error) {
	n, err := b.schema([]piece{{s, path, nil}}, 0)
	if err != nil {
		return nil, err
	}
	if n.kind == kNever {
		return nil, b.reason(path)
	}
	return n, nil
}

func (b *builder) reason(path string) error {
	if b.why != nil {
		return b.why
	}
	return &SchemaError{path, "no value is allowed"}
}

func (b *builder) finish(n *node) (*Grammar, error) {
	b.rules = append(b.rules, rule{"root", n})
	g, err := finish(b.rules, len(b.rules)-1)
	if err != nil {
		return nil, &SchemaError{b.docPath, oneLine(err)}
	}
	return g, nil
}

func (b *builder) fail(path, format string, args ...any) error {
	return &SchemaError{path, fmt.Sprintf(format, args...)}
}

// never is a node without texts; the first reason is kept for the case that nothing else is left.
func (b *builder) never(path, format string, args ...any) *node {
	if b.why == nil {
		b.why = &SchemaError{path, fmt.Sprintf(format, args...)}
	}
	return never
}

// piece is a schema that a value must obey, beside others.
type piece struct {
	s    *value
	path string
	from *piece // the piece that asked for it, of the same value
}

func (p *piece) sub(key string) string { return p.path + "/" + pointerEscape(key) }

func pointerEscape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

// choice is an anyOf or oneOf.
type choice struct {
	by    *piece
	one   bool
	path  string
	items []*value
}

// part is what pieces come to together.
type part struct {
	pieces  []*piece
	choices []choice
	refs    bool // a $ref was followed
}

// The keywords that forbid values and are refused, and those that say which types a schema speaks of.
var (
	refused    = []string{"not", "if", "then", "else", "contains", "minContains", "maxContains", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef", "extends", "disallow"}
	ofObjects  = []string{"properties", "required", "additionalProperties", "minProperties", "maxProperties", "unevaluatedProperties", "patternProperties", "propertyNames"}
	ofArrays   = []string{"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"}
	ofStrings  = []string{"minLength", "maxLength", "pattern", "format"}
	ofNumbers  = []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
	keywordsOf = map[types][]string{tObject: ofObjects, tArray: ofArrays, tString: ofStrings, tNumber: ofNumbers}
)

// harmless tells whether a keyword that is refused forbids nothing as it stands.
func harmless(s *value, key string) bool {
	v := s.get(key)
	switch key {
	case "patternProperties", "dependentRequired", "dependentSchemas", "dependencies":
		return v.kind == '{' && len(v.keys) == 0
	case "propertyNames", "then", "else":
		return v.kind == 't' && v.is || v.kind == '{' && len(v.keys) == 0 || key != "propertyNames" && s.get("if") == nil
	case "if":
		return s.get("then") == nil && s.get("else") == nil
	case "not":
		return v.kind == 't' && !v.is
	case "minContains", "maxContains":
		return s.get("contains") == nil
	}
	return false
}

// flatten gathers what the pieces come to: references and allOf are followed. ok is false if a piece allows nothing.
func (b *builder) flatten(in []piece) (p part, ok bool, err error) {
	seen := map[*value]bool{}
	var add func(q *piece) (bool, error)
	add = func(q *piece) (bool, error) {
		s := q.s
		if b.work++; b.work > maxWork {
			return false, b.fail(q.path, "the schema is too large: its parts are used more than %d times", maxWork)
		}
		switch {
		case s.kind == 't' && s.is:
			return true, nil
		case s.kind == 't':
			b.never(q.path, "false allows no value")
			return false, nil
		case s.kind != '{':
			return false, b.fail(q.path, "a schema is an object or a boolean, not %s", s.show())
		case seen[s]:
			return true, nil
		}
		seen[s] = true
		p.pieces = append(p.pieces, q)
		for _, key := range refused {
			if s.get(key) != nil && !harmless(s, key) && s.get("const") == nil && s.get("enum") == nil {
				return false, b.fail(q.sub(key), "%s is not supported", key)
			}
		}
		if ref := s.get("$ref"); ref != nil {
			target, path, err := b.resolve(ref, q.sub("$ref"))
			if err != nil {
				return false, err
			}
			for up := q; up != nil; up = up.from {
				if up.s == target {
					return false, b.fail(q.sub("$ref"), "%s refers to itself without a value in between", path)
				}
			}
			p.refs = true
			if ok, err := add(&piece{target, path, q}); !ok {
				return false, err
			}
		}
		for _, key := range []string{"anyOf", "oneOf", "allOf"} {
			list := s.get(key)
			if list == nil {
				continue
			}
			if list.kind != '[' || len(list.items) == 0 {
				return false, b.fail(q.sub(key), "%s is %s, not an array of schemas", key, list.show())
			}
			if key != "allOf" {
				p.choices = append(p.choices, choice{q, key == "oneOf", q.sub(key), list.items})
				continue
			}
			for i, e := range list.items {
				if ok, err := add(&piece{e, q.sub(key) + "/" + strconv.Itoa(i), q}); !ok {
					return false, err
				}
			}
		}
		return true, nil
	}
	for i := range in {
		if ok, err := add(&in[i]); !ok {
			return part{}, false, err
		}
	}
	return p, true, nil
}

// resolve finds what a $ref points to.
func (b *builder) resolve(ref *value, path string) (*value, string, error) {
	if ref.kind != '"' {
		return nil, "", b.fail(path, "$ref is %s, not a string", ref.show())
	}
	pointer, ok := strings.CutPrefix(ref.text, "#")
	if !ok || pointer != "" && pointer[0] != '/' {
		return nil, "", b.fail(path, "$ref %.80q does not point into the schema by #/", ref.text)
	}
	at := b.doc
	if pointer != "" {
		for _, step := range strings.Split(pointer[1:], "/") {
			step = strings.ReplaceAll(strings.ReplaceAll(percent(step), "~1", "/"), "~0", "~")
			var next *value
			if at.kind == '[' {
				if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at.items) {
					next = at.items[i]
				}
			} else {
				next = at.get(step)
			}
			if next == nil {
				return nil, "", b.fail(path, "$ref %.80q points to nothing", ref.text)
			}
			at = next
		}
	}
	return at, b.docPath + pointer, nil
}

func percent(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				out.WriteByte(byte(v))
				i += 2
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// schema makes the node of the values that obey all pieces. Where references are among them it becomes a rule, which
// recursion finds again.
func (b *builder) schema(in []piece, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, b.fail(in[0].path, "schemas are nested more than %d deep", maxDepth)
	}
	p, ok, err := b.flatten(in)
	if err != nil || !ok {
		return never, err
	}
	if !p.refs {
		return b.choose(p, depth)
	}
	key := b.keyOf(p)
	if id, ok := b.named[key]; ok {
		return &node{kind: kRef, ref: id}, nil
	}
	id := len(b.rules)
	b.named[key] = id
	b.rules = append(b.rules, rule{p.pieces[len(p.pieces)-1].path, never})
	n, err := b.choose(p, depth)
	if err != nil {
		return nil, err
	}
	b.rules[id].body = n
	if n.kind == kNever {
		return never, nil
	}
	return &node{kind: kRef, ref: id}, nil
}

// keyOf tells parts of the same pieces from others.
func (b *builder) keyOf(p part) string {
	ids := make([]int, 0, len(p.pieces))
	for _, q := range p.pieces {
		if _, ok := b.ids[q.s]; !ok {
			b.ids[q.s] = len(b.ids)
		}
		ids = append(ids, b.ids[q.s])
	}
	return fmt.Sprint(ids, b.style, b.wary, b.call != nil)
}

// choose turns the choices of p into alternatives.
func (b *builder) choose(p part, depth int) (*node, error) {
	if vals, ok := b.listed(p); ok {
		if b.call != nil {
			return nil, b.fail(p.pieces[0].path, "parameters that are listed as a whole are not supported in this model's tool calls")
		}
		return b.listedNode(p, vals)
	}
	combos := []([]*piece){nil}
	for _, c := range p.choices {
		var next [][]*piece
		for _, combo := range combos {
			for i, s := range c.items {
				next = append(next, append(slices.Clone(combo), &piece{s, c.path + "/" + strconv.Itoa(i), c.by}))
			}
		}
		if combos = next; len(combos) > maxChoices {
			return nil, b.fail(c.path, "together with the other choices here there are more than %d combinations", maxChoices)
		}
		if c.one {
			if err := b.exclusive(p, c); err != nil {
				return nil, err
			}
		}
	}
	if len(p.choices) == 0 {
		return b.shape(p, depth)
	}
	var all []*node
	for _, combo := range combos {
		in := make([]piece, 0, len(p.pieces)+len(combo))
		for _, q := range p.pieces {
			in = append(in, piece{b.without(q.s), q.path, q.from})
		}
		for _, q := range combo {
			in = append(in, *q)
		}
		n, err := b.schema(in, depth+1)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return alt(all...), nil
}

// without is s without what flatten followed already.
func (b *builder) without(s *value) *value {
	if out := b.bare[s]; out != nil {
		return out
	}
	out := &value{kind: '{'}
	for i, k := range s.keys {
		switch k {
		case "$ref", "allOf", "anyOf", "oneOf":
		default:
			out.keys, out.items = append(out.keys, k), append(out.items, s.items[i])
		}
	}
	if len(out.keys) == len(s.keys) {
		out = s
	}
	b.bare[s], b.bare[out] = out, out
	return out
}

// integer reads a keyword that is a count; absent gives what, and so does nothing but a number.
func (b *builder) integer(q *piece, key string, what int) (int, error) {
	v := q.s.get(key)
	if v == nil {
		return what, nil
	}
	r, ok := v.rat()
	if !ok || !r.IsInt() || r.Sign() < 0 {
		return 0, b.fail(q.sub(key), "%s is %s, not a count", key, v.show())
	}
	if !r.Num().IsInt64() || r.Num().Int64() > math.MaxInt32 {
		return math.MaxInt32, nil
	}
	return int(r.Num().Int64()), nil
}

// typesOf are the types that the pieces allow, or if none says, those that their keywords speak of.
func (b *builder) typesOf(p part) (types, error) {
	out, said, spoken := tAll, false, types(0)
	for _, q := range p.pieces {
		v := q.s.get("type")
		if v == nil {
			for t, keys := range keywordsOf {
				if slices.ContainsFunc(keys, func(k string) bool { return q.s.get(k) != nil }) {
					spoken |= t
				}
			}
			continue
		}
		names := []*value{v}
		if v.kind == '[' {
			names = v.items
		}
		var here types
		for _, n := range names {
			t, ok := typeNames[n.text]
			if n.kind == '"' && n.text == "any" {
				t, ok = tAll, true
			}
			if n.kind != '"' || !ok {
				return 0, b.fail(q.sub("type"), "type %s is not known", n.show())
			}
			here |= t
		}
		out &= here
		said = true
	}
	if !said && spoken != 0 {
		return spoken, nil
	}
	return out, nil
}

// shape makes the node of a part without choices.
func (b *builder) shape(p part, depth int) (*node, error) {
	path := "#"
	if len(p.pieces) > 0 {
		path = p.pieces[0].path
	}
	allowed, err := b.typesOf(p)
	if err != nil {
		return nil, err
	}
	if allowed == 0 {
		return b.never(path, "no type is allowed by all that is asked here"), nil
	}
	if b.call != nil {
		return b.typed(p, allowed, depth)
	}
	if b.style == styleRaw && allowed != tString {
		inner := b.inner()
		var all []*node
		if rest := allowed &^ tString; rest != 0 {
			n, err := inner.typed(p, rest, depth)
			if err != nil {
				return nil, err
			}
			b.take(inner)
			all = append(all, seq(b.jsonSep, n, b.stopNode))
		}
		if allowed&tString != 0 {
			n, err := b.typed(p, tString, depth)
			if err != nil {
				return nil, err
			}
			all = append(all, n)
		}
		return alt(all...), nil
	}
	return b.typed(p, allowed, depth)
}

// inner is the builder of what stands within a raw value: JSON.
func (b *builder) inner() *builder {
	c := *b
	c.style = styleJSON
	return &c
}

func (b *builder) take(inner *builder) {
	b.rules, b.any, b.why, b.work = inner.rules, inner.any, inner.why, inner.work
}

// typed makes the node of the values of some types.
func (b *builder) typed(p part, allowed types, depth int) (*node, error) {
	if allowed == tAll && !b.asksAnything(p) {
		return b.anyValue(), nil
	}
	var all []*node
	add := func(n *node, err error) error {
		all = append(all, n)
		return err
	}
	// The order has no meaning, but that objects come first makes errors about them the first.
	steps := []struct {
		t  types
		do func() (*node, error)
	}{
		{tObject, func() (*node, error) { return b.object(p, depth) }},
		{tArray, func() (*node, error) { return b.array(p, depth) }},
		{tString, func() (*node, error) { return b.str(p) }},
		{tInteger, func() (*node, error) { return b.number(p, allowed) }},
		{tBool, func() (*node, error) { return alt(text(b.word("true")), text(b.word("false"))), nil }},
		{tNull, func() (*node, error) { return text(b.word("null")), nil }},
	}
	for _, s := range steps {
		if allowed&s.t == 0 && !(s.t == tInteger && allowed&tFraction != 0) {
			continue
		}
		if err := add(s.do()); err != nil {
			return nil, err
		}
	}
	return alt(all...), nil
}

// asksAnything tells whether a piece has a keyword that matters.
func (b *builder) asksAnything(p part) bool {
	for _, q := range p.pieces {
		for _, keys := range keywordsOf {
			if slices.ContainsFunc(keys, func(k string) bool { return q.s.get(k) != nil }) {
				return true
			}
		}
	}
	return false
}

// anyValue is the rule of all values.
func (b *builder) anyValue() *node {
	if b.any < 0 {
		b.any = len(b.rules)
		b.rules = append(b.rules, rule{"any value", never})
		ref := &node{kind: kRef, ref: b.any}
		member := seq(b.freeKey(nil), b.colon, ref)
		str := b.quote(b.content(anyText))
		if b.style == styleGemma {
			str = b.until()
		}
		nums, _ := (&numbers{}).node(b)
		comma := seq(text(","), b.space)
		b.rules[b.any].body = alt(
			seq(text("{"), b.space, opt(seq(member, repeat(seq(comma, member), 0, -1), b.space)), text("}")),
			seq(text("["), b.space, opt(seq(ref, repeat(seq(comma, ref), 0, -1), b.space)), text("]")),
			str, nums, text(b.word("true")), text(b.word("false")), text(b.word("null")))
	}
	return &node{kind: kRef, ref: b.any}
}

// number makes numbers, integers only unless fractions are allowed.
func (b *builder) number(p part, allowed types) (*node, error) {
	n, path, err := b.numbersOf(p)
	if err != nil {
		return nil, err
	}
	n.whole = allowed&tFraction == 0
	out, err := n.node(b)
	if err != nil {
		return nil, b.fail(path, "%s", err)
	}
	if out.kind == kNever {
		return b.never(path, "no number lies within the bounds"), nil
	}
	return out, nil
}

// numbersOf gathers the bounds; path is of the last piece that has one.
func (b *builder) numbersOf(p part) (*numbers, string, error) {
	n := &numbers{}
	path := "#"
	for _, q := range p.pieces {
		for _, key := range ofNumbers {
			v := q.s.get(key)
			if v == nil {
				continue
			}
			path = q.sub(key)
			if v.kind == 't' && strings.HasPrefix(key, "exclusive") {
				continue // draft 4: says how to read the bound
			}
			r, ok := v.rat()
			if !ok {
				return nil, "", b.fail(path, "%s is %s, not a number of a reasonable size", key, v.show())
			}
			draft4 := func(key string) bool { x := q.s.get(key); return x != nil && x.kind == 't' && x.is }
			switch key {
			case "minimum":
				n.raise(&bound{r, draft4("exclusiveMinimum")})
			case "maximum":
				n.lower(&bound{r, draft4("exclusiveMaximum")})
			case "exclusiveMinimum":
				n.raise(&bound{r, true})
			case "exclusiveMaximum":
				n.lower(&bound{r, true})
			case "multipleOf":
				if r.Sign() <= 0 {
					return nil, "", b.fail(path, "multipleOf is %s, not a positive number", v.show())
				}
				n.steps = append(n.steps, r)
			}
		}
	}
	return n, path, nil
}

// str makes strings.
func (b *builder) str(p part) (*node, error) {
	body, free, err := b.stringsOf(p)
	if err != nil {
		return nil, err
	}
	switch {
	case b.style == styleRaw && b.wary:
		// A letter with which no JSON value and no constant begins, so that it is read as a string.
		if !free {
			return nil, b.fail(p.pieces[0].path, "a string with limits beside other types cannot be written in this model's tool calls")
		}
		return seq(b.textSep, chars(wordSet.minus(digitSet).minus(setOf("tfnTFNIi_"))), b.until()), nil
	case b.style == styleRaw && free:
		return seq(b.textSep, b.until()), nil
	case b.style == styleGemma && free:
		return b.until(), nil
	}
	n := b.quote(b.content(body))
	if b.style == styleRaw {
		n = seq(b.textSep, n, b.stopNode)
	}
	if n.kind == kNever {
		return b.never(p.pieces[0].path, "no string of it can be written here"), nil
	}
	return n, nil
}

// until is any text up to the end of a string, which is part of it.
func (b *builder) until() *node {
	if b.style == styleGemma {
		q := mark(gemmaQuote)
		return seq(q, &node{kind: kFree, free: &free{exits: []exit{{pieces: []*node{q}, then: empty}}}})
	}
	return &node{kind: kFree, free: &free{exits: b.stopExits}}
}

// stringsOf gives the strings over their characters; free tells that nothing is asked of them.
func (b *builder) stringsOf(p part) (n *node, free bool, err error) {
	least, most := 0, math.MaxInt
	n = anyText
	ruled, ruler := "", ""
	for _, q := range p.pieces {
		lo, err := b.integer(q, "minLength", 0)
		if err != nil {
			return nil, false, err
		}
		hi, err := b.integer(q, "maxLength", math.MaxInt)
		if err != nil {
			return nil, false, err
		}
		least, most = max(least, lo), min(most, hi)
		for _, key := range []string{"pattern", "format"} {
			v := q.s.get(key)
			if v == nil {
				continue
			}
			if v.kind != '"' {
				return nil, false, b.fail(q.sub(key), "%s is %s, not a string", key, v.show())
			}
			if key == "format" && formats[v.text] == nil {
				continue
			}
			if ruled == key+v.text {
				continue
			}
			if ruled != "" {
				return nil, false, b.fail(q.sub(key), "%s together with %s is not supported", key, ruler)
			}
			ruled, ruler = key+v.text, q.sub(key)
			if n = formats[v.text]; key == "pattern" {
				if n, err = parseRegexp(v.text); err != nil {
					return nil, false, b.fail(q.sub(key), "pattern: %s", oneLine(err))
				}
			}
		}
	}
	path := "#"
	if len(p.pieces) > 0 {
		path = p.pieces[0].path
	}
	if least > most {
		return b.never(path, "minLength %d is above maxLength %d", least, most), false, nil
	}
	if ruled == "" {
		if least == 0 && most == math.MaxInt {
			return n, true, nil
		}
		return repeat(chars(allRunes), least, bounded(most)), false, nil
	}
	if n = fit(n, least, most); n.kind == kNever {
		return nil, false, b.fail(ruler, "no text of it with %d to %d characters was found", least, most)
	}
	return n, false, nil
}
