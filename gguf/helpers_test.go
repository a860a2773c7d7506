package gguf

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// raw builds file bytes field by field, sane or not.
type raw []byte

func (r raw) u32(v uint32) raw { return binary.LittleEndian.AppendUint32(r, v) }
func (r raw) u64(v uint64) raw { return binary.LittleEndian.AppendUint64(r, v) }
func (r raw) b(v ...byte) raw  { return append(r, v...) }
func (r raw) str(s string) raw { return append(r.u64(uint64(len(s))), s...) }
func (r raw) pad(n int) raw    { return append(r, make([]byte, n)...) }

// head starts a version 3 file with the given counts.
func head(tensors, pairs uint64) raw { return raw("GGUF").u32(3).u64(tensors).u64(pairs) }

// info appends a tensor info.
func (r raw) info(name string, typ uint32, offset uint64, dims ...uint64) raw {
	r = r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r = r.u64(d)
	}
	return r.u32(typ).u64(offset)
}

// data pads to the data section and appends n bytes.
func (r raw) data(n int) raw { return r.pad(int(roundUp(int64(len(r)), 32)) - len(r) + n) }

// write is the bytes of f.
func write(t testing.TB, f WriteFile) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// openBytes reads a file held in memory.
func openBytes(b []byte) (*File, error) {
	return OpenReader(bytes.NewReader(b), int64(len(b)), "mem.gguf")
}

func mustOpen(t testing.TB, b []byte) *File {
	t.Helper()
	f, err := openBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fill is n bytes that differ from their neighbours.
func fill(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
	return b
}

// sample is a small file with every value type, an expert stack, a scalar and an empty tensor.
func sample() WriteFile {
	return WriteFile{
		Metadata: []Field{
			{"general.architecture", "toy"},
			{"a.u8", uint8(200)}, {"a.i8", int8(-3)}, {"a.u16", uint16(60000)}, {"a.i16", int16(-300)},
			{"a.u32", uint32(4e9)}, {"a.i32", int32(-7)}, {"a.u64", uint64(1 << 63)}, {"a.i64", int64(-1 << 63)},
			{"a.f32", float32(0.5)}, {"a.f64", 1e-300}, {"a.true", true}, {"a.false", false},
			{"a.strings", []string{"", "a", "\xff\x00b", "long enough"}}, {"a.no_strings", []string{}},
			{"a.bools", []bool{true, false, true}}, {"a.i32s", []int32{-1, 0, 1}}, {"a.u64s", []uint64{1, 1 << 63}},
			{"a.f32s", []float32{1, -2.5}}, {"a.f64s", []float64{3}}, {"a.u8s", []uint8{1, 2}}, {"a.i8s", []int8{-1}},
			{"a.u16s", []uint16{9}}, {"a.i16s", []int16{-9}}, {"a.u32s", []uint32{7}}, {"a.i64s", []int64{-8}},
		},
		Tensors: []WriteTensor{
			{Name: "token_embd.weight", Type: Q8_0, Dims: []uint64{64, 3}, Data: fill(1, 2*34*3)},
			{Name: "blk.0.ffn_up_exps.weight", Type: Q6_K, Dims: []uint64{256, 2, 3}, Data: fill(2, 210*2*3)},
			{Name: "norm", Type: F32, Dims: []uint64{5}, Data: fill(3, 20)},
			{Name: "empty", Type: F32, Dims: []uint64{4, 0}},
			{Name: "scalar", Type: F16, Dims: nil, Data: fill(4, 2)},
		},
	}
}
