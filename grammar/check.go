package grammar

import (
	"math"
	"strconv"
)

// listed gives the values that a part lists by const or enum, not yet checked against what else it asks.
func (b *builder) listed(p part) ([]*value, bool) {
	for _, q := range p.pieces {
		if c := q.s.get("const"); c != nil {
			return []*value{c}, true
		}
	}
	for _, q := range p.pieces {
		if e := q.s.get("enum"); e != nil {
			if e.kind != '[' {
				return []*value{e}, true // refused by valid
			}
			return e.items, true
		}
	}
	return nil, false
}

// listedNode makes the node of listed values that obey the whole part.
func (b *builder) listedNode(p part, vals []*value) (*node, error) {
	var all []*node
	var kept []*value
	for _, v := range vals {
		ok, err := b.validAll(v, p)
		if err != nil {
			return nil, err
		}
		for _, k := range kept {
			ok = ok && !k.equal(v)
		}
		if !ok {
			continue
		}
		kept = append(kept, v)
		n, ok := b.textOf(v)
		if !ok {
			return nil, b.fail(p.pieces[0].path, "value %s cannot be written in this model's tool calls", v.show())
		}
		if b.style == styleRaw {
			if v.kind == '"' && b.wary && readsAsJSON(v.text) {
				return nil, b.fail(p.pieces[0].path, "string %s would be read as another value in this model's tool calls", v.show())
			}
			sep := b.jsonSep
			if v.kind == '"' {
				sep = b.textSep
			}
			n = seq(sep, n, b.stopNode)
		}
		all = append(all, n)
	}
	if len(all) == 0 {
		return b.never(p.pieces[0].path, "none of the listed values is allowed by all that is asked here"), nil
	}
	return alt(all...), nil
}

// validAll tells whether v obeys all pieces and choices.
func (b *builder) validAll(v *value, p part) (bool, error) {
	for _, q := range p.pieces {
		if ok, err := b.valid(v, q.s, q.path, 0); !ok {
			return false, err
		}
	}
	for _, c := range p.choices {
		n := 0
		for i, s := range c.items {
			ok, err := b.valid(v, s, c.path+"/"+strconv.Itoa(i), 0)
			if err != nil {
				return false, err
			}
			if ok {
				n++
			}
		}
		if n == 0 || c.one && n > 1 {
			return false, nil
		}
	}
	return true, nil
}

func typeOf(v *value) types {
	switch v.kind {
	case '{':
		return tObject
	case '[':
		return tArray
	case '"':
		return tString
	case 't':
		return tBool
	case 'n':
		return tNull
	}
	if r, ok := v.rat(); ok && r.IsInt() {
		return tInteger
	}
	return tFraction
}

// matches tells whether text is one of n's, which is over characters.
func (b *builder) matches(n *node, text string) (bool, error) {
	g, err := finish([]rule{{"text", n}}, 0)
	if err != nil {
		return false, nil // it has no texts
	}
	m, err := g.New(noTokens)
	if err != nil {
		return false, err
	}
	return m.AcceptBytes([]byte(text)) == nil && m.Complete(), nil
}

// noTokens is a vocabulary without tokens, for texts alone.
var noTokens = NewIndex(noVocab{})

type noVocab struct{}

func (noVocab) Size() int          { return 0 }
func (noVocab) Bytes(int32) []byte { return nil }
func (noVocab) IsEnd(int32) bool   { return false }

// valid tells whether v obeys s.
func (b *builder) valid(v *value, s *value, path string, depth int) (bool, error) {
	if b.work++; b.work > maxWork || depth > maxDepth {
		return false, b.fail(path, "the schema is too large or nested too deeply to check listed values")
	}
	if s.kind == 't' {
		return s.is, nil
	}
	if s.kind != '{' {
		return false, b.fail(path, "a schema is an object or a boolean, not %s", s.show())
	}
	q := &piece{s, path, nil}
	p := part{pieces: []*piece{q}}
	for i, key := range s.keys {
		arg := s.items[i]
		at := q.sub(key)
		ok := true
		var err error
		all := func(list *value, each func(ok bool)) error {
			if list.kind != '[' {
				return b.fail(at, "%s is %s, not an array of schemas", key, list.show())
			}
			for i, sub := range list.items {
				ok, err := b.valid(v, sub, at+"/"+strconv.Itoa(i), depth+1)
				if err != nil {
					return err
				}
				each(ok)
			}
			return nil
		}
		n := 0
		counted := func(ok bool) {
			if ok {
				n++
			}
		}
		switch key {
		case "$ref":
			target, to, e := b.resolve(arg, at)
			if err = e; err == nil {
				ok, err = b.valid(v, target, to, depth+1)
			}
		case "allOf":
			err = all(arg, counted)
			ok = n == len(arg.items)
		case "anyOf":
			err = all(arg, counted)
			ok = n > 0
		case "oneOf":
			err = all(arg, counted)
			ok = n == 1
		case "not":
			ok, err = b.valid(v, arg, at, depth+1)
			ok = !ok
		case "if":
			var yes bool
			if yes, err = b.valid(v, arg, at, depth+1); err != nil {
				break
			}
			branch := "else"
			if yes {
				branch = "then"
			}
			if sub := s.get(branch); sub != nil {
				ok, err = b.valid(v, sub, q.sub(branch), depth+1)
			}
		case "const":
			ok = v.equal(arg)
		case "enum":
			if arg.kind != '[' {
				return false, b.fail(at, "enum is %s, not an array", arg.show())
			}
			ok = false
			for _, e := range arg.items {
				ok = ok || v.equal(e)
			}
		case "type":
			var t types
			if t, err = b.typesOf(part{pieces: []*piece{{&value{kind: '{', keys: []string{"type"}, items: []*value{arg}}, path, nil}}}); err == nil {
				ok = typeOf(v)&t != 0
			}
		case "contains", "minContains", "maxContains", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef", "extends", "disallow":
			if !harmless(s, key) {
				return false, b.fail(at, "%s is not supported", key)
			}
		case "properties", "additionalProperties", "required", "patternProperties", "propertyNames", "dependentRequired", "minProperties", "maxProperties", "unevaluatedProperties":
			if v.kind == '{' {
				ok, err = b.validObject(v, q, key, depth)
			}
		case "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems":
			if v.kind == '[' {
				ok, err = b.validArray(v, p, key, depth)
			}
		case "minLength", "maxLength", "pattern", "format":
			if v.kind == '"' {
				var text *node
				if text, _, err = b.stringsOf(part{pieces: []*piece{{&value{kind: '{', keys: []string{key}, items: []*value{arg}}, path, nil}}}); err == nil {
					ok, err = b.matches(text, v.text)
				}
			}
		case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
			if v.kind == '0' {
				var nums *numbers
				r, fits := v.rat()
				if nums, _, err = b.numbersOf(p); err == nil {
					ok = fits && nums.has(r)
				}
			}
		}
		if err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (b *builder) validObject(v *value, q *piece, key string, depth int) (bool, error) {
	arg, at := q.s.get(key), q.sub(key)
	p := part{pieces: []*piece{q}}
	switch key {
	case "minProperties":
		n, err := b.integer(q, key, 0)
		return len(v.keys) >= n, err
	case "maxProperties":
		n, err := b.integer(q, key, math.MaxInt)
		return len(v.keys) <= n, err
	case "unevaluatedProperties", "dependentRequired":
		if arg.kind == 't' && arg.is || harmless(q.s, key) {
			return true, nil
		}
		return false, b.fail(at, "%s is not supported with listed objects", key)
	case "propertyNames":
		for _, k := range v.keys {
			if ok, err := b.valid(&value{kind: '"', text: k}, arg, at, depth+1); !ok {
				return false, err
			}
		}
		return true, nil
	case "required":
		if arg.kind == '[' {
			for _, k := range arg.items {
				if v.get(k.text) == nil {
					return false, nil
				}
			}
		}
		return true, nil
	case "patternProperties":
		if !harmless(q.s, key) {
			return false, b.fail(at, "%s is not supported with listed objects", key)
		}
		return true, nil
	}
	o, err := b.objectsOf(p)
	if err != nil {
		return false, err
	}
	for i, k := range v.keys {
		in := o.rest
		named := false
		for _, m := range o.members {
			if m.name == k {
				in, named = m.pieces, true
			}
		}
		if a := q.s.get("additionalProperties"); !named && a != nil && a.kind == 't' && !a.is && (q.s.get("properties") == nil || q.s.get("properties").get(k) == nil) {
			return false, nil
		}
		for _, sub := range in {
			if ok, err := b.valid(v.items[i], sub.s, sub.path, depth+1); !ok {
				return false, err
			}
		}
	}
	return true, nil
}

func (b *builder) validArray(v *value, p part, key string, depth int) (bool, error) {
	if key == "uniqueItems" {
		for i, e := range v.items {
			for _, f := range v.items[:i] {
				if e.equal(f) && p.pieces[0].s.get(key).is {
					return false, nil
				}
			}
		}
		return true, nil
	}
	a, err := b.arraysOf(p)
	if err != nil {
		return false, err
	}
	if len(v.items) < a.least || len(v.items) > a.most {
		return false, nil
	}
	for i, e := range v.items {
		in := a.rest
		if i < len(a.first) {
			in = a.first[i]
		}
		for _, sub := range in {
			if ok, err := b.valid(e, sub.s, sub.path, depth+1); !ok {
				return false, err
			}
		}
	}
	return true, nil
}

// exclusive makes sure that what the grammar writes for one item of a oneOf is never valid for another.
func (b *builder) exclusive(p part, c choice) error {
	parts := make([]part, len(c.items))
	gone := make([]bool, len(c.items))
	for i, s := range c.items {
		in := make([]piece, 0, len(p.pieces)+1)
		for _, q := range p.pieces {
			in = append(in, piece{b.without(q.s), q.path, q.from})
		}
		made, ok, err := b.flatten(append(in, piece{s, c.path + "/" + strconv.Itoa(i), c.by}))
		if err != nil {
			return err
		}
		parts[i], gone[i] = made, !ok
	}
	for i := range c.items {
		for j, s := range c.items {
			if i == j || gone[i] {
				continue
			}
			other, ok, err := b.flatten([]piece{{s, c.path + "/" + strconv.Itoa(j), c.by}})
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			apart, err := b.apart(parts[i], other, 0)
			if err != nil {
				return err
			}
			if !apart {
				return b.fail(c.path, "choices %d and %d may allow the same value, which oneOf forbids; anyOf would not", i, j)
			}
		}
	}
	return nil
}

// apart tells whether no value that is written for g is valid for o. It says no where it does not know.
func (b *builder) apart(g, o part, depth int) (bool, error) {
	if depth > 16 {
		return false, nil
	}
	none := func(vals []*value, p part) (bool, error) {
		for _, v := range vals {
			if ok, err := b.validAll(v, p); ok || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if vals, ok := b.listed(g); ok {
		var written []*value
		for _, v := range vals {
			ok, err := b.validAll(v, g)
			if err != nil {
				return false, err
			}
			if ok {
				written = append(written, v)
			}
		}
		return none(written, o)
	}
	if vals, ok := b.listed(o); ok {
		return none(vals, g)
	}
	if len(g.choices) > 0 {
		return b.eachOf(g, func(made part) (bool, error) { return b.apart(made, o, depth+1) })
	}
	if len(o.choices) > 0 {
		return b.eachOf(o, func(made part) (bool, error) { return b.apart(g, made, depth+1) })
	}
	mine, err := b.typesOf(g)
	if err != nil {
		return false, err
	}
	theirs := tAll
	for _, q := range o.pieces {
		if q.s.get("type") != nil {
			t, err := b.typesOf(part{pieces: []*piece{q}})
			if err != nil {
				return false, err
			}
			theirs &= t
		}
	}
	both := mine & theirs
	if both&(tNull|tBool) != 0 {
		return false, nil
	}
	for _, t := range []struct {
		of    types
		apart func(g, o part, depth int) (bool, error)
	}{{tNumber, b.numbersApart}, {tString, b.stringsApart}, {tArray, b.arraysApart}, {tObject, b.objectsApart}} {
		if both&t.of == 0 {
			continue
		}
		if ok, err := t.apart(g, o, depth); !ok {
			return false, err
		}
	}
	return true, nil
}

// eachOf tells whether all that p can be holds, with each item of its first choice.
func (b *builder) eachOf(p part, holds func(made part) (bool, error)) (bool, error) {
	c := p.choices[0]
	for k, s := range c.items {
		in := make([]piece, 0, len(p.pieces)+1)
		for _, q := range p.pieces {
			in = append(in, piece{b.without(q.s), q.path, q.from})
		}
		made, ok, err := b.flatten(append(in, piece{s, c.path + "/" + strconv.Itoa(k), c.by}))
		if err != nil {
			return false, err
		}
		if !ok {
			continue
		}
		made.choices = append(made.choices, p.choices[1:]...)
		if ok, err := holds(made); !ok {
			return false, err
		}
	}
	return true, nil
}

func (b *builder) numbersApart(g, o part, _ int) (bool, error) {
	x, _, err := b.numbersOf(g)
	if err != nil {
		return false, err
	}
	y, _, err := b.numbersOf(o)
	if err != nil {
		return false, err
	}
	below := func(hi, lo *bound) bool {
		return hi != nil && lo != nil && (hi.at.Cmp(lo.at) < 0 || hi.at.Cmp(lo.at) == 0 && (hi.open || lo.open))
	}
	return below(x.hi, y.lo) || below(y.hi, x.lo), nil
}

func (b *builder) stringsApart(g, o part, _ int) (bool, error) {
	x, _, err := b.stringsOf(g)
	if err != nil {
		return false, err
	}
	y, _, err := b.stringsOf(o)
	if err != nil {
		return false, err
	}
	// Of o the lengths count only where no pattern or format was narrowed down.
	lo, hi := span(x)
	for _, q := range o.pieces {
		if q.s.get("pattern") != nil || q.s.get("format") != nil {
			return false, nil
		}
	}
	lo2, hi2 := span(y)
	return hi < lo2 || hi2 < lo, nil
}

func (b *builder) arraysApart(g, o part, depth int) (bool, error) {
	x, err := b.arraysOf(g)
	if err != nil {
		return false, err
	}
	y, err := b.arraysOf(o)
	if err != nil {
		return false, err
	}
	if x.most < y.least || y.most < x.least {
		return true, nil
	}
	at := func(a *arrays, i int) []piece {
		if i < len(a.first) {
			return a.first[i]
		}
		return a.rest
	}
	for i := range x.least {
		if ok, err := b.piecesApart(at(x, i), at(y, i), depth); ok || err != nil {
			return ok, err
		}
		if i >= len(x.first) && i >= len(y.first) {
			break
		}
	}
	return false, nil
}

func (b *builder) piecesApart(x, y []piece, depth int) (bool, error) {
	if len(x) == 0 || len(y) == 0 {
		return false, nil
	}
	g, ok, err := b.flatten(x)
	if err != nil || !ok {
		return !ok && err == nil, err
	}
	o, ok, err := b.flatten(y)
	if err != nil || !ok {
		return !ok && err == nil, err
	}
	return b.apart(g, o, depth+1)
}

func (b *builder) objectsApart(g, o part, depth int) (bool, error) {
	x, err := b.objectsOf(g)
	if err != nil {
		return false, err
	}
	y, err := b.objectsOf(o)
	if err != nil {
		return false, err
	}
	if y.missing != "" {
		return true, nil
	}
	theirs := map[string]member{}
	for _, m := range y.members {
		theirs[m.name] = m
	}
	mine := map[string]bool{}
	for _, m := range x.members {
		mine[m.name] = true
		t, known := theirs[m.name]
		if m.required && !known { // they may forbid it
			for _, q := range o.pieces {
				if a := q.s.get("additionalProperties"); a != nil && a.kind == 't' && !a.is {
					return true, nil
				}
			}
			if ok, err := b.piecesApart(m.pieces, y.rest, depth); ok || err != nil {
				return ok, err
			}
		}
		if known && (m.required || t.required) {
			if ok, err := b.piecesApart(m.pieces, t.pieces, depth); ok || err != nil {
				return ok, err
			}
		}
	}
	for _, m := range y.members {
		if m.required && !mine[m.name] && !x.open {
			return true, nil // they ask for what is never written
		}
	}
	return false, nil
}
