package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ardanlabs/jinja"
)

// findMethod gives a method of Python's str, dict or list; args[0] of the result is the object.
func findMethod(obj Value, name string) (builtin, bool) {
	var m builtin
	switch {
	case obj.IsString():
		m = stringMethods[name]
	case obj.IsDict():
		m = dictMethods[name]
	case obj.IsList() && name == "append":
		// Jinja2's sandbox for immutable values forbids it, but templates in the field use it.
		m = func(r *run, a []Value, _ kwargs) (Value, error) {
			if len(a) != 2 {
				return Value{}, errors.New("append takes one value")
			}
			a[0].AsList().Append(a[1])
			return jinja.None(), r.grow(32)
		}
	}
	return m, m != nil
}

func opMethod(r *run, a []Value, kw kwargs) (Value, error) {
	obj, name := a[0], a[1].AsString()
	fn, err := r.attr(obj, name)
	if err != nil {
		return Value{}, err
	}
	if _, big := bigInt(fn); big || !fn.IsCallable() {
		return Value{}, fmt.Errorf("%s has no method %s", kindOf(obj), clip(name))
	}
	return fn.AsCallable().Fn(a[2:], kw)
}

// arg gives argument i (0 is the object or the filtered value), or the keyword name, or an undefined value.
func arg(a []Value, kw kwargs, i int, name string) Value {
	if i < len(a) {
		return a[i]
	}
	if v, ok := kw[name]; ok {
		return v
	}
	return jinja.Undefined()
}

// text wants a string argument.
func text(v Value, what string) (string, error) {
	if !v.IsString() {
		return "", fmt.Errorf("%s wants a string, got %s", what, kindOf(v))
	}
	return v.AsString(), nil
}

// strip removes characters of set (white space if set is undefined or none) from the ends of s.
func (r *run) strip(s string, set Value, left, right bool) (string, error) {
	in := isSpace
	if !set.IsUndefined() && !set.IsNone() {
		chars, err := text(set, "strip")
		if err != nil {
			return "", err
		}
		chars = r.showAll(chars)
		if len(chars) > 256 {
			return "", errors.New("strip has more than 256 bytes of characters")
		}
		in = func(c rune) bool { return strings.ContainsRune(chars, c) }
	}
	test := func(c rune) bool { return in(r.show(c)) }
	if left {
		s = strings.TrimLeftFunc(s, test)
	}
	if right {
		s = strings.TrimRightFunc(s, test)
	}
	return s, nil
}

// finder walks through a text and its plain form in step, to cut the first where something was found in the second.
type finder struct {
	r           *run
	text, shown string
	at, plain   int // the same place in text and in shown
}

func (r *run) finder(s string) *finder { return &finder{r: r, text: s, shown: r.showAll(s)} }

// to moves to byte offset plain of shown and returns the offset in text.
func (f *finder) to(plain int) int {
	if len(f.text) == len(f.shown) {
		f.plain, f.at = plain, plain
		return plain
	}
	for f.plain < plain {
		c, n := utf8.DecodeRuneInString(f.text[f.at:])
		f.at += n
		f.plain += utf8.RuneLen(f.r.show(c))
	}
	return f.at
}

// split cuts s at sep, at most n times (n < 0: everywhere).
func (r *run) split(s, sep string, n int) []string {
	sep = r.showAll(sep)
	f := r.finder(s)
	var out []string
	start, from := 0, 0
	for n < 0 || len(out) < n {
		i := strings.Index(f.shown[from:], sep)
		if i < 0 {
			break
		}
		out = append(out, s[start:f.to(from+i)])
		from += i + len(sep)
		start = f.to(from)
	}
	return append(out, s[start:])
}

// rsplit cuts s at sep from the right, at most n times (n < 0: everywhere).
func (r *run) rsplit(s, sep string, n int) []string {
	sep = r.showAll(sep)
	f := r.finder(s)
	var cuts []int // in f.shown, from the right
	for end := len(f.shown); n < 0 || len(cuts) < n; {
		if end = strings.LastIndex(f.shown[:end], sep); end < 0 {
			break
		}
		cuts = append(cuts, end)
	}
	var out []string
	start := 0
	for _, cut := range slices.Backward(cuts) {
		out = append(out, s[start:f.to(cut)])
		start = f.to(cut + len(sep))
	}
	return append(out, s[start:])
}

func (r *run) strings(parts []string) (Value, error) {
	items := make([]Value, len(parts))
	n := 0
	for i, p := range parts {
		items[i] = jinja.NewString(p)
		n += len(p)
	}
	if err := r.grow(n); err != nil {
		return Value{}, err
	}
	return r.list(items)
}

// replace puts with for old, at most n times (n < 0: everywhere).
func (r *run) replace(s, old, with string, n int) (Value, error) {
	parts := []string{}
	if r.showAll(old) == "" {
		// Between all characters, as in Python.
		if err := r.grow(len(s) * (1 + len(with))); err != nil {
			return Value{}, err
		}
		parts = append(parts, "")
		for i, c := range s {
			if n >= 0 && len(parts) >= n {
				parts = append(parts, s[i:])
				return r.str(strings.Join(parts, with))
			}
			parts = append(parts, string(c))
		}
		if n < 0 || len(parts) <= n-1 {
			parts = append(parts, "")
		}
		return r.str(strings.Join(parts, with))
	}
	parts = r.split(s, old, n)
	if err := r.grow(len(s) + len(parts)*(len(with)+16)); err != nil {
		return Value{}, err
	}
	return jinja.NewString(strings.Join(parts, with)), nil
}

// casing maps the characters behind a disguise and puts it back on.
func (r *run) casing(s string, f func(string) string) (Value, error) {
	if !r.any(s) {
		return r.str(f(s))
	}
	return r.str(r.hideAll(f(r.showAll(s)))) // what came partly from the input counts as input wholly
}

func capitalize(s string) string {
	c, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return strings.ToUpper(string(c)) + strings.ToLower(s[n:])
}

func title(s string) string {
	in := false
	return strings.Map(func(c rune) rune {
		was := in
		in = unicode.IsLetter(c)
		if was {
			return unicode.ToLower(c)
		}
		return unicode.ToTitle(c)
	}, s)
}

// prefixed reports whether s starts (or ends) with what, a string or a list of them.
func (r *run) prefixed(s string, what Value, has func(s, p string) bool) (Value, error) {
	all := []Value{what}
	if what.IsList() {
		all = what.AsList().Items
	}
	s = r.showAll(s)
	for _, v := range all {
		p, err := text(v, "startswith or endswith")
		if err != nil {
			return Value{}, err
		}
		if has(s, r.showAll(p)) {
			return jinja.NewBool(true), nil
		}
		if err := r.step(1); err != nil {
			return Value{}, err
		}
	}
	return jinja.NewBool(false), nil
}

var stringMethods map[string]builtin

var dictMethods = map[string]builtin{
	"items": func(r *run, a []Value, _ kwargs) (Value, error) { return r.pairs(a[0].AsDict(), a[0].AsDict().Keys) },
	"keys":  func(r *run, a []Value, _ kwargs) (Value, error) { return r.iterate(a[0]) },
	"values": func(r *run, a []Value, _ kwargs) (Value, error) {
		d := a[0].AsDict()
		items := make([]Value, len(d.Keys))
		for i, k := range d.Keys {
			items[i] = d.Data[k]
		}
		return r.list(items)
	},
	"get": func(r *run, a []Value, kw kwargs) (Value, error) {
		k, err := r.print(arg(a, kw, 1, "key"))
		if err != nil {
			return Value{}, err
		}
		if v, ok, err := r.get(a[0].AsDict(), k); ok || err != nil {
			return v, err
		}
		if _, named := kw["default"]; named || len(a) > 2 { // also if it is undefined
			return arg(a, kw, 2, "default"), nil
		}
		return jinja.None(), nil
	},
}

// pairs lists [key, value] of d in the order of keys.
func (r *run) pairs(d *jinja.Dict, keys []string) (Value, error) {
	if err := r.grow(64 * len(keys)); err != nil {
		return Value{}, err
	}
	items := make([]Value, len(keys))
	for i, k := range keys {
		items[i] = jinja.NewList([]Value{jinja.NewString(k), d.Data[k]})
	}
	return r.list(items)
}

func init() {
	// method wraps one that looks at its string and up to two arguments.
	type m = func(r *run, s string, x, y Value) (Value, error)
	stringMethods = map[string]builtin{}
	add := func(name, first, second string, fn m) {
		stringMethods[name] = func(r *run, a []Value, kw kwargs) (Value, error) {
			if len(a) > 3 {
				return Value{}, fmt.Errorf("%s has too many arguments", name)
			}
			return fn(r, a[0].AsString(), arg(a, kw, 1, first), arg(a, kw, 2, second))
		}
	}
	for name, side := range map[string][2]bool{"strip": {true, true}, "lstrip": {true, false}, "rstrip": {false, true}} {
		add(name, "chars", "", func(r *run, s string, x, _ Value) (Value, error) {
			t, err := r.strip(s, x, side[0], side[1])
			if err != nil {
				return Value{}, err
			}
			return r.str(t)
		})
	}
	for name, fn := range map[string]func(string) string{"upper": strings.ToUpper, "lower": strings.ToLower, "title": title, "capitalize": capitalize} {
		add(name, "", "", func(r *run, s string, _, _ Value) (Value, error) { return r.casing(s, fn) })
	}
	for name, right := range map[string]bool{"split": false, "rsplit": true} {
		add(name, "sep", "maxsplit", func(r *run, s string, x, y Value) (Value, error) {
			n := -1
			if !y.IsUndefined() {
				n = int(max(toInt(y), -1))
			}
			if x.IsUndefined() || x.IsNone() {
				if n >= 0 {
					return Value{}, errors.New("split by white space with a limit is not supported")
				}
				return r.strings(strings.FieldsFunc(s, func(c rune) bool { return isSpace(r.show(c)) }))
			}
			sep, err := text(x, name)
			if err != nil || sep == "" {
				return Value{}, errors.Join(err, errors.New("split by an empty string"))
			}
			if err := r.grow(16 * strings.Count(r.showAll(s), r.showAll(sep))); err != nil {
				return Value{}, err
			}
			if right {
				return r.strings(r.rsplit(s, sep, n))
			}
			return r.strings(r.split(s, sep, n))
		})
	}
	add("splitlines", "keepends", "", func(r *run, s string, x, _ Value) (Value, error) {
		if s == "" {
			return jinja.NewList(nil), nil
		}
		if x.IsTruthy() {
			return Value{}, errors.New("splitlines(true) is not supported")
		}
		lines := r.split(s, "\n", -1)
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		return r.strings(lines)
	})
	add("startswith", "prefix", "", func(r *run, s string, x, _ Value) (Value, error) { return r.prefixed(s, x, strings.HasPrefix) })
	add("endswith", "suffix", "", func(r *run, s string, x, _ Value) (Value, error) { return r.prefixed(s, x, strings.HasSuffix) })
	for name, right := range map[string]bool{"removeprefix": false, "removesuffix": true} {
		add(name, "", "", func(r *run, s string, x, _ Value) (Value, error) {
			p, err := text(x, name)
			if err != nil {
				return Value{}, err
			}
			f, p := r.finder(s), r.showAll(p)
			switch {
			case right && strings.HasSuffix(f.shown, p):
				s = s[:f.to(len(f.shown)-len(p))]
			case !right && strings.HasPrefix(f.shown, p):
				s = s[f.to(len(p)):]
			}
			return r.str(s)
		})
	}
	stringMethods["replace"] = func(r *run, a []Value, kw kwargs) (Value, error) {
		old, err := text(arg(a, kw, 1, "old"), "replace")
		with, err2 := text(arg(a, kw, 2, "new"), "replace")
		if err = errors.Join(err, err2); err != nil {
			return Value{}, err
		}
		n := -1
		if c := arg(a, kw, 3, "count"); !c.IsUndefined() && !c.IsNone() {
			n = int(toInt(c))
		}
		return r.replace(a[0].AsString(), old, with, n)
	}
	for name, find := range map[string]func(s, p string) int{"find": strings.Index, "index": strings.Index, "rfind": strings.LastIndex, "count": strings.Count} {
		add(name, "sub", "", func(r *run, s string, x, y Value) (Value, error) {
			p, err := text(x, name)
			if err != nil {
				return Value{}, err
			}
			if !y.IsUndefined() {
				return Value{}, fmt.Errorf("%s with a range is not supported", name)
			}
			shown := r.showAll(s)
			n := find(shown, r.showAll(p))
			if name == "index" && n < 0 {
				return Value{}, errors.New("index: substring not found")
			}
			if name != "count" && n > 0 {
				n = utf8.RuneCountInString(shown[:n])
			}
			return jinja.NewInt(int64(n)), nil
		})
	}
	add("join", "", "", func(r *run, s string, x, _ Value) (Value, error) { return r.join(x, s, "") })
	for name, class := range map[string]func(rune) bool{"isdigit": unicode.IsDigit, "isalpha": unicode.IsLetter, "isspace": isSpace,
		"isalnum": func(c rune) bool { return unicode.IsLetter(c) || unicode.IsNumber(c) }} {
		add(name, "", "", func(r *run, s string, _, _ Value) (Value, error) {
			all := s != ""
			for _, c := range r.showAll(s) {
				all = all && class(c)
			}
			return jinja.NewBool(all), nil
		})
	}
	for name, to := range map[string]func(string) string{"isupper": strings.ToUpper, "islower": strings.ToLower} {
		add(name, "", "", func(r *run, s string, _, _ Value) (Value, error) {
			s = r.showAll(s)
			return jinja.NewBool(to(s) == s && strings.IndexFunc(s, unicode.IsLetter) >= 0), nil
		})
	}
	stringMethods["format"] = func(r *run, a []Value, kw kwargs) (Value, error) { return r.braces(a[0].AsString(), a[1:], kw) }
}

// braces is str.format with plain places: {}, {0} and {name}.
func (r *run) braces(f string, args []Value, kw kwargs) (Value, error) {
	var b strings.Builder
	in := r.finder(f)
	next := 0
	for i := 0; i < len(in.shown); {
		j := strings.IndexAny(in.shown[i:], "{}")
		if j < 0 {
			b.WriteString(f[in.to(i):])
			break
		}
		start := in.to(i)
		b.WriteString(f[start:in.to(i+j)])
		i += j
		if i+1 < len(in.shown) && in.shown[i+1] == in.shown[i] {
			at := in.to(i)
			b.WriteString(f[at:in.to(i+1)])
			i += 2
			continue
		}
		end := strings.IndexByte(in.shown[i:], '}')
		if in.shown[i] == '}' || end < 0 {
			return Value{}, errors.New("format: single bracket")
		}
		name := in.shown[i+1 : i+end]
		i += end + 1
		v, ok := kw[name]
		if !ok {
			if name == "" && next >= 0 {
				name = fmt.Sprint(next)
				next++
			} else if name != "" {
				if next > 0 {
					return Value{}, errors.New("format: numbered places beside plain ones")
				}
				next = -1
			}
			n := 0
			if _, err := fmt.Sscanf(name, "%d", &n); err != nil || n < 0 || n >= len(args) || fmt.Sprint(n) != name {
				return Value{}, fmt.Errorf("format: no value for %s", clip(name))
			}
			v = args[n]
		}
		s, err := r.print(v)
		if err == nil {
			err = r.grow(len(s))
		}
		if err != nil {
			return Value{}, err
		}
		b.WriteString(s)
	}
	return r.str(b.String())
}
