package gguf

import "fmt"

// Type is a ggml tensor type id as stored in a GGUF tensor info.
type Type uint32

// The ggml type ids that current files may contain (ggml.h). Ids 4, 5, 31-33 and 36-38 are retired.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	Q8_K   Type = 15
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ1S   Type = 19
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	IQ1M   Type = 29
	BF16   Type = 30
	TQ1_0  Type = 34
	TQ2_0  Type = 35
	MXFP4  Type = 39
	NVFP4  Type = 40
	Q1_0   Type = 41
	Q2_0   Type = 42
)

// lastType is the highest id in use; retired holds the ids below it that no current writer uses.
const lastType = Q2_0

var retired = []Type{4, 5, 31, 32, 33, 36, 37, 38}

// typeInfo is one row of the ggml type table: elements and bytes per block.
type typeInfo struct {
	name        string
	block, size int
}

var typeTable = map[Type]typeInfo{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36},
	Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176},
	Q6_K: {"Q6_K", 256, 210}, Q8_K: {"Q8_K", 256, 292},
	IQ2XXS: {"IQ2_XXS", 256, 66}, IQ2XS: {"IQ2_XS", 256, 74}, IQ2S: {"IQ2_S", 256, 82},
	IQ3XXS: {"IQ3_XXS", 256, 98}, IQ3S: {"IQ3_S", 256, 110},
	IQ1S: {"IQ1_S", 256, 50}, IQ1M: {"IQ1_M", 256, 56},
	IQ4NL: {"IQ4_NL", 32, 18}, IQ4XS: {"IQ4_XS", 256, 136},
	TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66},
	MXFP4: {"MXFP4", 32, 17}, NVFP4: {"NVFP4", 64, 36}, Q1_0: {"Q1_0", 128, 18}, Q2_0: {"Q2_0", 64, 18},
	I8: {"I8", 1, 1}, I16: {"I16", 1, 2}, I32: {"I32", 1, 4}, I64: {"I64", 1, 8}, F64: {"F64", 1, 8},
}

// Known reports whether t is a type that a current GGUF file may contain.
func (t Type) Known() bool { _, ok := typeTable[t]; return ok }

// BlockSize is the number of elements in one block of t, 0 when t is unknown.
func (t Type) BlockSize() int { return typeTable[t].block }

// BlockBytes is the number of bytes in one block of t, 0 when t is unknown.
func (t Type) BlockBytes() int { return typeTable[t].size }

// RowBytes is the number of bytes of a row of n elements. It panics when t is unknown or n is not a multiple of BlockSize.
func (t Type) RowBytes(n int) int {
	i := typeTable[t]
	if i.block == 0 || n < 0 || n%i.block != 0 {
		panic(fmt.Sprintf("gguf: RowBytes of %d elements of %s, whose blocks have %d", n, t, i.block))
	}
	return n / i.block * i.size
}

func (t Type) String() string {
	if i, ok := typeTable[t]; ok {
		return i.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}
