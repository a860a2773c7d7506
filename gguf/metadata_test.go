package gguf

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func sampleMeta(t testing.TB) *Metadata {
	w := sample()
	w.Metadata = append(w.Metadata, Field{"a.line", "two\nlines"}, Field{"a.long", strings.Repeat("é", 100)},
		Field{"a.many", make([]int32, 1000)})
	return mustOpen(t, write(t, w)).Metadata
}

// errAll wants each error to name the file and to hold all parts.
func errAll(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, parts)
		return
	}
	for _, p := range append(parts, "mem.gguf: ") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v\nlacks %q", what, err, p)
		}
	}
}

func TestScalars(t *testing.T) {
	m := sampleMeta(t)
	for key, want := range map[string]uint64{"a.u8": 200, "a.u16": 60000, "a.u32": 4e9, "a.u64": 1 << 63} {
		if got, err := m.Uint(key); err != nil || got != want {
			t.Errorf("Uint %s: %d %v, want %d", key, got, err, want)
		}
		if got, err := m.UintOr(key, 5); err != nil || got != want {
			t.Errorf("UintOr %s: %d %v, want %d", key, got, err, want)
		}
	}
	for key, n := range map[string]string{"a.i8": "-3", "a.i16": "-300", "a.i32": "-7", "a.i64": "-9223372036854775808"} {
		_, err := m.Uint(key)
		errAll(t, "Uint "+key, err, `"`+key+`" is `+n+", want at least 0")
	}
	for key, want := range map[string]float64{"a.f32": 0.5, "a.f64": 1e-300, "a.i16": -300, "a.u64": 1 << 63, "a.i64": -1 << 63} {
		if got, err := m.Float(key); err != nil || got != want {
			t.Errorf("Float %s: %v %v, want %v", key, got, err, want)
		}
		if got, err := m.FloatOr(key, 5); err != nil || got != want {
			t.Errorf("FloatOr %s: %v %v, want %v", key, got, err, want)
		}
	}
	for key, want := range map[string]bool{"a.true": true, "a.false": false} {
		if got, err := m.Bool(key); err != nil || got != want {
			t.Errorf("Bool %s: %v %v", key, got, err)
		}
		if got, err := m.BoolOr(key, !want); err != nil || got != want {
			t.Errorf("BoolOr %s: %v %v", key, got, err)
		}
	}
	if s, err := m.String("general.architecture"); err != nil || s != "toy" {
		t.Errorf("String: %q %v", s, err)
	}
	if s, err := m.StringOr("general.architecture", "x"); err != nil || s != "toy" {
		t.Errorf("StringOr: %q %v", s, err)
	}
}

func TestDefaults(t *testing.T) {
	m := sampleMeta(t)
	if m.Has("no") || !m.Has("a.u8") {
		t.Error("Has")
	}
	if s, err := m.StringOr("no", "d"); s != "d" || err != nil {
		t.Errorf("StringOr: %q %v", s, err)
	}
	if n, err := m.UintOr("no", 7); n != 7 || err != nil {
		t.Errorf("UintOr: %d %v", n, err)
	}
	if f, err := m.FloatOr("no", 0.25); f != 0.25 || err != nil {
		t.Errorf("FloatOr: %v %v", f, err)
	}
	if b, err := m.BoolOr("no", true); !b || err != nil {
		t.Errorf("BoolOr: %v %v", b, err)
	}
}

// TestGetterErrors asks every getter for a missing key and for a key of another type; a default does not hide the latter.
func TestGetterErrors(t *testing.T) {
	m := sampleMeta(t)
	get := func(f func() error) error { return f() }
	for _, c := range []struct {
		name, key, is, want string
		ask                 func(key string) error
	}{
		{"String", "a.u8", "uint8", "string", func(k string) error { _, err := m.String(k); return err }},
		{"Uint", "a.f32", "float32", "an integer", func(k string) error { _, err := m.Uint(k); return err }},
		{"Uint", "a.true", "bool", "an integer", func(k string) error { _, err := m.Uint(k); return err }},
		{"Uint", "a.u8s", "array of uint8", "an integer", func(k string) error { _, err := m.Uint(k); return err }},
		{"Float", "a.true", "bool", "a number", func(k string) error { _, err := m.Float(k); return err }},
		{"Float", "general.architecture", "string", "a number", func(k string) error { _, err := m.Float(k); return err }},
		{"Bool", "a.u8", "uint8", "bool", func(k string) error { _, err := m.Bool(k); return err }},
		{"Strings", "general.architecture", "string", "array of string", func(k string) error { _, err := m.Strings(k); return err }},
		{"Strings", "a.i32s", "array of int32", "array of string", func(k string) error { _, err := m.Strings(k); return err }},
		{"Ints", "a.f32s", "array of float32", "integers or bools", func(k string) error { _, err := m.Ints(k); return err }},
		{"Ints", "a.strings", "array of string", "integers or bools", func(k string) error { _, err := m.Ints(k); return err }},
		{"Floats", "a.strings", "array of string", "numbers", func(k string) error { _, err := m.Floats(k); return err }},
		{"Floats", "a.bools", "array of bool", "numbers", func(k string) error { _, err := m.Floats(k); return err }},
	} {
		errAll(t, c.name, c.ask(c.key), `metadata key "`+c.key+`" is `+c.is+", want "+c.want)
		errAll(t, c.name, c.ask("no.such"), `metadata key "no.such" is missing`)
	}
	errAll(t, "StringOr", get(func() error { _, err := m.StringOr("a.u8", ""); return err }), "is uint8, want string")
	errAll(t, "UintOr", get(func() error { _, err := m.UintOr("a.f32", 1); return err }), "is float32, want an integer")
	errAll(t, "FloatOr", get(func() error { _, err := m.FloatOr("a.true", 1); return err }), "is bool, want a number")
	errAll(t, "BoolOr", get(func() error { _, err := m.BoolOr("a.u8", true); return err }), "is uint8, want bool")
}

func TestArrays(t *testing.T) {
	m := sampleMeta(t)
	for key, want := range map[string][]int64{
		"a.bools": {1, 0, 1}, "a.i32s": {-1, 0, 1}, "a.u8s": {1, 2}, "a.i8s": {-1}, "a.u16s": {9}, "a.i16s": {-9}, "a.u32s": {7}, "a.i64s": {-8},
		"a.u8": {200}, "a.i64": {math.MinInt64}, "a.true": {1},
	} {
		if got, err := m.Ints(key); err != nil || !slices.Equal(got, want) {
			t.Errorf("Ints %s: %v %v, want %v", key, got, err, want)
		}
	}
	_, err := m.Ints("a.u64s")
	errAll(t, "Ints", err, `"a.u64s": element 1 is 9223372036854775808, over the limit of 9223372036854775807`)
	for key, want := range map[string][]float64{
		"a.f32s": {1, -2.5}, "a.f64s": {3}, "a.i32s": {-1, 0, 1}, "a.f32": {0.5}, "a.u64s": {1, 1 << 63},
	} {
		if got, err := m.Floats(key); err != nil || !slices.Equal(got, want) {
			t.Errorf("Floats %s: %v %v, want %v", key, got, err, want)
		}
	}
	s, err := m.Strings("a.strings")
	if err != nil || s.Len() != 4 || s.At(0) != "" || s.At(2) != "\xff\x00b" || string(s.Bytes(3)) != "long enough" {
		t.Errorf("Strings: %v %v", s, err)
	}
	if s, err := m.Strings("a.no_strings"); err != nil || s.Len() != 0 {
		t.Errorf("Strings of none: %v %v", s, err)
	}
	if (&StringArray{}).Len() != 0 {
		t.Error("the zero StringArray is not empty")
	}
}

func TestEntries(t *testing.T) {
	m := sampleMeta(t)
	got := map[string]Entry{}
	var keys []string
	for e := range m.Entries() {
		got[e.Key] = e
		keys = append(keys, e.Key)
		if !printable(e.Value) || len(e.Value) > 160 {
			t.Errorf("%s: value not fit for a line: %q", e.Key, e.Value)
		}
	}
	for range m.Entries() {
		break // a walk may stop early
	}
	if len(keys) != m.Len() || keys[0] != "general.architecture" || keys[len(keys)-1] != "a.many" {
		t.Errorf("order: %v", keys)
	}
	want := []Entry{
		{"general.architecture", "string", `"toy"`},
		{"a.i16", "int16", "-300"},
		{"a.u64", "uint64", "9223372036854775808"},
		{"a.f32", "float32", "0.5"},
		{"a.f64", "float64", "1e-300"},
		{"a.true", "bool", "true"},
		{"a.strings", "array of string", `["", "a", "\xff\x00b", "long enough"]`},
		{"a.no_strings", "array of string", "[]"},
		{"a.bools", "array of bool", "[true, false, true]"},
		{"a.line", "string", `"two\nlines"`},
		{"a.long", "string", `"` + strings.Repeat("é", 30) + `..."`},
		{"a.many", "array of int32", "[" + strings.Repeat("0, ", 27) + "... 1000 in all]"},
	}
	for _, w := range want {
		if d := cmp.Diff(w, got[w.Key]); d != "" {
			t.Errorf("%s: %s", w.Key, d)
		}
	}
}

func TestKindNames(t *testing.T) {
	if s := Kind(13).String(); s != "value type 13" {
		t.Error(s)
	}
	if KindArray.size() != 0 || KindString.size() != 0 || Kind(13).size() != 0 || KindInt16.size() != 2 {
		t.Error("sizes")
	}
}

func printable(s string) bool {
	for _, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}
