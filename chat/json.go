package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// DecodeJSON decodes one JSON text into template values. Objects keep the order of their keys (of two equal keys the
// last value counts, in the first one's place, as in Python), integers of any size stay exact. Lists and objects nest at
// most 100 deep.
func DecodeJSON(text []byte) (Value, error) {
	return decodeJSON(text, func(s string) string { return s })
}

// decodeJSON passes every string and key through mark.
func decodeJSON(text []byte, mark func(string) string) (Value, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := decodeValue(dec, mark, 0)
	if err == nil {
		if _, err = dec.Token(); err == io.EOF {
			return v, nil
		}
		if err == nil {
			err = errors.New("text after the value")
		}
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = errors.New("the text ends too early")
	}
	return Value{}, fmt.Errorf("invalid JSON: %w", err)
}

func decodeValue(dec *json.Decoder, mark func(string) string, depth int) (Value, error) {
	if depth > valueDepth {
		return Value{}, fmt.Errorf("nested deeper than %d", valueDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return Value{}, err
	}
	switch t := tok.(type) {
	case nil:
		return jinja.None(), nil
	case bool:
		return jinja.NewBool(t), nil
	case json.Number:
		return number(string(t))
	case string:
		return jinja.NewString(mark(t)), nil
	case json.Delim:
		if t == '[' {
			items := []Value{}
			for dec.More() {
				v, err := decodeValue(dec, mark, depth+1)
				if err != nil {
					return Value{}, err
				}
				items = append(items, v)
			}
			_, err = dec.Token()
			return jinja.NewList(items), err
		}
		out := jinja.NewDict()
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return Value{}, err
			}
			v, err := decodeValue(dec, mark, depth+1)
			if err != nil {
				return Value{}, err
			}
			out.AsDict().Set(mark(k.(string)), v)
		}
		_, err = dec.Token()
		return out, err
	}
	panic("chat: encoding/json gave a token of no known type")
}

// jsonStyle holds the choices of Python's json.dumps.
type jsonStyle struct {
	item, key string
	indent    string
	indented  bool
	ascii     bool // escape everything past ASCII
	sorted    bool
}

// filterTojson is transformers' tojson: json.dumps without HTML escapes, non-ASCII text as it is, keys in their order.
func filterTojson(r *run, a []Value, kw kwargs) (Value, error) {
	st := jsonStyle{item: ", ", key: ": "}
	st.ascii = arg(a, kw, 1, "ensure_ascii").IsTruthy()
	if v := arg(a, kw, 2, "indent"); v.IsInt() || v.IsString() {
		st.indented = true
		st.item = ","
		if v.IsString() {
			st.indent = v.AsString()
		} else {
			st.indent = strings.Repeat(" ", int(min(max(v.AsInt(), 0), 64)))
		}
	}
	if v := arg(a, kw, 3, "separators"); v.IsList() {
		l := v.AsList().Items
		if len(l) != 2 || !l[0].IsString() || !l[1].IsString() {
			return Value{}, errors.New("tojson: separators are not two strings")
		}
		st.item, st.key = l[0].AsString(), l[1].AsString()
	}
	st.sorted = arg(a, kw, 4, "sort_keys").IsTruthy()
	var b strings.Builder
	if err := r.encodeJSON(&b, a[0], &st, 0); err != nil {
		return Value{}, err
	}
	return jinja.NewString(b.String()), nil
}

func (r *run) encodeJSON(b *strings.Builder, v Value, st *jsonStyle, depth int) error {
	if depth > valueDepth {
		return fmt.Errorf("tojson: a value nests deeper than %d", valueDepth)
	}
	if err := r.step(1); err != nil {
		return err
	}
	start := b.Len()
	line := func(depth int) {
		if st.indented {
			b.WriteByte('\n')
			for range depth {
				b.WriteString(st.indent)
			}
		}
	}
	switch {
	case v.IsNone():
		b.WriteString("null")
	case v.IsBool():
		b.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		b.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		switch f := v.AsFloat(); {
		case math.IsNaN(f):
			b.WriteString("NaN")
		case math.IsInf(f, 1):
			b.WriteString("Infinity")
		case math.IsInf(f, -1):
			b.WriteString("-Infinity")
		default:
			b.WriteString(pyFloat(f))
		}
	case v.IsString():
		return r.jsonString(b, v.AsString(), st.ascii)
	case v.IsList():
		items := v.AsList().Items
		b.WriteByte('[')
		for i, e := range items {
			if i > 0 {
				b.WriteString(st.item)
			}
			line(depth + 1)
			if err := r.encodeJSON(b, e, st, depth+1); err != nil {
				return err
			}
		}
		if len(items) > 0 {
			line(depth)
		}
		b.WriteByte(']')
		return r.grow(len(items)*(len(st.item)+1+depth*len(st.indent)) + 2)
	case v.IsDict():
		d := v.AsDict()
		keys := d.Keys
		if st.sorted {
			keys = r.sortedKeys(d)
		}
		b.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				b.WriteString(st.item)
			}
			line(depth + 1)
			if err := r.jsonString(b, k, st.ascii); err != nil {
				return err
			}
			b.WriteString(st.key)
			if err := r.encodeJSON(b, d.Data[k], st, depth+1); err != nil {
				return err
			}
		}
		if len(keys) > 0 {
			line(depth)
		}
		b.WriteByte('}')
		return r.grow(len(keys)*(len(st.item)+len(st.key)+1+depth*len(st.indent)) + 2)
	default:
		digits, ok := bigInt(v)
		if !ok {
			return fmt.Errorf("tojson: %s cannot be written as JSON", kindOf(v))
		}
		b.WriteString(digits)
	}
	return r.grow(b.Len() - start)
}

// jsonString writes a quoted string. Marks of escapes that a character of the input asked for count as input.
func (r *run) jsonString(b *strings.Builder, s string, ascii bool) error {
	if err := r.step(len(s) / 64); err != nil {
		return err
	}
	start := b.Len()
	b.WriteByte('"')
	for _, c := range s {
		u := r.show(c)
		escape := byte(0)
		switch u {
		case '"', '\\':
			b.WriteRune(r.hide('\\'))
			b.WriteRune(c)
			continue
		case '\n':
			escape = 'n'
		case '\r':
			escape = 'r'
		case '\t':
			escape = 't'
		case '\b':
			escape = 'b'
		case '\f':
			escape = 'f'
		}
		switch {
		case escape != 0:
			b.WriteRune(r.hide('\\'))
			b.WriteRune(r.hide(rune(escape)))
		case u < ' ' || ascii && u >= 0x7f && u < 0x10000:
			b.WriteString(r.hideAll(fmt.Sprintf(`\u%04x`, u)))
		case ascii && u >= 0x10000:
			u -= 0x10000
			b.WriteString(r.hideAll(fmt.Sprintf(`\u%04x\u%04x`, 0xd800+u>>10, 0xdc00+u&0x3ff)))
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return r.grow(b.Len() - start)
}

// filterFromJSON reads JSON inside a template; what is read from input is input.
func filterFromJSON(r *run, a []Value, _ kwargs) (Value, error) {
	s, err := text(a[0], "from_json")
	if err != nil {
		return Value{}, err
	}
	if err := r.step(len(s)); err != nil {
		return Value{}, err
	}
	if err := r.grow(16 * len(s)); err != nil {
		return Value{}, err
	}
	mark := func(s string) string { return s }
	if r.any(s) {
		mark = r.hideAll
	}
	return decodeJSON([]byte(r.showAll(s)), mark)
}
