package kernels

import (
	"fmt"

	"terrace/gguf"
)

func panicf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// super is a 256-block taken apart: element i has the value d*scale[i/16]*q[i] - dmin*min[i/16].
type super struct {
	q          [256]int8
	scale, min [16]int16
	d, dmin    float32
}

// run is 32 elements of a type with float scales taken apart: element i has the value d[i/16]*q[i] + m. d[0] == d[1]
// but for NVFP4.
type run struct {
	q [32]int8
	d [2]float32
	m float32
}

// weightType says how a weight type is multiplied. One of unpack256 and unpack32 is set for quantised types.
type weightType struct {
	ok   bool
	act  ActKind
	mins bool // super.min and dmin, or run.m, take part
	// halves: the two halves of a run of 32 have scales of their own and are accumulated one after the other.
	halves    bool
	unpack256 func(s *super, block []byte)
	unpack32  func(r *run, row []byte, i int) // the i-th run of 32 of a row
}

// weightTable is indexed by gguf.Type.
var weightTable = [...]weightType{
	gguf.F32:  {ok: true, act: ActF32},
	gguf.F16:  {ok: true, act: ActF32},
	gguf.BF16: {ok: true, act: ActF32},

	gguf.Q4_0:  {ok: true, act: Act32, unpack32: unpackQ4_0},
	gguf.Q4_1:  {ok: true, act: Act32, mins: true, unpack32: unpackQ4_1},
	gguf.Q5_0:  {ok: true, act: Act32, unpack32: unpackQ5_0},
	gguf.Q5_1:  {ok: true, act: Act32, mins: true, unpack32: unpackQ5_1},
	gguf.Q8_0:  {ok: true, act: Act32, unpack32: unpackQ8_0},
	gguf.IQ4NL: {ok: true, act: Act32, unpack32: unpackIQ4NL},
	gguf.MXFP4: {ok: true, act: Act32, unpack32: unpackMXFP4},
	gguf.NVFP4: {ok: true, act: Act32, halves: true, unpack32: unpackNVFP4},
	gguf.Q1_0:  {ok: true, act: Act32, unpack32: unpackQ1_0},
	gguf.Q2_0:  {ok: true, act: Act32, unpack32: unpackQ2_0},

	gguf.Q2_K:   {ok: true, act: Act256, mins: true, unpack256: unpackQ2K},
	gguf.Q3_K:   {ok: true, act: Act256, unpack256: unpackQ3K},
	gguf.Q4_K:   {ok: true, act: Act256, mins: true, unpack256: unpackQ4K},
	gguf.Q5_K:   {ok: true, act: Act256, mins: true, unpack256: unpackQ5K},
	gguf.Q6_K:   {ok: true, act: Act256, unpack256: unpackQ6K},
	gguf.IQ2XXS: {ok: true, act: Act256, unpack256: unpackIQ2XXS},
	gguf.IQ2XS:  {ok: true, act: Act256, unpack256: unpackIQ2XS},
	gguf.IQ2S:   {ok: true, act: Act256, unpack256: unpackIQ2S},
	gguf.IQ3XXS: {ok: true, act: Act256, unpack256: unpackIQ3XXS},
	gguf.IQ3S:   {ok: true, act: Act256, unpack256: unpackIQ3S},
	gguf.IQ1S:   {ok: true, act: Act256, unpack256: unpackIQ1S},
	gguf.IQ1M:   {ok: true, act: Act256, unpack256: unpackIQ1M},
	gguf.IQ4XS:  {ok: true, act: Act256, unpack256: unpackIQ4XS},
	gguf.TQ1_0:  {ok: true, act: Act256, unpack256: unpackTQ1},
	gguf.TQ2_0:  {ok: true, act: Act256, unpack256: unpackTQ2},
}
