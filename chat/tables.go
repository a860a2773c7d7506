package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ardanlabs/jinja"
)

func init() {
	self := func(_ *run, a []Value, _ kwargs) (Value, error) { return a[0], nil }
	printed := func(r *run, a []Value, _ kwargs) (Value, error) {
		s, err := r.print(a[0])
		if err != nil {
			return Value{}, err
		}
		return r.str(s)
	}
	filterTable = map[string]builtin{
		"tojson": filterTojson, "from_json": filterFromJSON, "fromjson": filterFromJSON,
		"items": filterItems, "default": filterDefault, "d": filterDefault,
		"length": filterLength, "count": filterLength, "first": edge(false), "last": edge(true),
		"reverse": filterReverse, "sort": filterSort, "dictsort": filterDictsort, "unique": filterUnique,
		"int": filterInt, "float": filterFloat, "round": filterRound, "abs": filterAbs,
		"map": filterMap, "select": choose(false, true), "reject": choose(false, false),
		"selectattr": choose(true, true), "rejectattr": choose(true, false),
		"max": extreme(1), "min": extreme(-1), "sum": filterSum, "batch": filterBatch,
		"trim": method("strip"), "upper": method("upper"), "lower": method("lower"), "title": method("title"),
		"capitalize": method("capitalize"), "string": printed, "safe": self,
		"indent": filterIndent, "format": filterFormat, "escape": filterEscape, "e": filterEscape, "wordcount": filterWordcount,
		"list": func(r *run, a []Value, _ kwargs) (Value, error) {
			items, err := r.items(a[0])
			if err != nil {
				return Value{}, err
			}
			return r.list(slices.Clone(items))
		},
		"join": func(r *run, a []Value, kw kwargs) (Value, error) {
			sep, err := r.print(arg(a, kw, 1, "d"))
			if err != nil {
				return Value{}, err
			}
			attr, err := r.print(arg(a, kw, 2, "attribute"))
			if err != nil {
				return Value{}, err
			}
			return r.join(a[0], sep, attr)
		},
		"replace": func(r *run, a []Value, kw kwargs) (Value, error) {
			s, err := r.print(a[0])
			old, err2 := r.print(arg(a, kw, 1, "old"))
			with, err3 := r.print(arg(a, kw, 2, "new"))
			if err = errors.Join(err, err2, err3); err != nil {
				return Value{}, err
			}
			n := -1
			if c := arg(a, kw, 3, "count"); !c.IsUndefined() && !c.IsNone() {
				n = int(toInt(c))
			}
			return r.replace(s, old, with, n)
		},
		"attr": func(r *run, a []Value, kw kwargs) (Value, error) {
			name, err := text(arg(a, kw, 1, "name"), "attr")
			if err != nil {
				return Value{}, err
			}
			return r.attr(a[0], r.showAll(name))
		},
	}
	is := func(f func(v Value) bool) func(*run, []Value) (bool, error) {
		return func(_ *run, a []Value) (bool, error) { return f(a[0]), nil }
	}
	// two wraps a test that compares with one argument.
	two := func(f func(r *run, x, y Value) (bool, error)) func(*run, []Value) (bool, error) {
		return func(r *run, a []Value) (bool, error) {
			if len(a) != 2 {
				return false, errors.New("a comparing test wants one argument")
			}
			return f(r, a[0], a[1])
		}
	}
	eq := two(func(r *run, x, y Value) (bool, error) { return r.equal(x, y, 0) })
	ne := two(func(r *run, x, y Value) (bool, error) { b, err := r.equal(x, y, 0); return !b, err })
	order := func(ok func(int) bool) func(*run, []Value) (bool, error) {
		return two(func(r *run, x, y Value) (bool, error) { c, err := r.compare(x, y); return ok(c), err })
	}
	lt := order(func(c int) bool { return c < 0 })
	le := order(func(c int) bool { return c <= 0 })
	gt := order(func(c int) bool { return c > 0 })
	ge := order(func(c int) bool { return c >= 0 })
	big := func(v Value) bool { _, ok := bigInt(v); return ok }
	iterable := func(v Value) bool { return v.IsList() || v.IsDict() || v.IsString() || v.IsUndefined() }
	cased := func(f func(string) string) func(*run, []Value) (bool, error) {
		return func(r *run, a []Value) (bool, error) {
			if !a[0].IsString() {
				return false, nil
			}
			s := r.showAll(a[0].AsString())
			return f(s) == s && strings.IndexFunc(s, unicode.IsLetter) >= 0, nil
		}
	}
	testTable = map[string]func(*run, []Value) (bool, error){
		"defined":   is(func(v Value) bool { return !v.IsUndefined() }),
		"undefined": is(Value.IsUndefined),
		"none":      is(Value.IsNone),
		"boolean":   is(Value.IsBool),
		"true":      is(func(v Value) bool { return v.IsBool() && v.AsBool() }),
		"false":     is(func(v Value) bool { return v.IsBool() && !v.AsBool() }),
		"integer":   is(func(v Value) bool { return v.IsInt() || big(v) }),
		"float":     is(Value.IsFloat),
		"number":    is(func(v Value) bool { return v.IsNumber() || v.IsBool() || big(v) }),
		"string":    is(Value.IsString),
		"mapping":   is(Value.IsDict),
		"iterable":  is(iterable),
		"sequence":  is(iterable),
		"callable":  is(func(v Value) bool { return v.IsCallable() && !big(v) }),
		"odd":       is(func(v Value) bool { return v.IsInt() && v.AsInt()%2 != 0 }),
		"even":      is(func(v Value) bool { return v.IsInt() && v.AsInt()%2 == 0 }),
		"upper":     cased(strings.ToUpper), "lower": cased(strings.ToLower),
		"eq": eq, "equalto": eq, "==": eq, "ne": ne, "!=": ne,
		"lt": lt, "lessthan": lt, "<": lt, "le": le, "<=": le, "gt": gt, "greaterthan": gt, ">": gt, "ge": ge, ">=": ge,
		"sameas": two(func(r *run, x, y Value) (bool, error) {
			if x.IsBool() != y.IsBool() {
				return false, nil
			}
			return r.equal(x, y, 0)
		}),
		"in": two(func(r *run, x, y Value) (bool, error) { return r.contains(y, x) }),
		"divisibleby": two(func(_ *run, x, y Value) (bool, error) {
			m, err := calculate("%", x, y)
			return err == nil && !m.IsTruthy(), err
		}),
	}
}

func filterSum(r *run, a []Value, kw kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	sum := arg(a, kw, 2, "start")
	if sum.IsUndefined() {
		sum = jinja.NewInt(0)
	}
	attr := arg(a, kw, 1, "attribute")
	for _, v := range items {
		if attr.IsString() {
			if v, err = r.path(v, attr.AsString()); err != nil {
				return Value{}, err
			}
		}
		if sum, err = calculate("+", sum, v); err != nil {
			return Value{}, err
		}
	}
	return sum, nil
}

func filterBatch(r *run, a []Value, kw kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	n := toInt(arg(a, kw, 1, "linecount"))
	if n <= 0 {
		return Value{}, errors.New("batch wants a positive number")
	}
	fill := arg(a, kw, 2, "fill_with")
	if err := r.grow(64 * len(items)); err != nil {
		return Value{}, err
	}
	var out []Value
	for len(items) > 0 {
		k := int(min(n, int64(len(items))))
		row := slices.Clone(items[:k])
		items = items[k:]
		for int64(len(row)) < n && !fill.IsUndefined() {
			if err := r.grow(32); err != nil {
				return Value{}, err
			}
			row = append(row, fill)
		}
		out = append(out, jinja.NewList(row))
	}
	return r.list(out)
}

func filterIndent(r *run, a []Value, kw kwargs) (Value, error) {
	s, err := r.print(a[0])
	if err != nil {
		return Value{}, err
	}
	pad := "    "
	if w := arg(a, kw, 1, "width"); w.IsString() {
		pad = w.AsString()
	} else if w.IsInt() {
		if w.AsInt() > 1000 {
			return Value{}, fmt.Errorf("indent by %d, at most 1000", w.AsInt())
		}
		pad = strings.Repeat(" ", int(max(w.AsInt(), 0)))
	}
	first, blank := arg(a, kw, 2, "first").IsTruthy(), arg(a, kw, 3, "blank").IsTruthy()
	lines := r.split(s, "\n", -1)
	if err := r.grow(len(s) + len(lines)*(len(pad)+16)); err != nil {
		return Value{}, err
	}
	for i, l := range lines {
		if i == 0 && first || i > 0 && (blank || l != "") {
			lines[i] = pad + l
		}
	}
	return jinja.NewString(strings.Join(lines, "\n")), nil
}

func filterEscape(r *run, a []Value, _ kwargs) (Value, error) {
	s, err := r.print(a[0])
	if err != nil {
		return Value{}, err
	}
	var b strings.Builder
	for _, c := range s {
		e := map[rune]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '"': "&#34;", '\'': "&#39;"}[r.show(c)]
		switch {
		case e == "":
			b.WriteRune(c)
		case r.hidden(c):
			b.WriteString(r.hideAll(e))
		default:
			b.WriteString(e)
		}
	}
	return r.str(b.String())
}

func filterWordcount(r *run, a []Value, _ kwargs) (Value, error) {
	s, err := r.print(a[0])
	if err != nil {
		return Value{}, err
	}
	n, in := int64(0), false
	for _, c := range s {
		space := isSpace(r.show(c))
		if !space && !in {
			n++
		}
		in = !space
	}
	return jinja.NewInt(n), nil
}

// strftime formats t as C's function does in the C locale; an unknown code stays as it is.
func strftime(f string, t time.Time) string {
	codes := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM",
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'Z': "MST", 'z': "-0700", 'j': "002",
		'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(f); i++ {
		if f[i] != '%' || i+1 == len(f) {
			b.WriteByte(f[i])
			continue
		}
		i++
		bare := f[i] == '-' && i+1 < len(f) // no leading zero
		if bare {
			i++
		}
		layout, ok := codes[f[i]]
		switch {
		case f[i] == '%':
			b.WriteByte('%')
		case !ok && bare:
			b.WriteString("%-" + f[i:i+1])
		case !ok:
			b.WriteString("%" + f[i:i+1])
		case bare:
			s := strings.TrimLeft(t.Format(layout), "0 ")
			if s == "" {
				s = "0"
			}
			b.WriteString(s)
		default:
			b.WriteString(t.Format(layout))
		}
	}
	return b.String()
}
