package grammar

import (
	"math"
	"slices"
	"strconv"
)

// member is a property of an object.
type member struct {
	name     string
	pieces   []piece
	required bool
}

// objects is what pieces ask of objects.
type objects struct {
	members     []member
	rest        []piece // what other properties must obey
	open        bool    // there may be others
	least, most int
	missing     string // a property that is required and forbidden
	path        string
}

// isSchema tells whether v has the form of a schema.
func isSchema(v *value) bool { return v.kind == '{' || v.kind == 't' }

// objectsOf gathers what the pieces ask.
func (b *builder) objectsOf(p part) (*objects, error) {
	o := &objects{most: math.MaxInt, path: "#"}
	if len(p.pieces) > 0 {
		o.path = p.pieces[0].path
	}
	var names []string
	known := map[string]bool{}
	required := map[string]string{} // and who asks
	name := func(k string) {
		if !known[k] {
			known[k] = true
			names = append(names, k)
		}
	}
	asked, closed, declared, only := false, false, false, false
	for _, q := range p.pieces {
		props := q.s.get("properties")
		if props != nil {
			if props.kind != '{' {
				return nil, b.fail(q.sub("properties"), "properties is %s, not an object", props.show())
			}
			declared = declared || len(props.keys) > 0
			for _, k := range props.keys {
				name(k)
			}
		}
		if r := q.s.get("required"); r != nil && r.kind != 't' { // a boolean is draft 3's, within a property
			if r.kind != '[' {
				return nil, b.fail(q.sub("required"), "required is %s, not an array of names", r.show())
			}
			for _, v := range r.items {
				if v.kind != '"' {
					return nil, b.fail(q.sub("required"), "required has %s, not a name", v.show())
				}
				if required[v.text] == "" {
					required[v.text] = q.sub("required")
				}
			}
		}
		lo, err := b.integer(q, "minProperties", 0)
		if err != nil {
			return nil, err
		}
		hi, err := b.integer(q, "maxProperties", math.MaxInt)
		if err != nil {
			return nil, err
		}
		o.least, o.most = max(o.least, lo), min(o.most, hi)
		if a := q.s.get("additionalProperties"); a != nil {
			if !isSchema(a) {
				return nil, b.fail(q.sub("additionalProperties"), "additionalProperties is %s, not a schema", a.show())
			}
			asked = true
			if a.kind == 't' && !a.is {
				closed = true
			} else {
				o.rest = append(o.rest, piece{a, q.sub("additionalProperties"), nil})
			}
		}
		if u := q.s.get("unevaluatedProperties"); u != nil && !(u.kind == 't' && u.is) {
			if u.kind != 't' || q.from != nil || roots(p) != 1 {
				return nil, b.fail(q.sub("unevaluatedProperties"), "unevaluatedProperties is supported as a boolean of the outermost schema only")
			}
			only = true // nothing but what is named here, unless others are asked for
		}
	}
	// Names that are required and declared nowhere come last, in the order in which they are asked for.
	for _, q := range p.pieces {
		if r := q.s.get("required"); r != nil && r.kind == '[' {
			for _, v := range r.items {
				name(v.text)
			}
		}
	}
	only = only && !asked
	closed = closed || only
	o.open = asked && !closed || !declared && !closed
	for _, k := range names {
		m := member{name: k, required: required[k] != ""}
		forbidden := false
		for _, q := range p.pieces {
			if props := q.s.get("properties"); props != nil && props.get(k) != nil {
				m.pieces = append(m.pieces, piece{props.get(k), q.sub("properties") + "/" + pointerEscape(k), nil})
			} else if a := q.s.get("additionalProperties"); a != nil {
				if a.kind == 't' && !a.is {
					forbidden = true
				} else {
					m.pieces = append(m.pieces, piece{a, q.sub("additionalProperties"), nil})
				}
			}
		}
		switch {
		case !forbidden && !(only && len(m.pieces) == 0):
			o.members = append(o.members, m)
		case m.required:
			o.missing = k
			o.path = required[k]
		}
	}
	return o, nil
}

// roots is the number of pieces that no other piece asked for.
func roots(p part) int {
	n := 0
	for _, q := range p.pieces {
		if q.from == nil {
			n++
		}
	}
	return n
}

// object makes objects: the members in their order, those that are not required may be left out, then others if the
// object is open.
func (b *builder) object(p part, depth int) (*node, error) {
	o, err := b.objectsOf(p)
	if err != nil {
		return nil, err
	}
	if o.missing != "" {
		return b.never(o.path, "property %.40q is required, and additionalProperties forbids it", o.missing), nil
	}
	var props []*node
	var needed []bool
	count := 0
	style := b.call
	if style == nil {
		style = &callStyle{open: seq(text("{"), b.space), comma: seq(text(","), b.space), equals: b.colon, close: seq(b.space, text("}")), none: text("}")}
	}
	for _, m := range o.members {
		n, err := b.valueOf(m.pieces, m.name, depth)
		if err != nil {
			return nil, err
		}
		key, ok := b.memberKey(m.name)
		if !ok {
			return nil, b.fail(o.path, "property %.40q has a name that cannot be written in this model's tool calls", m.name)
		}
		if n.kind == kNever && m.required {
			return never, nil
		}
		if m.required {
			count++
		}
		if n.kind != kNever {
			props, needed = append(props, seq(key, style.equals, n)), append(needed, m.required)
		}
	}
	var other *node
	if o.open {
		n, err := b.valueOf(o.rest, "", depth)
		if err != nil {
			return nil, err
		}
		names := make([]string, len(o.members))
		for i, m := range o.members {
			names[i] = m.name
		}
		other = seq(b.freeKey(names), style.equals, n)
		if n.kind == kNever {
			other = nil
		}
	}
	// Other keys may come twice, so of them one at most can be counted on.
	least, most := 0, -1
	switch {
	case o.least <= count:
	case o.least == 1:
		least = 1
	default:
		return nil, b.fail(o.path, "minProperties %d is above the %d required properties, which is not supported", o.least, count)
	}
	if o.most != math.MaxInt {
		if len(props) > o.most {
			if count > o.most {
				return b.never(o.path, "maxProperties %d is below the %d required properties", o.most, count), nil
			}
			return nil, b.fail(o.path, "maxProperties %d is below the %d properties, which is not supported", o.most, len(props))
		}
		most = o.most - len(props)
	}
	return members(style, props, needed, other, least, most), nil
}

// callStyle is how the parameters of a call are put together, or the members of an object.
type callStyle struct {
	open, comma, equals, close *node // nil: nothing
	none                       *node // closes an object without members
	param                      *node // before a key
	letters                    map[string]string
	told                       bool // the text tells strings from other values
}

// valueOf makes the value of a member.
func (b *builder) valueOf(in []piece, name string, depth int) (*node, error) {
	of := b
	if b.call != nil { // within a call's parameter there are no calls
		c := *b
		c.call = nil
		c.wary = b.style == styleRaw && !b.call.told && b.call.letters[name] != `"`
		of = &c
		defer b.take(of)
	}
	if len(in) > 0 {
		return of.schema(in, depth+1)
	}
	if of.style == styleRaw {
		return of.schema([]piece{{&value{kind: 't', is: true}, "#", nil}}, depth+1)
	}
	return of.anyValue(), nil
}

// memberKey is a key as the call or object has it; false if it cannot be spelled there.
func (b *builder) memberKey(name string) (*node, bool) {
	if b.call == nil {
		return b.key(name)
	}
	return seq(b.call.param, text(name)), plainName(name)
}

// members puts an object together.
func members(s *callStyle, props []*node, needed []bool, other *node, least, most int) *node {
	or := func(n *node) *node {
		if n == nil {
			return empty
		}
		return n
	}
	comma, close := or(s.comma), or(s.close)
	end := close // behind the last member
	if other != nil && most != 0 {
		end = seq(repeat(seq(comma, other), 0, most), close)
	}
	// tail[i] is what follows a member if properties i and on may still come.
	tail := make([]*node, len(props)+1)
	tail[len(props)] = end
	for i := len(props) - 1; i >= 0; i-- {
		with := chain(comma, chain(props[i], tail[i+1]))
		if tail[i] = with; !needed[i] {
			tail[i] = alt(with, tail[i+1])
		}
	}
	// The first member is any up to the first that is required.
	var first []*node
	i := 0
	for ; i < len(props); i++ {
		first = append(first, chain(props[i], tail[i+1]))
		if needed[i] {
			break
		}
	}
	if i == len(props) {
		if other != nil && most != 0 {
			rest := -1
			if most > 0 {
				rest = most - 1
			}
			first = append(first, seq(other, repeat(seq(comma, other), 0, rest), close))
		}
		if least == 0 {
			first = append(first, or(s.none))
		}
	}
	return seq(or(s.open), alt(first...))
}

// chain is a sequence of two that keeps them apart: the second is shared among others that end with it.
func chain(a, b *node) *node {
	switch {
	case a.kind == kNever || b.kind == kNever:
		return never
	case a.kind == kEmpty:
		return b
	}
	return &node{kind: kSeq, kids: []*node{a, b}}
}

// freeKey is any key but names, without escapes, and not empty.
func (b *builder) freeKey(names []string) *node {
	letters := plainJSON
	if b.avoid {
		letters = letters.minus(setOf("<"))
	}
	switch {
	case b.call != nil:
		return seq(b.call.param, b.except(names, wordSet, 0, maxFreeKey))
	case b.style == styleGemma:
		return b.except(names, wordSet, 0, maxFreeKey)
	}
	n := b.except(names, letters, 0, -1)
	return seq(text(`"`), n, text(`"`))
}

// maxFreeKey is the length of keys that stand bare, beyond what they have in common with a known one.
const maxFreeKey = 40

// except is a text of letters that is none of names, which have the same first at characters; it has up to most letters
// more than what it shares with a name.
func (b *builder) except(names []string, letters runeSet, at, most int) *node {
	next := map[rune][]string{}
	var order []rune
	whole := at == 0
	for _, s := range names {
		r := []rune(s)
		if len(r) == at {
			whole = true
			continue
		}
		if len(r) < at || !letters.has(r[at]) {
			continue
		}
		if next[r[at]] == nil {
			order = append(order, r[at])
		}
		next[r[at]] = append(next[r[at]], s)
	}
	slices.Sort(order)
	rest := letters
	var all []*node
	for _, c := range order {
		rest = rest.minus(oneRune(c))
		all = append(all, seq(text(string(c)), b.except(next[c], letters, at+1, most)))
	}
	all = append(all, seq(chars(rest), repeat(chars(letters), 0, most)))
	if !whole {
		all = append(all, empty)
	}
	return alt(all...)
}

// arrays is what pieces ask of arrays.
type arrays struct {
	first       [][]piece // what the items at the beginning must obey
	rest        []piece   // what all others must
	least, most int
	unique      string // who asks for items that differ
	path        string
}

func (b *builder) arraysOf(p part) (*arrays, error) {
	a := &arrays{most: math.MaxInt, path: "#"}
	if len(p.pieces) > 0 {
		a.path = p.pieces[0].path
	}
	type rule struct {
		first []piece
		rest  *piece
	}
	var rules []rule
	for _, q := range p.pieces {
		lo, err := b.integer(q, "minItems", 0)
		if err != nil {
			return nil, err
		}
		hi, err := b.integer(q, "maxItems", math.MaxInt)
		if err != nil {
			return nil, err
		}
		a.least, a.most = max(a.least, lo), min(a.most, hi)
		if u := q.s.get("uniqueItems"); u != nil && u.is {
			a.unique = q.sub("uniqueItems")
		}
		var r rule
		list, key := q.s.get("prefixItems"), "prefixItems"
		rest, restKey := q.s.get("items"), "items"
		if list == nil && rest != nil && rest.kind == '[' { // drafts before 2020
			list, key = rest, "items"
			rest, restKey = q.s.get("additionalItems"), "additionalItems"
		}
		if list != nil {
			if list.kind != '[' {
				return nil, b.fail(q.sub(key), "%s is %s, not an array of schemas", key, list.show())
			}
			for i, s := range list.items {
				r.first = append(r.first, piece{s, q.sub(key) + "/" + strconv.Itoa(i), nil})
			}
		}
		if u := q.s.get("unevaluatedItems"); u != nil && !(u.kind == 't' && u.is) {
			if u.kind != 't' || q.from != nil || roots(p) != 1 {
				return nil, b.fail(q.sub("unevaluatedItems"), "unevaluatedItems is supported as a boolean of the outermost schema only")
			}
			if rest == nil {
				rest, restKey = u, "unevaluatedItems"
			}
		}
		if rest != nil {
			if !isSchema(rest) {
				return nil, b.fail(q.sub(restKey), "%s is %s, not a schema", restKey, rest.show())
			}
			r.rest = &piece{rest, q.sub(restKey), nil}
		}
		rules = append(rules, r)
	}
	longest := 0
	for _, r := range rules {
		longest = max(longest, len(r.first))
	}
	for i := range longest + 1 {
		var here []piece
		for _, r := range rules {
			if i < len(r.first) {
				here = append(here, r.first[i])
			} else if r.rest != nil {
				here = append(here, *r.rest)
			}
		}
		if i < longest {
			a.first = append(a.first, here)
		} else {
			a.rest = here
		}
	}
	return a, nil
}

func (b *builder) array(p part, depth int) (*node, error) {
	a, err := b.arraysOf(p)
	if err != nil {
		return nil, err
	}
	item := func(in []piece) (*node, error) {
		if len(in) == 0 {
			return b.anyValue(), nil
		}
		return b.schema(in, depth+1)
	}
	var first []*node
	for _, in := range a.first {
		if len(first) >= a.most {
			break
		}
		n, err := item(in)
		if err != nil {
			return nil, err
		}
		if n.kind == kNever { // the array ends before it
			a.most = min(a.most, len(first))
			break
		}
		first = append(first, n)
	}
	rest := never
	if a.most > len(first) {
		if rest, err = item(a.rest); err != nil {
			return nil, err
		}
		if rest.kind == kNever {
			a.most = len(first)
		}
	}
	if a.least > a.most {
		return b.never(a.path, "minItems %d is above the %d items that can be", a.least, a.most), nil
	}
	if a.unique != "" && a.most > 1 {
		return b.uniqueArray(a, first, depth)
	}
	comma := seq(text(","), b.space)
	least, most := max(0, a.least-len(first)), -1
	if a.most != math.MaxInt {
		most = a.most - len(first)
	}
	close := seq(b.space, text("]"))
	if len(first) == 0 {
		if most == 0 {
			return seq(text("["), b.space, text("]")), nil
		}
		more := -1
		if most > 0 {
			more = most - 1
		}
		some := seq(rest, repeat(seq(comma, rest), max(0, least-1), more), close)
		if least == 0 {
			some = alt(text("]"), some)
		}
		return seq(text("["), b.space, some), nil
	}
	tail := close
	if most != 0 {
		tail = seq(repeat(seq(comma, rest), least, most), close)
	}
	for i := len(first) - 1; i >= 0; i-- {
		with := chain(first[i], tail)
		if i > 0 {
			with = chain(comma, with)
		}
		if tail = with; a.least <= i {
			end := close
			if i == 0 {
				end = text("]")
			}
			tail = alt(with, end)
		}
	}
	return seq(text("["), b.space, tail), nil
}

// maxUnique is the number of values of which arrays without repetition are made.
const maxUnique = 64

// uniqueArray makes arrays of listed values, each at most once and in the order of the list.
func (b *builder) uniqueArray(a *arrays, first []*node, depth int) (*node, error) {
	refuse := b.fail(a.unique, "uniqueItems is supported only for arrays of one item or of at most %d listed values", maxUnique)
	if len(a.first) > 0 || len(a.rest) == 0 {
		return nil, refuse
	}
	p, ok, err := b.flatten(a.rest)
	if err != nil || !ok {
		return never, err
	}
	vals, ok := b.listed(p)
	if !ok || len(vals) > maxUnique {
		return nil, refuse
	}
	var items []*node
	for _, v := range vals {
		if ok, err := b.validAll(v, p); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		if n, ok := b.textOf(v); ok && n.kind != kNever {
			items = append(items, n)
		}
	}
	if len(items) < a.least {
		return b.never(a.path, "minItems %d is above the %d different items", a.least, len(items)), nil
	}
	comma := seq(text(","), b.space)
	close := seq(b.space, text("]"))
	// from[i][n]: items i and on may come, n of them were taken.
	most := min(a.most, len(items))
	memo := map[[2]int]*node{}
	var from func(i, n int) *node
	from = func(i, n int) *node {
		if m := memo[[2]int{i, n}]; m != nil {
			return m
		}
		var all []*node
		if n < most && i < len(items) {
			with := chain(items[i], from(i+1, n+1))
			if n > 0 {
				with = chain(comma, with)
			}
			all = append(all, with, from(i+1, n))
		} else if n >= a.least {
			all = append(all, map[bool]*node{true: text("]"), false: close}[n == 0])
		}
		m := &node{kind: kAlt, kids: slices.DeleteFunc(all, func(k *node) bool { return k.kind == kNever })}
		if len(m.kids) == 0 {
			m = never
		}
		memo[[2]int{i, n}] = m
		return m
	}
	return seq(text("["), b.space, from(0, 0)), nil
}
