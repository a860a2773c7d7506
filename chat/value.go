package chat

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// bigPrefix marks a callable that stands for an integer past 64 bits, which the engine's values cannot hold: its name is
// this and the digits.
const bigPrefix = "\x00int "

func newBig(digits string) Value {
	return jinja.NewCallable(bigPrefix+digits, func([]Value, kwargs) (Value, error) {
		return Value{}, errors.New("an integer is called like a function")
	})
}

func bigInt(v Value) (string, bool) {
	if !v.IsCallable() {
		return "", false
	}
	return strings.CutPrefix(v.AsCallable().Name, bigPrefix)
}

// number reads a JSON or template number as Python does: integers exactly, whatever their size, the rest as float64.
func number(s string) (Value, error) {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return jinja.NewInt(i), nil
		}
		b, ok := new(big.Int).SetString(s, 10)
		if !ok {
			return Value{}, fmt.Errorf("%s is not a number", clip(s))
		}
		return newBig(b.String()), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return Value{}, fmt.Errorf("%s is not a number", clip(s))
	}
	return jinja.NewFloat(f), nil
}

func kindOf(v Value) string {
	switch {
	case v.IsUndefined():
		return "an undefined value"
	case v.IsNone():
		return "none"
	case v.IsBool():
		return "a boolean"
	case v.IsNumber():
		return "a number"
	case v.IsString():
		return "a string"
	case v.IsList():
		return "a list"
	case v.IsDict():
		return "a dict"
	}
	if _, ok := bigInt(v); ok {
		return "a number"
	}
	return "a function"
}

// pyFloat is Python's repr of a float.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// print is Python's str(v), an undefined value being empty.
func (r *run) print(v Value) (string, error) {
	switch {
	case v.IsString():
		return v.AsString(), nil
	case v.IsUndefined():
		return "", nil
	}
	var b strings.Builder
	err := r.repr(&b, v, 0)
	return b.String(), err
}

func (r *run) repr(b *strings.Builder, v Value, depth int) error {
	if depth > valueDepth {
		return fmt.Errorf("a value nests deeper than %d", valueDepth)
	}
	if err := r.step(1); err != nil {
		return err
	}
	switch {
	case v.IsNone():
		b.WriteString("None")
	case v.IsUndefined():
		b.WriteString("Undefined")
	case v.IsBool():
		if v.AsBool() {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		b.WriteString(pyFloat(v.AsFloat()))
	case v.IsString():
		return r.quote(b, v.AsString())
	case v.IsList():
		b.WriteByte('[')
		for i, e := range v.AsList().Items {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := r.repr(b, e, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case v.IsDict():
		b.WriteByte('{')
		for i, k := range v.AsDict().Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := r.quote(b, k); err != nil {
				return err
			}
			b.WriteString(": ")
			if err := r.repr(b, v.AsDict().Data[k], depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		if digits, ok := bigInt(v); ok {
			b.WriteString(digits)
		} else {
			b.WriteString("<function>")
		}
	}
	return r.grow(8)
}

// quote is Python's repr of a string.
func (r *run) quote(b *strings.Builder, s string) error {
	if err := r.step(len(s) / 64); err != nil {
		return err
	}
	if err := r.grow(len(s)); err != nil {
		return err
	}
	shown := r.showAll(s)
	q := '\''
	if strings.Contains(shown, "'") && !strings.Contains(shown, `"`) {
		q = '"'
	}
	b.WriteRune(q)
	for _, c := range s {
		switch u := r.show(c); {
		case u == q || u == '\\':
			b.WriteRune(r.hide('\\'))
			b.WriteRune(c)
		case u == '\n':
			b.WriteString(`\n`)
		case u == '\r':
			b.WriteString(`\r`)
		case u == '\t':
			b.WriteString(`\t`)
		case u < ' ' || u >= 0x7f && u < 0xa1:
			fmt.Fprintf(b, `\x%02x`, u)
		case !strconv.IsPrint(u) && !isPrivate(u) && u < 0x10000:
			fmt.Fprintf(b, `\u%04x`, u)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteRune(q)
	return nil
}

// toInt gives the number in an int or bool, 0 for anything else.
func toInt(v Value) int64 {
	if v.IsInt() {
		return v.AsInt()
	}
	if v.IsBool() && v.AsBool() {
		return 1
	}
	return 0
}

// toNumber takes v as a number, as Python takes a bool for one; whole tells an integer that fits 64 bits.
func toNumber(v Value) (i int64, f float64, whole, ok bool) {
	switch {
	case v.IsInt() || v.IsBool():
		return toInt(v), float64(toInt(v)), true, true
	case v.IsFloat():
		return 0, v.AsFloat(), false, true
	}
	if digits, big := bigInt(v); big {
		f, _ := strconv.ParseFloat(digits, 64)
		return 0, f, false, true
	}
	return 0, 0, false, false
}

func arithmetic(op string) builtin {
	return func(_ *run, a []Value, _ kwargs) (Value, error) {
		out := a[0]
		var err error
		for _, v := range a[1:] {
			if out, err = calculate(op, out, v); err != nil {
				return Value{}, err
			}
		}
		return out, nil
	}
}

// calculate applies a Python operator to two numbers. Integers that leave 64 bits are an error.
func calculate(op string, a, b Value) (Value, error) {
	x, xf, xw, ok := toNumber(a)
	y, yf, yw, ok2 := toNumber(b)
	if !ok || !ok2 {
		return Value{}, fmt.Errorf("operator %s between %s and %s", op, kindOf(a), kindOf(b))
	}
	if xw && yw && op != "/" && !(op == "**" && y < 0) {
		z := new(big.Int)
		p, q := big.NewInt(x), big.NewInt(y)
		switch op {
		case "+":
			z.Add(p, q)
		case "-":
			z.Sub(p, q)
		case "*":
			z.Mul(p, q)
		case "//", "%":
			if y == 0 {
				return Value{}, errors.New("division by zero")
			}
			m := new(big.Int)
			z.DivMod(p, q, m)
			if q.Sign() < 0 && m.Sign() != 0 { // Euclid's remainder is never negative, Python's has the divisor's sign
				z.Sub(z, big.NewInt(1))
				m.Add(m, q)
			}
			if op == "%" {
				z = m
			}
		case "**":
			if y > 64 && (x > 1 || x < -1) {
				return Value{}, errors.New("integer overflow")
			}
			z.Exp(p, q, nil)
		}
		if !z.IsInt64() {
			return Value{}, errors.New("integer overflow")
		}
		return jinja.NewInt(z.Int64()), nil
	}
	var f float64
	switch op {
	case "+":
		f = xf + yf
	case "-":
		f = xf - yf
	case "*":
		f = float64(xf * yf)
	case "**":
		f = math.Pow(xf, yf)
	default:
		if yf == 0 {
			return Value{}, errors.New("division by zero")
		}
		switch op {
		case "/":
			f = xf / yf
		case "//":
			f = math.Floor(xf / yf)
		case "%":
			if f = math.Mod(xf, yf); f != 0 && (f < 0) != (yf < 0) {
				f += yf
			}
		}
	}
	return jinja.NewFloat(f), nil
}

// equal is Python's ==.
func (r *run) equal(a, b Value, depth int) (bool, error) {
	if depth > valueDepth {
		return false, fmt.Errorf("a value nests deeper than %d", valueDepth)
	}
	if err := r.step(1); err != nil {
		return false, err
	}
	switch {
	case a.IsString() && b.IsString():
		s, t := a.AsString(), b.AsString()
		if s == t {
			return true, nil
		}
		if err := r.step((len(s) + len(t)) / 64); err != nil {
			return false, err
		}
		return r.showAll(s) == r.showAll(t), nil
	case a.IsList() && b.IsList():
		x, y := a.AsList().Items, b.AsList().Items
		if len(x) != len(y) {
			return false, nil
		}
		for i := range x {
			if ok, err := r.equal(x[i], y[i], depth+1); !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	case a.IsDict() && b.IsDict():
		x, y := a.AsDict(), b.AsDict()
		if x == y {
			return true, nil
		}
		if x.Len() != y.Len() || r.namespaces[x] || r.namespaces[y] {
			return false, nil
		}
		for _, k := range x.Keys {
			v, ok, err := r.get(y, k)
			if ok && err == nil {
				ok, err = r.equal(x.Data[k], v, depth+1)
			}
			if !ok || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	if d, ok := bigInt(a); ok {
		e, ok := bigInt(b)
		return ok && d == e, nil
	}
	x, xf, xw, ok := toNumber(a)
	y, yf, yw, ok2 := toNumber(b)
	switch {
	case ok && ok2 && xw && yw:
		return x == y, nil
	case ok && ok2:
		return xf == yf, nil
	}
	return a.IsNone() && b.IsNone() || a.IsUndefined() && b.IsUndefined(), nil
}

// compare orders two numbers, strings or lists.
func (r *run) compare(a, b Value) (int, error) {
	if a.IsString() && b.IsString() {
		return strings.Compare(r.showAll(a.AsString()), r.showAll(b.AsString())), nil
	}
	if a.IsList() && b.IsList() {
		x, y := a.AsList().Items, b.AsList().Items
		for i := 0; i < len(x) && i < len(y); i++ {
			if x[i].IsList() || y[i].IsList() {
				return 0, errors.New("nested lists are not ordered")
			}
			if err := r.step(1); err != nil {
				return 0, err
			}
			if c, err := r.compare(x[i], y[i]); c != 0 || err != nil {
				return c, err
			}
		}
		return len(x) - len(y), nil
	}
	x, xf, xw, ok := toNumber(a)
	y, yf, yw, ok2 := toNumber(b)
	if !ok || !ok2 {
		return 0, fmt.Errorf("%s and %s are not ordered", kindOf(a), kindOf(b))
	}
	if xw && yw {
		switch {
		case x < y:
			return -1, nil
		case x > y:
			return 1, nil
		}
		return 0, nil
	}
	switch {
	case xf < yf:
		return -1, nil
	case xf > yf:
		return 1, nil
	}
	return 0, nil
}

func (r *run) contains(in, what Value) (bool, error) {
	switch {
	case in.IsString():
		if !what.IsString() {
			return false, fmt.Errorf("%s looked for in a string", kindOf(what))
		}
		return strings.Contains(r.showAll(in.AsString()), r.showAll(what.AsString())), nil
	case in.IsDict():
		if !what.IsString() {
			return false, nil
		}
		_, ok, err := r.get(in.AsDict(), what.AsString())
		return ok, err
	case in.IsList():
		for _, v := range in.AsList().Items {
			if ok, err := r.equal(v, what, 0); ok || err != nil {
				return ok, err
			}
		}
		return false, nil
	case in.IsUndefined():
		return false, nil
	}
	return false, fmt.Errorf("%s cannot be looked into", kindOf(in))
}
