package chat

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// digits tells whether s is nothing but decimal digits.
func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// opMod is the remainder, or for a string Python's printf-style formatting.
func opMod(r *run, a []Value, _ kwargs) (Value, error) {
	if !a[0].IsString() {
		return arithmetic("%")(r, a, nil)
	}
	out := a[0]
	for _, v := range a[1:] {
		args := []Value{v}
		if v.IsList() {
			args = v.AsList().Items
		}
		s, err := r.format(out.AsString(), args)
		if err != nil {
			return Value{}, err
		}
		if out, err = r.str(s); err != nil {
			return Value{}, err
		}
	}
	return out, nil
}

// filterFormat is Jinja2's format: the filtered value is the format string.
func filterFormat(r *run, a []Value, kw kwargs) (Value, error) {
	if len(kw) > 0 {
		return Value{}, errors.New("format with named values is not supported")
	}
	f, err := r.print(a[0])
	if err != nil {
		return Value{}, err
	}
	s, err := r.format(f, a[1:])
	if err != nil {
		return Value{}, err
	}
	return r.str(s)
}

// format is Python's f % args for the conversions s r c d i u x X o e E f F g G and %, with flags, width and precision.
func (r *run) format(f string, args []Value) (string, error) {
	var b, spec strings.Builder
	percent := false
	for _, c := range f {
		shown := r.show(c)
		if !percent {
			if percent = shown == '%'; !percent {
				b.WriteRune(c)
			}
			continue
		}
		if strings.ContainsRune("-+ 0#123456789.", shown) {
			spec.WriteRune(shown)
			continue
		}
		percent = false
		if shown == '%' {
			b.WriteRune(c)
			spec.Reset()
			continue
		}
		if len(args) == 0 {
			return "", errors.New("format string has more places than values")
		}
		p, err := newPlace(spec.String())
		spec.Reset()
		var s string
		if err == nil {
			s, err = r.formatOne(p, shown, args[0])
		}
		if err == nil {
			err = r.grow(len(s) + p.width)
		}
		if err != nil {
			return "", err
		}
		b.WriteString(s)
		args = args[1:]
	}
	if percent || len(args) > 0 {
		return "", errors.New("format string and values do not match")
	}
	return b.String(), nil
}

// place is what stands between the percent sign and the letter.
type place struct {
	flags     string
	width     int
	precision int // -1: none
}

func newPlace(spec string) (place, error) {
	p := place{precision: -1}
	rest := strings.TrimLeft(spec, "-+ 0#")
	p.flags = spec[:len(spec)-len(rest)]
	width, precision, dot := strings.Cut(rest, ".")
	var err, err2 error
	if width != "" {
		p.width, err = strconv.Atoi(width)
	}
	if dot {
		p.precision = 0
		if precision != "" {
			p.precision, err2 = strconv.Atoi(precision)
		}
	}
	const most = 1000
	if err != nil || err2 != nil || p.width > most || p.precision > most {
		return p, fmt.Errorf("format %%%s has no width and precision up to %d", clip(spec), most)
	}
	return p, nil
}

func (p place) has(flag string) bool { return strings.Contains(p.flags, flag) }

// pad fills s up to the width; a number's zeros go between its sign and its digits.
func (p place) pad(s string, number bool) string {
	n := p.width - utf8.RuneCountInString(s)
	switch {
	case n <= 0:
		return s
	case p.has("-"):
		return s + strings.Repeat(" ", n)
	case number && p.has("0"):
		sign := len(s) - len(strings.TrimLeft(s, "+- "))
		if rest := s[sign:]; len(rest) > 1 && rest[0] == '0' && strings.ContainsRune("xXo", rune(rest[1])) {
			sign += 2
		}
		return s[:sign] + strings.Repeat("0", n) + s[sign:]
	}
	return strings.Repeat(" ", n) + s
}

// sign puts in front of the digits of a number what the flags ask for.
func (p place) sign(s string) string {
	switch {
	case strings.HasPrefix(s, "-"):
	case p.has("+"):
		return "+" + s
	case p.has(" "):
		return " " + s
	}
	return s
}

func (r *run) formatOne(p place, letter rune, v Value) (string, error) {
	switch letter {
	case 's', 'r':
		s, err := "", error(nil)
		if letter == 's' {
			s, err = r.print(v)
		} else {
			var b strings.Builder
			err = r.repr(&b, v, 0)
			s = b.String()
		}
		if p.precision >= 0 && utf8.RuneCountInString(s) > p.precision {
			s = string([]rune(s)[:p.precision])
		}
		return p.pad(s, false), err
	case 'c':
		if v.IsString() && utf8.RuneCountInString(v.AsString()) == 1 {
			return p.pad(v.AsString(), false), nil
		}
		if v.IsInt() && v.AsInt() >= 0 && v.AsInt() <= utf8.MaxRune && utf8.ValidRune(rune(v.AsInt())) {
			return p.pad(string(r.hide(rune(v.AsInt()))), false), nil // a number can be the escape of a character of the input
		}
		return "", fmt.Errorf("format %%c of %s", kindOf(v))
	case 'd', 'i', 'u', 'x', 'X', 'o':
		return p.integer(letter, v)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		_, f, _, ok := toNumber(v)
		if !ok {
			return "", fmt.Errorf("format %%%c of %s", letter, kindOf(v))
		}
		digits := p.precision
		if digits < 0 {
			digits = 6
		}
		// Go's printf gives C's digits and exponents for these letters.
		return p.pad(p.sign(fmt.Sprintf("%."+strconv.Itoa(digits)+string(letter), f)), true), nil
	}
	return "", fmt.Errorf("format %%%c is not supported", letter)
}

func (p place) integer(letter rune, v Value) (string, error) {
	i, f, whole, ok := toNumber(v)
	big, isBig := bigInt(v)
	decimal := strings.ContainsRune("diu", letter)
	switch {
	case !ok || !whole && !isBig && !decimal || isBig && !decimal:
		return "", fmt.Errorf("format %%%c of %s", letter, kindOf(v))
	case !whole && !isBig && (f != f || f >= 1<<63 || f < -1<<63):
		return "", fmt.Errorf("format %%%c of a number that is no 64-bit integer", letter)
	case !whole && !isBig:
		i = int64(f)
	}
	s := big
	if !isBig {
		base := map[rune]int{'x': 16, 'X': 16, 'o': 8}[letter]
		if base == 0 {
			base = 10
		}
		s = strconv.FormatInt(i, base)
	}
	minus := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	if p.precision > len(s) {
		s = strings.Repeat("0", p.precision-len(s)) + s
	}
	if letter == 'X' {
		s = strings.ToUpper(s)
	}
	if p.has("#") && !decimal {
		s = "0" + string(letter) + s
	}
	if minus {
		s = "-" + s
	}
	return p.pad(p.sign(s), true), nil
}
