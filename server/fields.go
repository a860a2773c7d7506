package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// maxDepth is how deep the JSON of a request may nest.
const maxDepth = 128

// How many values the JSON of a request may have: room for the token ids of the longest contexts, and for conversations of
// tens of thousands of messages.
const (
	maxValues     = 1 << 20
	maxContainers = 1 << 17 // objects and arrays
)

// What a value takes in memory beside its text, about: a slice header, or an object's map and what is made of it.
const (
	valueBytes     = 32
	containerBytes = 512
)

// checkShape refuses JSON that nests deeper than maxDepth or has more values than a request may have, before anything
// recursive looks at it. It answers how many bytes its values will take in memory, about.
func checkShape(b []byte) (bytes int64, err error) {
	depth, inString, values, containers := 0, false, 0, 0
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			containers++
			if depth++; depth > maxDepth {
				return 0, invalid("the JSON of the request nests deeper than %d levels", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
	}
	if values > maxValues {
		return 0, invalid("the JSON of the request has %d values or more, at most %d are taken", values, maxValues)
	}
	if containers > maxContainers {
		return 0, invalid("the JSON of the request has %d objects and arrays, at most %d are taken", containers, maxContainers)
	}
	return int64(values)*valueBytes + int64(containers)*containerBytes, nil
}

// fields is a JSON object whose members are read one by one. A member that is null counts as not given. The first member of
// a wrong type is remembered in err; getters then return defaults, so that it is enough to look at err at the end.
type fields struct {
	m   map[string]json.RawMessage
	at  string // path of the object within the request, for messages; "" at the top
	err error
}

// parseObject reads a request's body, whose shape was checked.
func parseObject(b []byte) (*fields, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, invalid("the request has no body, want a JSON object")
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		var wrong *json.UnmarshalTypeError
		if json.Valid(b) || asType(err, &wrong) {
			return nil, invalid("the body is a JSON %s, want an object", kindOf(b))
		}
		return nil, invalid("the body is no JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if m == nil {
		return nil, invalid("the body is a JSON null, want an object")
	}
	return &fields{m: m}, nil
}

// object reads an object within a request; at names it in messages.
func object(raw json.RawMessage, at string) (*fields, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil || m == nil {
		return nil, invalid("%s is a JSON %s, want an object", at, kindOf(raw))
	}
	return &fields{m: m, at: at}, nil
}

// kindOf names the type of a JSON value.
func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// name is the path of a member.
func (f *fields) name(key string) string {
	if f.at == "" {
		return key
	}
	return f.at + "." + key
}

// fail remembers the first fault.
func (f *fields) fail(format string, a ...any) {
	if f.err == nil {
		f.err = invalid(format, a...)
	}
}

func (f *fields) wrong(key, want string) {
	f.fail("%s is a JSON %s, want %s", f.name(key), kindOf(f.m[key]), want)
}

// has tells whether a member is there and not null.
func (f *fields) has(key string) bool {
	raw, ok := f.m[key]
	return ok && kindOf(raw) != "null"
}

// first is the first of several names of one field that is given, "" if none is.
func (f *fields) first(keys ...string) string {
	for _, k := range keys {
		if f.has(k) {
			return k
		}
	}
	return ""
}

// raw is a member's JSON, nil if it is not given.
func (f *fields) raw(key string) json.RawMessage {
	if !f.has(key) {
		return nil
	}
	return f.m[key]
}

func (f *fields) boolean(key string, def bool) bool {
	if !f.has(key) {
		return def
	}
	var v bool
	if json.Unmarshal(f.m[key], &v) != nil {
		f.wrong(key, "a boolean")
		return def
	}
	return v
}

func (f *fields) str(key, def string) string {
	if !f.has(key) {
		return def
	}
	var v string
	if json.Unmarshal(f.m[key], &v) != nil {
		f.wrong(key, "a string")
		return def
	}
	return v
}

func (f *fields) number(key string, def float64) float64 {
	if !f.has(key) {
		return def
	}
	v, ok := number(f.m[key])
	if !ok {
		f.wrong(key, "a number")
		return def
	}
	return v
}

// number reads a JSON number; one too large for a float64 is the largest there is.
func number(raw json.RawMessage) (float64, bool) {
	if kindOf(raw) != "number" {
		return 0, false
	}
	var n json.Number
	if json.Unmarshal(raw, &n) != nil {
		return 0, false
	}
	v, err := n.Float64()
	if err != nil {
		v = math.Copysign(math.MaxFloat64, v)
	}
	return v, true
}

// integer reads a whole number; fractions are cut off, and what is out of int32's range becomes its end.
func (f *fields) integer(key string, def int) int {
	if !f.has(key) {
		return def
	}
	v, ok := number(f.m[key])
	if !ok {
		f.wrong(key, "an integer")
		return def
	}
	return int(max(math.MinInt32, min(math.MaxInt32, v)))
}

// strings reads an array of strings.
func (f *fields) strings(key string) []string {
	if !f.has(key) {
		return nil
	}
	var v []string
	if json.Unmarshal(f.m[key], &v) != nil {
		f.wrong(key, "an array of strings")
		return nil
	}
	return v
}

// array reads an array's elements.
func (f *fields) array(key string) []json.RawMessage {
	if !f.has(key) {
		return nil
	}
	var v []json.RawMessage
	if json.Unmarshal(f.m[key], &v) != nil {
		f.wrong(key, "an array")
		return nil
	}
	return v
}

// object reads a member that is an object; nil if it is not given.
func (f *fields) object(key string) *fields {
	if !f.has(key) {
		return nil
	}
	o, err := object(f.m[key], f.name(key))
	if err != nil {
		if f.err == nil {
			f.err = err
		}
		return nil
	}
	return o
}

// asType is errors.As for a type error of the JSON decoder.
func asType(err error, to **json.UnmarshalTypeError) bool {
	t, ok := err.(*json.UnmarshalTypeError)
	if ok {
		*to = t
	}
	return ok
}

// element names an element of an array in messages.
func element(at string, i int) string { return fmt.Sprintf("%s[%d]", at, i) }
