package chat

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// filterTable holds the filters of Jinja2 that chat templates use, and from_json; args[0] is the filtered value.
var filterTable map[string]builtin

// testTable holds the tests of Jinja2; args[0] is the tested value.
var testTable map[string]func(r *run, a []Value) (bool, error)

// globalTable holds the functions that a template finds by name; the engine's own have no bounds.
var globalTable = map[string]builtin{
	"range":           globalRange,
	"raise_exception": globalRaise,
	"strftime_now": func(r *run, a []Value, _ kwargs) (Value, error) {
		if len(a) != 1 {
			return Value{}, errors.New("strftime_now takes one format")
		}
		f, err := text(a[0], "strftime_now")
		if err != nil {
			return Value{}, err
		}
		if err := r.grow(16 * len(f)); err != nil {
			return Value{}, err
		}
		return r.str(strftime(r.showAll(f), r.now))
	},
	"joiner": func(r *run, a []Value, kw kwargs) (Value, error) {
		sep := arg(a, kw, 0, "sep")
		if sep.IsUndefined() {
			sep = jinja.NewString(", ")
		}
		used := false
		return r.callable("joiner", func(*run, []Value, kwargs) (Value, error) {
			if !used {
				used = true
				return jinja.NewString(""), nil
			}
			return sep, nil
		}), nil
	},
	"cycler": func(r *run, a []Value, _ kwargs) (Value, error) {
		if len(a) == 0 {
			return Value{}, errors.New("cycler wants values")
		}
		at := 0
		out := jinja.NewDict()
		d := out.AsDict()
		r.namespaces[d] = true
		d.Set("current", a[0])
		d.Set("next", r.callable("next", func(*run, []Value, kwargs) (Value, error) {
			v := a[at]
			at = (at + 1) % len(a)
			d.Set("current", a[at])
			return v, nil
		}))
		d.Set("reset", r.callable("reset", func(*run, []Value, kwargs) (Value, error) {
			at = 0
			d.Set("current", a[0])
			return jinja.None(), nil
		}))
		return out, nil
	},
}

// raised is the error of raise_exception: the template's own words.
type raised struct{ msg string }

func (e raised) Error() string { return "the template refuses: " + e.msg }

func globalRaise(r *run, a []Value, kw kwargs) (Value, error) {
	msg, err := r.print(arg(a, kw, 0, "message"))
	if err != nil {
		return Value{}, err
	}
	return Value{}, raised{r.showAll(msg)}
}

func globalRange(r *run, a []Value, _ kwargs) (Value, error) {
	lo, hi, step := int64(0), int64(0), int64(1)
	for _, v := range a {
		if !v.IsInt() && !v.IsBool() {
			return Value{}, fmt.Errorf("range wants integers, got %s", kindOf(v))
		}
	}
	switch len(a) {
	case 1:
		hi = toInt(a[0])
	case 2:
		lo, hi = toInt(a[0]), toInt(a[1])
	case 3:
		lo, hi, step = toInt(a[0]), toInt(a[1]), toInt(a[2])
	default:
		return Value{}, fmt.Errorf("range has %d arguments, not 1 to 3", len(a))
	}
	if step == 0 {
		return Value{}, errors.New("range with step 0")
	}
	const most = 100_000 // what Jinja2's sandbox allows
	var items []Value
	for i := lo; step > 0 && i < hi || step < 0 && i > hi; i += step {
		if len(items) == most {
			return Value{}, fmt.Errorf("range has more than %d numbers", most)
		}
		items = append(items, jinja.NewInt(i))
		if step > 0 && i > math.MaxInt64-step || step < 0 && i < math.MinInt64-step {
			break
		}
	}
	return r.list(items)
}

// join puts sep between the printed items of v.
func (r *run) join(v Value, sep, attr string) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return Value{}, err
	}
	var b strings.Builder
	for i, e := range items {
		if attr != "" {
			if e, err = r.path(e, attr); err != nil {
				return Value{}, err
			}
		}
		s, err := r.print(e)
		if err == nil {
			err = r.grow(len(s) + len(sep))
		}
		if err != nil {
			return Value{}, err
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(s)
	}
	return jinja.NewString(b.String()), nil
}

// path follows a dotted attribute, as map and selectattr do: items before methods.
func (r *run) path(v Value, attr string) (Value, error) {
	for _, name := range strings.Split(r.showAll(attr), ".") {
		key := jinja.NewString(name)
		if n, err := strconv.ParseInt(name, 10, 64); err == nil && v.IsList() {
			key = jinja.NewInt(n)
		}
		var err error
		if v, err = r.item(v, key); err != nil {
			return Value{}, err
		}
	}
	return v, nil
}

func (r *run) sortedKeys(d *jinja.Dict) []string {
	keys := slices.Clone(d.Keys)
	slices.SortStableFunc(keys, func(a, b string) int { return strings.Compare(r.showAll(a), r.showAll(b)) })
	return keys
}

// fold is the key that a filter compares strings by when case does not count.
func (r *run) fold(v Value, exact bool) Value {
	if v.IsString() && !exact {
		return jinja.NewString(strings.ToLower(r.showAll(v.AsString())))
	}
	return v
}

// order sorts items by the value key gives.
func (r *run) order(items []Value, key func(Value) (Value, error), reverse bool) ([]Value, error) {
	type pair struct{ key, item Value }
	all := make([]pair, len(items))
	for i, v := range items {
		k, err := key(v)
		if err != nil {
			return nil, err
		}
		all[i] = pair{k, v}
	}
	if err := r.step(len(items) * 4); err != nil {
		return nil, err
	}
	var failed error
	slices.SortStableFunc(all, func(a, b pair) int {
		if failed != nil {
			return 0
		}
		c, err := r.compare(a.key, b.key)
		if err == nil {
			err = r.step(1)
		}
		failed = err
		if reverse {
			return -c
		}
		return c
	})
	out := make([]Value, len(items))
	for i := range all {
		out[i] = all[i].item
	}
	return out, failed
}

// choose serves select, reject and their attr forms.
func choose(byAttr, want bool) builtin {
	return func(r *run, a []Value, kw kwargs) (Value, error) {
		items, err := r.items(a[0])
		if err != nil {
			return Value{}, err
		}
		rest := a[1:]
		attr := ""
		if byAttr {
			if len(rest) == 0 {
				return Value{}, errors.New("selectattr without an attribute")
			}
			if attr, err = text(rest[0], "selectattr"); err != nil {
				return Value{}, err
			}
			rest = rest[1:]
		}
		test := func(_ *run, a []Value) (bool, error) { return a[0].IsTruthy(), nil }
		if len(rest) > 0 {
			name, err := text(rest[0], "select")
			if err != nil {
				return Value{}, err
			}
			ok := false
			if test, ok = testTable[r.showAll(name)]; !ok {
				return Value{}, fmt.Errorf("unknown test %s", clip(name))
			}
			rest = rest[1:]
		}
		var out []Value
		for _, v := range items {
			if err := r.step(1); err != nil {
				return Value{}, err
			}
			x := v
			if byAttr {
				if x, err = r.path(v, attr); err != nil {
					return Value{}, err
				}
			}
			ok, err := test(r, append([]Value{x}, rest...))
			if err != nil {
				return Value{}, err
			}
			if ok == want {
				out = append(out, v)
			}
		}
		return r.list(out)
	}
}

// extreme serves min and max.
func extreme(sign int) builtin {
	return func(r *run, a []Value, kw kwargs) (Value, error) {
		items, err := r.items(a[0])
		if err != nil || len(items) == 0 {
			return jinja.Undefined(), err
		}
		best := items[0]
		for _, v := range items[1:] {
			c, err := r.compare(r.fold(v, false), r.fold(best, false))
			if err != nil {
				return Value{}, err
			}
			if c*sign > 0 {
				best = v
			}
		}
		return best, nil
	}
}

// method makes a filter of a string method; the value is printed first, as Jinja2 does.
func method(name string) builtin {
	return func(r *run, a []Value, kw kwargs) (Value, error) {
		s, err := r.print(a[0])
		if err != nil {
			return Value{}, err
		}
		return stringMethods[name](r, append([]Value{jinja.NewString(s)}, a[1:]...), kw)
	}
}

func edge(last bool) builtin {
	return func(r *run, a []Value, _ kwargs) (Value, error) {
		items, err := r.items(a[0])
		if err != nil || len(items) == 0 {
			return jinja.Undefined(), err
		}
		if last {
			return items[len(items)-1], nil
		}
		return items[0], nil
	}
}

func filterDefault(_ *run, a []Value, kw kwargs) (Value, error) {
	def := arg(a, kw, 1, "default_value")
	if def.IsUndefined() {
		def = jinja.NewString("")
	}
	if a[0].IsUndefined() || arg(a, kw, 2, "boolean").IsTruthy() && !a[0].IsTruthy() {
		return def, nil
	}
	return a[0], nil
}

func filterLength(_ *run, a []Value, _ kwargs) (Value, error) {
	switch v := a[0]; {
	case v.IsList():
		return jinja.NewInt(int64(v.AsList().Len())), nil
	case v.IsDict():
		return jinja.NewInt(int64(v.AsDict().Len())), nil
	case v.IsString():
		return jinja.NewInt(int64(utf8.RuneCountInString(v.AsString()))), nil
	case v.IsUndefined():
		return jinja.NewInt(0), nil
	}
	return Value{}, fmt.Errorf("%s has no length", kindOf(a[0]))
}

func filterItems(r *run, a []Value, _ kwargs) (Value, error) {
	if a[0].IsUndefined() {
		return jinja.NewList(nil), nil
	}
	if !a[0].IsDict() {
		return Value{}, fmt.Errorf("items of %s, not of a dict", kindOf(a[0]))
	}
	return r.pairs(a[0].AsDict(), a[0].AsDict().Keys)
}

func filterReverse(r *run, a []Value, _ kwargs) (Value, error) {
	if a[0].IsString() {
		runes := []rune(a[0].AsString())
		slices.Reverse(runes)
		return r.str(string(runes))
	}
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	out := slices.Clone(items)
	slices.Reverse(out)
	return r.list(out)
}

func filterSort(r *run, a []Value, kw kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	attr := arg(a, kw, 3, "attribute")
	exact := arg(a, kw, 2, "case_sensitive").IsTruthy()
	out, err := r.order(items, func(v Value) (Value, error) {
		if attr.IsString() {
			var err error
			if v, err = r.path(v, attr.AsString()); err != nil {
				return Value{}, err
			}
		}
		return r.fold(v, exact), nil
	}, arg(a, kw, 1, "reverse").IsTruthy())
	if err != nil {
		return Value{}, err
	}
	return r.list(out)
}

func filterDictsort(r *run, a []Value, kw kwargs) (Value, error) {
	if !a[0].IsDict() {
		return Value{}, fmt.Errorf("dictsort of %s, not of a dict", kindOf(a[0]))
	}
	by := 0
	if v := arg(a, kw, 2, "by"); v.IsString() && r.showAll(v.AsString()) == "value" {
		by = 1
	}
	pairs, err := r.pairs(a[0].AsDict(), a[0].AsDict().Keys)
	if err != nil {
		return Value{}, err
	}
	exact := arg(a, kw, 1, "case_sensitive").IsTruthy()
	out, err := r.order(pairs.AsList().Items, func(v Value) (Value, error) { return r.fold(v.AsList().Get(by), exact), nil },
		arg(a, kw, 3, "reverse").IsTruthy())
	if err != nil {
		return Value{}, err
	}
	return r.list(out)
}

func filterUnique(r *run, a []Value, kw kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	exact := arg(a, kw, 1, "case_sensitive").IsTruthy()
	var out, seen []Value
next:
	for _, v := range items {
		k := r.fold(v, exact)
		for _, s := range seen {
			if same, err := r.equal(k, s, 0); err != nil {
				return Value{}, err
			} else if same {
				continue next
			}
		}
		seen = append(seen, k)
		out = append(out, v)
	}
	return r.list(out)
}

func filterInt(r *run, a []Value, kw kwargs) (Value, error) {
	def := arg(a, kw, 1, "default")
	if def.IsUndefined() {
		def = jinja.NewInt(0)
	}
	switch v := a[0]; {
	case v.IsInt() || v.IsBool():
		return jinja.NewInt(toInt(v)), nil
	case v.IsFloat():
		if f := math.Trunc(v.AsFloat()); math.Abs(f) < 1<<63 {
			return jinja.NewInt(int64(f)), nil
		}
	case v.IsString():
		s := strings.TrimFunc(r.showAll(v.AsString()), isSpace)
		base := int64(10)
		if b := arg(a, kw, 2, "base"); b.IsInt() {
			base = b.AsInt()
		}
		if base != 0 && (base < 2 || base > 36) {
			return def, nil
		}
		minus := strings.HasPrefix(s, "-")
		num := strings.ToLower(strings.TrimPrefix(s, "-"))
		if p := map[int64]string{2: "0b", 8: "0o", 16: "0x"}[base]; p != "" {
			num = strings.TrimPrefix(num, p)
		}
		if minus {
			num = "-" + num
		}
		if i, err := strconv.ParseInt(num, int(base), 64); err == nil {
			return jinja.NewInt(i), nil
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<63 {
			return jinja.NewInt(int64(f)), nil
		}
	default:
		if _, ok := bigInt(v); ok {
			return v, nil
		}
	}
	return def, nil
}

func filterFloat(r *run, a []Value, kw kwargs) (Value, error) {
	if _, f, _, ok := toNumber(a[0]); ok {
		return jinja.NewFloat(f), nil
	}
	if a[0].IsString() {
		if f, err := strconv.ParseFloat(strings.TrimFunc(r.showAll(a[0].AsString()), isSpace), 64); err == nil {
			return jinja.NewFloat(f), nil
		}
	}
	if def := arg(a, kw, 1, "default"); !def.IsUndefined() {
		return def, nil
	}
	return jinja.NewFloat(0), nil
}

func filterRound(_ *run, a []Value, kw kwargs) (Value, error) {
	_, f, _, ok := toNumber(a[0])
	if !ok {
		return Value{}, fmt.Errorf("round of %s", kindOf(a[0]))
	}
	if m := arg(a, kw, 2, "method"); m.IsString() && m.AsString() != "common" {
		return Value{}, fmt.Errorf("round: method %s is not supported", clip(m.AsString()))
	}
	p := min(max(toInt(arg(a, kw, 1, "precision")), -300), 300)
	if p < 0 {
		scale := math.Pow10(int(-p))
		return jinja.NewFloat(math.RoundToEven(f/scale) * scale), nil
	}
	f, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(p), 64), 64)
	return jinja.NewFloat(f), err
}

func filterAbs(_ *run, a []Value, _ kwargs) (Value, error) {
	i, f, whole, ok := toNumber(a[0])
	switch {
	case !ok:
		return Value{}, fmt.Errorf("abs of %s", kindOf(a[0]))
	case whole && i < 0:
		return calculate("-", jinja.NewInt(0), jinja.NewInt(i))
	case whole:
		return jinja.NewInt(i), nil
	}
	return jinja.NewFloat(math.Abs(f)), nil
}

func filterMap(r *run, a []Value, kw kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	out := make([]Value, len(items))
	if attr, ok := kw["attribute"]; ok {
		name, err := r.print(attr)
		if err != nil {
			return Value{}, err
		}
		for i, v := range items {
			if out[i], err = r.path(v, name); err != nil {
				return Value{}, err
			}
			if def, ok := kw["default"]; ok && out[i].IsUndefined() {
				out[i] = def
			}
		}
		return r.list(out)
	}
	if len(a) < 2 || !a[1].IsString() {
		return Value{}, errors.New("map without a filter or an attribute")
	}
	name := r.showAll(a[1].AsString())
	fn, ok := filterTable[name]
	if !ok {
		return Value{}, fmt.Errorf("unknown filter %s", clip(name))
	}
	call := r.callable(name, fn).AsCallable().Fn
	for i, v := range items {
		if out[i], err = call(append([]Value{v}, a[2:]...), kw); err != nil {
			return Value{}, err
		}
	}
	return r.list(out)
}
