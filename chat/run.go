package chat

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Value is a template value of the engine: its Dict keeps the order of insertion.
type Value = jinja.Value

// Limits of one render; those that depend on the input grow with it.
const (
	baseSteps  = 4 << 20 // calls of our functions, plus 1 for each 64 bytes they read; for each step 16 bytes may be made
	macroDepth = 48
	valueSize  = 24  // bytes of a place in a list
	valueDepth = 100 // lists and dicts within each other
)

// run is the state of one render.
type run struct {
	*disguise
	steps, bytes int64
	depth        int
	now          time.Time
	namespaces   map[*jinja.Dict]bool
	err          error // the first error of ours, before the engine wrapped it
}

type (
	kwargs  = map[string]Value
	builtin func(r *run, args []Value, kw kwargs) (Value, error)
)

var errSteps = errors.New("the template does too much work for its input")

func (r *run) step(n int) error {
	if r.steps -= int64(n); r.steps < 0 {
		return errSteps
	}
	return nil
}

// grow counts n new bytes.
func (r *run) grow(n int) error {
	if r.bytes -= int64(n); r.bytes < 0 {
		return errors.New("the template makes too much text for its input")
	}
	return nil
}

// str makes a counted string value.
func (r *run) str(s string) (Value, error) { return jinja.NewString(s), r.grow(len(s)) }

// list makes a counted list value.
func (r *run) list(items []Value) (Value, error) {
	if err := r.step(len(items) / 4); err != nil {
		return Value{}, err
	}
	return jinja.NewList(items), r.grow(valueSize * len(items))
}

// bind makes the functions named in used callable by the engine.
func (r *run) bind(used map[string]bool, vars map[string]Value) {
	for name := range used {
		vars[prefix+name] = r.callable(name, lookup(name))
	}
	for name, fn := range globalTable {
		if _, ok := vars[name]; !ok {
			vars[name] = r.callable(name, fn)
		}
	}
}

func (r *run) callable(name string, fn builtin) Value {
	return jinja.NewCallable(name, func(args []Value, kw kwargs) (Value, error) {
		n := 1
		for _, a := range args {
			if a.IsString() {
				n += len(a.AsString()) / 64
			}
		}
		err := r.step(n)
		v := jinja.Undefined()
		if err == nil {
			v, err = fn(r, args, kw)
		}
		if err != nil && r.err == nil {
			r.err = err
		}
		return v, err
	})
}

// lookup finds a function by the name the translator gave it; the translator has checked filters and tests.
func lookup(name string) builtin {
	if f, ok := strings.CutPrefix(name, "f_"); ok {
		return filterTable[f]
	}
	if f, ok := strings.CutPrefix(name, "t_"); ok {
		test := testTable[f]
		return func(r *run, args []Value, _ kwargs) (Value, error) {
			b, err := test(r, args)
			return jinja.NewBool(b), err
		}
	}
	fn, ok := opTable[name]
	if !ok {
		panic("chat: the translator used an unknown function " + name)
	}
	return fn
}

// opTable holds what the translator calls for operators and tags; the number of arguments is its doing.
var opTable map[string]builtin

func init() {
	compare := func(ok func(int) bool) builtin {
		return func(r *run, a []Value, _ kwargs) (Value, error) {
			c, err := r.compare(a[0], a[1])
			return jinja.NewBool(ok(c)), err
		}
	}
	opTable = map[string]builtin{
		"out": func(r *run, a []Value, _ kwargs) (Value, error) {
			s, err := r.print(a[0])
			if err != nil {
				return Value{}, err
			}
			return r.str(s)
		},
		"key": func(r *run, a []Value, _ kwargs) (Value, error) {
			s, err := r.print(a[0])
			return jinja.NewString(s), err
		},
		"num": func(r *run, a []Value, _ kwargs) (Value, error) {
			v, err := number(a[0].AsString())
			return v, err
		},
		"round": func(r *run, a []Value, _ kwargs) (Value, error) {
			return jinja.NewBool(true), r.grow(int(a[0].AsInt()))
		},
		"enter": func(r *run, a []Value, _ kwargs) (Value, error) {
			if r.depth++; r.depth > macroDepth {
				return Value{}, fmt.Errorf("macros call each other deeper than %d", macroDepth)
			}
			return jinja.NewBool(true), r.grow(int(a[0].AsInt()))
		},
		"leave":  func(r *run, a []Value, _ kwargs) (Value, error) { r.depth--; return jinja.NewBool(true), nil },
		"iter":   func(r *run, a []Value, _ kwargs) (Value, error) { return r.iterate(a[0]) },
		"unpack": opUnpack,
		"fresh":  func(*run, []Value, kwargs) (Value, error) { return jinja.NewList(nil), nil },
		"push": func(r *run, a []Value, _ kwargs) (Value, error) {
			l := a[0].AsList()
			l.Items = append(l.Items, a[1])
			return jinja.NewBool(true), r.grow(valueSize)
		},
		"setattr":   opSetattr,
		"callable":  opCallable,
		"attr":      func(r *run, a []Value, _ kwargs) (Value, error) { return r.attr(a[0], a[1].AsString()) },
		"item":      func(r *run, a []Value, _ kwargs) (Value, error) { return r.item(a[0], a[1]) },
		"slice":     opSlice,
		"method":    opMethod,
		"dict":      func(r *run, a []Value, _ kwargs) (Value, error) { return r.merge(a) },
		"namespace": opNamespace,
		"cat":       opCat,
		"add":       opAdd,
		"sub":       arithmetic("-"),
		"mul":       opMul,
		"div":       arithmetic("/"),
		"floordiv":  arithmetic("//"),
		"mod":       opMod,
		"pow":       arithmetic("**"),
		"neg": func(r *run, a []Value, _ kwargs) (Value, error) {
			return calculate("-", jinja.NewInt(0), a[0])
		},
		"eq": func(r *run, a []Value, _ kwargs) (Value, error) {
			b, err := r.equal(a[0], a[1], 0)
			return jinja.NewBool(b), err
		},
		"ne": func(r *run, a []Value, _ kwargs) (Value, error) {
			b, err := r.equal(a[0], a[1], 0)
			return jinja.NewBool(!b), err
		},
		"lt": compare(func(c int) bool { return c < 0 }),
		"le": compare(func(c int) bool { return c <= 0 }),
		"gt": compare(func(c int) bool { return c > 0 }),
		"ge": compare(func(c int) bool { return c >= 0 }),
		"in": func(r *run, a []Value, _ kwargs) (Value, error) {
			b, err := r.contains(a[1], a[0])
			return jinja.NewBool(b), err
		},
		"notin": func(r *run, a []Value, _ kwargs) (Value, error) {
			b, err := r.contains(a[1], a[0])
			return jinja.NewBool(!b), err
		},
	}
}

// iterate gives the items of a list, the keys of a dict or the characters of a string as a list.
func (r *run) iterate(v Value) (Value, error) {
	switch {
	case v.IsList():
		return v, r.step(v.AsList().Len() / 16)
	case v.IsDict():
		keys := v.AsDict().Keys
		items := make([]Value, len(keys))
		for i, k := range keys {
			items[i] = jinja.NewString(k)
		}
		return r.list(items)
	case v.IsString():
		n := len(v.AsString())
		if err := r.step(n / 2); err != nil {
			return Value{}, err
		}
		if err := r.grow(32 * n); err != nil {
			return Value{}, err
		}
		items := make([]Value, 0, n)
		for _, c := range v.AsString() {
			items = append(items, jinja.NewString(string(c)))
		}
		return jinja.NewList(items), nil
	case v.IsUndefined():
		return jinja.NewList(nil), nil
	}
	return Value{}, fmt.Errorf("%s cannot be iterated over", kindOf(v))
}

// items is iterate for our own use.
func (r *run) items(v Value) ([]Value, error) {
	l, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	items := l.AsList().Items
	return items, r.step(len(items) / 4)
}

func opUnpack(r *run, a []Value, _ kwargs) (Value, error) {
	items, err := r.items(a[0])
	if err != nil {
		return Value{}, err
	}
	if want := a[2].AsInt(); int64(len(items)) != want {
		return Value{}, fmt.Errorf("%d values for %d names", len(items), want)
	}
	return items[a[1].AsInt()], nil
}

func opSetattr(r *run, a []Value, _ kwargs) (Value, error) {
	if !a[0].IsDict() || !r.namespaces[a[0].AsDict()] {
		return Value{}, fmt.Errorf("cannot set attribute %s of %s, only of a namespace", clip(a[1].AsString()), kindOf(a[0]))
	}
	a[0].AsDict().Set(a[1].AsString(), a[2])
	return jinja.NewBool(true), r.grow(16)
}

func opCallable(_ *run, a []Value, _ kwargs) (Value, error) {
	if _, big := bigInt(a[0]); big || !a[0].IsCallable() {
		return Value{}, fmt.Errorf("%s is called like a function", kindOf(a[0]))
	}
	return a[0], nil
}

// attr reads obj.name: a method first, then an item, as Jinja2 does; of a namespace, what was stored.
func (r *run) attr(obj Value, name string) (Value, error) {
	if obj.IsUndefined() {
		return Value{}, fmt.Errorf("attribute %s of an undefined value", clip(name))
	}
	if m, ok := r.bound(obj, name); ok {
		return m, nil
	}
	if obj.IsDict() {
		v, _, err := r.get(obj.AsDict(), name)
		return v, err
	}
	return jinja.Undefined(), nil
}

// bound is a method of obj as a function.
func (r *run) bound(obj Value, name string) (Value, bool) {
	m, ok := findMethod(obj, name)
	if !ok || obj.IsDict() && r.namespaces[obj.AsDict()] {
		return Value{}, false
	}
	return r.callable(name, func(r *run, args []Value, kw kwargs) (Value, error) {
		return m(r, append([]Value{obj}, args...), kw)
	}), true
}

// get finds key in d whether or not parts of either are disguised.
func (r *run) get(d *jinja.Dict, key string) (Value, bool, error) {
	if v, ok := d.Get(key); ok {
		return v, true, nil
	}
	shown := r.showAll(key)
	if v, ok := d.Get(shown); ok {
		return v, true, nil
	}
	if len(r.alphabet) > 0 {
		if v, ok := d.Get(r.hideAll(shown)); ok {
			return v, true, nil
		}
		if err := r.step(len(d.Keys) / 8); err != nil {
			return Value{}, false, err
		}
		for _, k := range d.Keys { // a key that is partly disguised
			if len(k) >= len(shown) && r.showAll(k) == shown {
				return d.Data[k], true, nil
			}
		}
	}
	return jinja.Undefined(), false, nil
}

func (r *run) item(obj, key Value) (Value, error) {
	switch {
	case obj.IsUndefined():
		return Value{}, errors.New("item of an undefined value")
	case obj.IsDict():
		k, err := r.print(key)
		if err != nil {
			return Value{}, err
		}
		if v, ok, err := r.get(obj.AsDict(), k); ok || err != nil {
			return v, err
		}
	case obj.IsList() && (key.IsInt() || key.IsBool()):
		i, n := toInt(key), obj.AsList().Len()
		if i < 0 {
			i += int64(n)
		}
		if i < 0 || i >= int64(n) {
			return jinja.Undefined(), nil
		}
		return obj.AsList().Get(int(i)), nil
	case obj.IsString() && key.IsInt():
		runes := []rune(obj.AsString())
		i := key.AsInt()
		if i < 0 {
			i += int64(len(runes))
		}
		if i < 0 || i >= int64(len(runes)) {
			return jinja.Undefined(), nil
		}
		return jinja.NewString(string(runes[i])), nil
	}
	if key.IsString() { // what is no item may be a method: Jinja2 takes spec['items'] so
		if m, ok := r.bound(obj, r.showAll(key.AsString())); ok {
			return m, nil
		}
	}
	return jinja.Undefined(), nil
}

// opSlice is Python's obj[a:b:c].
func opSlice(r *run, a []Value, _ kwargs) (Value, error) {
	var runes []rune
	n := 0
	switch {
	case a[0].IsList():
		n = a[0].AsList().Len()
	case a[0].IsString():
		runes = []rune(a[0].AsString())
		n = len(runes)
	default:
		return Value{}, fmt.Errorf("%s cannot be sliced", kindOf(a[0]))
	}
	bound := func(v Value, def, low, high int64) (int64, error) {
		if v.IsNone() {
			return def, nil
		}
		if !v.IsInt() {
			return 0, fmt.Errorf("slice bound is %s, not an integer", kindOf(v))
		}
		i := v.AsInt()
		if i < 0 {
			i += int64(n)
		}
		return min(max(i, low), high), nil
	}
	step := int64(1)
	if !a[3].IsNone() {
		if !a[3].IsInt() || a[3].AsInt() == 0 {
			return Value{}, errors.New("slice step is not an integer other than 0")
		}
		step = a[3].AsInt()
	}
	last := int64(n)
	var lo, hi int64
	var err, err2 error
	if step > 0 {
		lo, err = bound(a[1], 0, 0, last)
		hi, err2 = bound(a[2], last, 0, last)
	} else {
		lo, err = bound(a[1], last-1, -1, last-1)
		hi, err2 = bound(a[2], -1, -1, last-1)
	}
	if err = errors.Join(err, err2); err != nil {
		return Value{}, err
	}
	var at []int
	for i := lo; step > 0 && i < hi || step < 0 && i > hi; {
		at = append(at, int(i))
		if step > last || step < -last {
			break
		}
		i += step
	}
	if runes != nil || a[0].IsString() {
		out := make([]rune, len(at))
		for i, j := range at {
			out[i] = runes[j]
		}
		return r.str(string(out))
	}
	out := make([]Value, len(at))
	for i, j := range at {
		out[i] = a[0].AsList().Items[j]
	}
	return r.list(out)
}

// merge makes one dict of several dicts or lists of pairs.
func (r *run) merge(from []Value) (Value, error) {
	out := jinja.NewDict()
	d := out.AsDict()
	for _, v := range from {
		if v.IsDict() {
			for _, k := range v.AsDict().Keys {
				d.Set(k, v.AsDict().Data[k])
			}
			continue
		}
		pairs, err := r.items(v)
		if err != nil {
			return Value{}, err
		}
		for _, p := range pairs {
			if !p.IsList() || p.AsList().Len() != 2 {
				return Value{}, errors.New("dict() wants pairs")
			}
			k, err := r.print(p.AsList().Get(0))
			if err != nil {
				return Value{}, err
			}
			d.Set(k, p.AsList().Get(1))
		}
	}
	if err := r.step(d.Len() / 2); err != nil {
		return Value{}, err
	}
	return out, r.grow(64 * d.Len())
}

func opNamespace(r *run, a []Value, _ kwargs) (Value, error) {
	v, err := r.merge(a)
	if err == nil {
		r.namespaces[v.AsDict()] = true
	}
	return v, err
}

func opCat(r *run, a []Value, _ kwargs) (Value, error) {
	var b strings.Builder
	for _, v := range a {
		s, err := r.print(v)
		if err != nil {
			return Value{}, err
		}
		if err := r.grow(len(s)); err != nil {
			return Value{}, err
		}
		b.WriteString(s)
	}
	return jinja.NewString(b.String()), nil
}

func opAdd(r *run, a []Value, _ kwargs) (Value, error) {
	strs, lists := 0, 0
	for _, v := range a {
		if v.IsString() {
			strs++
		} else if v.IsList() {
			lists++
		}
	}
	if strs == len(a) {
		return opCat(r, a, nil)
	}
	if lists == len(a) {
		var all []Value
		for _, v := range a {
			if err := r.grow(valueSize * v.AsList().Len()); err != nil {
				return Value{}, err
			}
			all = append(all, v.AsList().Items...)
		}
		return jinja.NewList(all), r.step(len(all) / 4)
	}
	sum := a[0]
	var err error
	for _, v := range a[1:] {
		switch {
		case sum.IsString() && v.IsString():
			sum, err = opCat(r, []Value{sum, v}, nil)
		case sum.IsList() && v.IsList():
			sum, err = r.list(slices.Concat(sum.AsList().Items, v.AsList().Items))
		default:
			sum, err = calculate("+", sum, v)
		}
		if err != nil {
			return Value{}, err
		}
	}
	return sum, nil
}

func opMul(r *run, a []Value, _ kwargs) (Value, error) {
	out := a[0]
	for _, v := range a[1:] {
		if (v.IsString() || v.IsList()) && out.IsInt() {
			out, v = v, out
		}
		var err error
		switch {
		case out.IsString() && v.IsInt():
			s, n := out.AsString(), max(v.AsInt(), 0)
			if len(s) > 0 && n > r.bytes/int64(len(s)) {
				n = r.bytes/int64(len(s)) + 1 // too much in any case
				return Value{}, r.grow(int(n) * len(s))
			}
			out, err = r.str(strings.Repeat(s, int(n)))
		case out.IsList() && v.IsInt():
			l, n := out.AsList().Items, max(v.AsInt(), 0)
			if len(l) > 0 && n > r.bytes/int64(valueSize*len(l)) {
				return Value{}, r.grow(int(min(r.bytes+1, math.MaxInt32)))
			}
			out, err = r.list(slices.Repeat(l, int(n)))
		default:
			out, err = calculate("*", out, v)
		}
		if err != nil {
			return Value{}, err
		}
	}
	return out, nil
}
