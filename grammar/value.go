package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
)

// value is a JSON value with the order of its keys and the spelling of its numbers.
type value struct {
	kind  byte   // { [ " 0 t n, t for both booleans
	text  string // of a string or a number
	is    bool
	keys  []string
	items []*value // of an array, or of an object beside keys
}

// get is the value of a key, nil if there is none.
func (v *value) get(key string) *value {
	if v.kind != '{' {
		return nil
	}
	for i, k := range v.keys {
		if k == key {
			return v.items[i]
		}
	}
	return nil
}

// readValue reads one JSON value. Of equal keys the last counts.
func readValue(src []byte) (*value, error) {
	if len(src) > maxSource {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(src), maxSource)
	}
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	v, err := readNext(d, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the value")
	}
	return v, nil
}

func readNext(d *json.Decoder, depth int) (*value, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	switch t := t.(type) {
	case nil:
		return &value{kind: 'n'}, nil
	case bool:
		return &value{kind: 't', is: t}, nil
	case string:
		return &value{kind: '"', text: t}, nil
	case json.Number:
		return &value{kind: '0', text: string(t)}, nil
	}
	v := &value{kind: '['}
	if t == json.Delim('[') {
		for d.More() {
			e, err := readNext(d, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, e)
		}
		_, err = d.Token()
		return v, err
	}
	v.kind = '{'
	at := map[string]int{}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		e, err := readNext(d, depth+1)
		if err != nil {
			return nil, err
		}
		key := k.(string)
		if i, ok := at[key]; ok {
			v.items[i] = e
			continue
		}
		at[key] = len(v.keys)
		v.keys, v.items = append(v.keys, key), append(v.items, e)
	}
	_, err = d.Token()
	return v, err
}

// rat is a number's value; false if its exponent is too far out.
func (v *value) rat() (*big.Rat, bool) {
	if v == nil || v.kind != '0' {
		return nil, false
	}
	if i := strings.IndexAny(v.text, "eE"); i >= 0 {
		e := strings.TrimLeft(v.text[i+1:], "+-0")
		if len(e) > 3 || len(e) == 3 && e > "400" {
			return nil, false
		}
	}
	return new(big.Rat).SetString(v.text)
}

// equal is JSON's equality: numbers by value, objects without order.
func (v *value) equal(o *value) bool {
	if v.kind != o.kind || len(v.items) != len(o.items) {
		return false
	}
	switch v.kind {
	case 't':
		return v.is == o.is
	case '"':
		return v.text == o.text
	case '0':
		a, ok := v.rat()
		b, ok2 := o.rat()
		return v.text == o.text || ok && ok2 && a.Cmp(b) == 0
	case '[':
		for i := range v.items {
			if !v.items[i].equal(o.items[i]) {
				return false
			}
		}
	case '{':
		for i, k := range v.keys {
			if e := o.get(k); e == nil || !v.items[i].equal(e) {
				return false
			}
		}
	}
	return true
}

// show is v for an error.
func (v *value) show() string {
	switch v.kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return fmt.Sprintf("%.40q", v.text)
	case '0':
		return fmt.Sprintf("%.40s", v.text)
	case 'n':
		return "null"
	}
	return fmt.Sprint(v.is)
}
