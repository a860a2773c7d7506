package gguf

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
)

// Kind is the type id of a metadata value, as stored in the file.
type Kind uint32

// The value types of the format.
const (
	KindUint8   Kind = 0
	KindInt8    Kind = 1
	KindUint16  Kind = 2
	KindInt16   Kind = 3
	KindUint32  Kind = 4
	KindInt32   Kind = 5
	KindFloat32 Kind = 6
	KindBool    Kind = 7
	KindString  Kind = 8
	KindArray   Kind = 9
	KindUint64  Kind = 10
	KindInt64   Kind = 11
	KindFloat64 Kind = 12

	kindLast = KindFloat64
)

var kindTable = [...]struct {
	name string
	size int // bytes of a scalar
}{
	KindUint8: {"uint8", 1}, KindInt8: {"int8", 1}, KindUint16: {"uint16", 2}, KindInt16: {"int16", 2},
	KindUint32: {"uint32", 4}, KindInt32: {"int32", 4}, KindFloat32: {"float32", 4}, KindBool: {"bool", 1},
	KindString: {"string", 0}, KindArray: {"array", 0},
	KindUint64: {"uint64", 8}, KindInt64: {"int64", 8}, KindFloat64: {"float64", 8},
}

func (k Kind) String() string {
	if k > kindLast {
		return fmt.Sprintf("value type %d", uint32(k))
	}
	return kindTable[k].name
}

// size is the number of bytes of a scalar of kind k, 0 for strings, arrays and unknown kinds.
func (k Kind) size() int {
	if k > kindLast {
		return 0
	}
	return kindTable[k].size
}

// Metadata is the ordered list of a model's key-value pairs. It does not change and may be shared by goroutines.
// Getters answer an error that names file, key and what disagrees when a key is missing or holds another type;
// those with a default answer it for a missing key only.
type Metadata struct {
	file  string
	pairs []pair
	index map[string]int
}

type pair struct {
	key string
	val value
}

// value holds a scalar's bits, a string's bytes, or an array: bits elements of kind elem, for strings as one block with
// offsets, for numbers as the file's own bytes.
type value struct {
	kind, elem Kind
	bits       uint64
	data       string
	offs       []uint32
}

func (v value) typeName() string {
	if v.kind == KindArray {
		return "array of " + v.elem.String()
	}
	return v.kind.String()
}

// at is element i of a numeric array, or the scalar itself, as a scalar.
func (v value) at(i int) value {
	if v.kind != KindArray {
		return v
	}
	var w [8]byte
	n := v.elem.size()
	copy(w[:], v.data[i*n:(i+1)*n])
	return value{kind: v.elem, bits: binary.LittleEndian.Uint64(w[:])}
}

// len is the number of elements of an array; a scalar has one.
func (v value) len() int {
	if v.kind != KindArray {
		return 1
	}
	return int(v.bits)
}

// int is the value of an integer scalar as sign and size: neg tells that the number is int64(n), else it is n.
func (v value) int() (n uint64, neg, ok bool) {
	switch v.kind {
	case KindUint8, KindUint16, KindUint32, KindUint64:
		return v.bits, false, true
	case KindInt8, KindInt16, KindInt32, KindInt64:
		// Sign-extended from the stored width; the bits above it are zero.
		shift := 64 - 8*v.kind.size()
		s := int64(v.bits<<shift) >> shift
		return uint64(s), s < 0, true
	}
	return 0, false, false
}

// float is the value of a number scalar.
func (v value) float() (float64, bool) {
	switch v.kind {
	case KindFloat32:
		return float64(math.Float32frombits(uint32(v.bits))), true
	case KindFloat64:
		return math.Float64frombits(v.bits), true
	}
	n, neg, ok := v.int()
	if neg {
		return float64(int64(n)), ok
	}
	return float64(n), ok
}

func (m *Metadata) find(key string) (value, bool) {
	i, ok := m.index[key]
	if !ok {
		return value{}, false
	}
	return m.pairs[i].val, true
}

func (m *Metadata) get(key string) (value, error) {
	v, ok := m.find(key)
	if !ok {
		return v, fmt.Errorf("%s: metadata key %q is missing", m.file, key)
	}
	return v, nil
}

func (m *Metadata) wrongType(key string, v value, want string) error {
	return fmt.Errorf("%s: metadata key %q is %s, want %s", m.file, key, v.typeName(), want)
}

// File is the path of the file, as errors about its metadata give it.
func (m *Metadata) File() string { return m.file }

// Len is the number of pairs.
func (m *Metadata) Len() int { return len(m.pairs) }

// Has reports whether key is present, whatever its type.
func (m *Metadata) Has(key string) bool { _, ok := m.index[key]; return ok }

// String answers a string's bytes as stored; they need not be UTF-8.
func (m *Metadata) String(key string) (string, error) {
	v, err := m.get(key)
	if err != nil {
		return "", err
	}
	if v.kind != KindString {
		return "", m.wrongType(key, v, "string")
	}
	return v.data, nil
}

// StringOr is String, or def for a missing key.
func (m *Metadata) StringOr(key, def string) (string, error) {
	if !m.Has(key) {
		return def, nil
	}
	return m.String(key)
}

// Uint answers an integer of any width that is not negative.
func (m *Metadata) Uint(key string) (uint64, error) {
	v, err := m.get(key)
	if err != nil {
		return 0, err
	}
	n, neg, ok := v.int()
	if !ok {
		return 0, m.wrongType(key, v, "an integer")
	}
	if neg {
		return 0, fmt.Errorf("%s: metadata key %q is %d, want at least 0", m.file, key, int64(n))
	}
	return n, nil
}

// UintOr is Uint, or def for a missing key.
func (m *Metadata) UintOr(key string, def uint64) (uint64, error) {
	if !m.Has(key) {
		return def, nil
	}
	return m.Uint(key)
}

// Float answers a float32, float64 or integer.
func (m *Metadata) Float(key string) (float64, error) {
	v, err := m.get(key)
	if err != nil {
		return 0, err
	}
	f, ok := v.float()
	if !ok {
		return 0, m.wrongType(key, v, "a number")
	}
	return f, nil
}

// FloatOr is Float, or def for a missing key.
func (m *Metadata) FloatOr(key string, def float64) (float64, error) {
	if !m.Has(key) {
		return def, nil
	}
	return m.Float(key)
}

// Bool answers a bool.
func (m *Metadata) Bool(key string) (bool, error) {
	v, err := m.get(key)
	if err != nil {
		return false, err
	}
	if v.kind != KindBool {
		return false, m.wrongType(key, v, "bool")
	}
	return v.bits == 1, nil
}

// BoolOr is Bool, or def for a missing key.
func (m *Metadata) BoolOr(key string, def bool) (bool, error) {
	if !m.Has(key) {
		return def, nil
	}
	return m.Bool(key)
}

// Ints answers an array of integers or bools (0 and 1); a single integer or bool gives an array of one.
func (m *Metadata) Ints(key string) ([]int64, error) {
	v, err := m.get(key)
	if err != nil {
		return nil, err
	}
	e := v.kind
	if e == KindArray {
		e = v.elem
	}
	if _, _, ok := (value{kind: e}).int(); !ok && e != KindBool {
		return nil, m.wrongType(key, v, "integers or bools")
	}
	out := make([]int64, v.len())
	for i := range out {
		x := v.at(i)
		n, neg, _ := x.int()
		if x.kind == KindBool {
			n = x.bits
		}
		if n > math.MaxInt64 && !neg {
			return nil, fmt.Errorf("%s: metadata key %q: element %d is %d, over the limit of %d", m.file, key, i, n, int64(math.MaxInt64))
		}
		out[i] = int64(n)
	}
	return out, nil
}

// Floats answers an array of numbers; a single number gives an array of one.
func (m *Metadata) Floats(key string) ([]float64, error) {
	v, err := m.get(key)
	if err != nil {
		return nil, err
	}
	e := v.kind
	if e == KindArray {
		e = v.elem
	}
	if _, ok := (value{kind: e}).float(); !ok {
		return nil, m.wrongType(key, v, "numbers")
	}
	out := make([]float64, v.len())
	for i := range out {
		out[i], _ = v.at(i).float()
	}
	return out, nil
}

// Strings answers an array of strings. It shares the metadata's memory.
func (m *Metadata) Strings(key string) (*StringArray, error) {
	v, err := m.get(key)
	if err != nil {
		return nil, err
	}
	if v.kind != KindArray || v.elem != KindString {
		return nil, m.wrongType(key, v, "array of string")
	}
	return &StringArray{v.data, v.offs}, nil
}

// StringArray is a read-only list of strings, kept as one block so that a vocabulary costs the collector nothing.
type StringArray struct {
	data string
	offs []uint32 // Len + 1 of them
}

// Len is the number of strings.
func (s *StringArray) Len() int { return max(len(s.offs)-1, 0) }

// At answers string i without allocating. The bytes are the file's and need not be UTF-8.
func (s *StringArray) At(i int) string { return s.data[s.offs[i]:s.offs[i+1]] }

// Bytes answers a copy of string i.
func (s *StringArray) Bytes(i int) []byte { return []byte(s.At(i)) }

// Entry is one pair for people to read.
type Entry struct {
	Key   string
	Type  string // such as "uint32" or "array of string"
	Value string // printable, one line, at most about 100 characters
}

// Entries walks the pairs in file order.
func (m *Metadata) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, p := range m.pairs {
			if !yield(Entry{p.key, p.val.typeName(), p.val.text()}) {
				return
			}
		}
	}
}

// text is a short printable form of v.
func (v value) text() string {
	const most = 80 // bytes of an array's elements
	switch v.kind {
	case KindString:
		return strconv.Quote(short(v.data))
	case KindArray:
	default:
		return v.scalarText()
	}
	var b strings.Builder
	b.WriteByte('[')
	for i := range v.len() {
		if i > 0 {
			b.WriteString(", ")
		}
		var s string
		if v.elem == KindString {
			s = strconv.Quote(short(v.data[v.offs[i]:v.offs[i+1]]))
		} else {
			s = v.at(i).scalarText()
		}
		if i > 0 && b.Len()+len(s) > most {
			fmt.Fprintf(&b, "... %d in all", v.len())
			break
		}
		b.WriteString(s)
	}
	b.WriteByte(']')
	return b.String()
}

func (v value) scalarText() string {
	switch v.kind {
	case KindBool:
		return strconv.FormatBool(v.bits == 1)
	case KindFloat32:
		return strconv.FormatFloat(float64(math.Float32frombits(uint32(v.bits))), 'g', -1, 32)
	case KindFloat64:
		return strconv.FormatFloat(math.Float64frombits(v.bits), 'g', -1, 64)
	}
	n, neg, _ := v.int()
	if neg {
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatUint(n, 10)
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

// Fields answers the pairs in file order with values of Go types that Write takes, for tools that copy a header.
func (m *Metadata) Fields() []Field {
	out := make([]Field, len(m.pairs))
	for i, p := range m.pairs {
		out[i] = Field{p.key, p.val.goValue()}
	}
	return out
}

func (v value) goValue() any {
	if v.kind == KindString {
		return v.data
	}
	if v.kind == KindArray && v.elem == KindString {
		return &StringArray{v.data, v.offs}
	}
	k := v.kind
	if k == KindArray {
		k = v.elem
	}
	switch k {
	case KindUint8:
		return goNumbers(v, func(b uint64) uint8 { return uint8(b) })
	case KindInt8:
		return goNumbers(v, func(b uint64) int8 { return int8(b) })
	case KindUint16:
		return goNumbers(v, func(b uint64) uint16 { return uint16(b) })
	case KindInt16:
		return goNumbers(v, func(b uint64) int16 { return int16(b) })
	case KindUint32:
		return goNumbers(v, func(b uint64) uint32 { return uint32(b) })
	case KindInt32:
		return goNumbers(v, func(b uint64) int32 { return int32(b) })
	case KindUint64:
		return goNumbers(v, func(b uint64) uint64 { return b })
	case KindInt64:
		return goNumbers(v, func(b uint64) int64 { return int64(b) })
	case KindFloat32:
		return goNumbers(v, func(b uint64) float32 { return math.Float32frombits(uint32(b)) })
	case KindFloat64:
		return goNumbers(v, math.Float64frombits)
	case KindBool:
		return goNumbers(v, func(b uint64) bool { return b == 1 })
	}
	panic("gguf: metadata value of " + k.String() + " got past the reader")
}

// goNumbers is v as a T, or as a []T when v is an array.
func goNumbers[T any](v value, from func(bits uint64) T) any {
	if v.kind != KindArray {
		return from(v.bits)
	}
	out := make([]T, v.len())
	for i := range out {
		out[i] = from(v.at(i).bits)
	}
	return out
}
