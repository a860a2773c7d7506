// Package quant says what the bytes of a weight tensor mean: one slow, clear decoder for each ggml type, which kernels
// and shaders are compared with. It is not for speed, and it knows neither files nor shapes beyond a run of whole blocks.
package quant

import (
	"fmt"

	"terrace/gguf"
)

// blockDecoder expands one block. dst has the type's block size in elements, src its block size in bytes.
type blockDecoder func(dst []float32, src []byte)

// decoderOf returns the decoder of t, nil when t holds no weights that this room can read. The integer types, F64 and
// the activation formats Q8_1 and Q8_K are such.
func decoderOf(t gguf.Type) blockDecoder {
	switch t {
	case gguf.F32:
		return decodeF32
	case gguf.F16:
		return decodeF16
	case gguf.BF16:
		return decodeBF16
	case gguf.Q4_0:
		return decodeQ4_0
	case gguf.Q4_1:
		return decodeQ4_1
	case gguf.Q5_0:
		return decodeQ5_0
	case gguf.Q5_1:
		return decodeQ5_1
	case gguf.Q8_0:
		return decodeQ8_0
	case gguf.Q2_K:
		return decodeQ2K
	case gguf.Q3_K:
		return decodeQ3K
	case gguf.Q4_K:
		return decodeQ4K
	case gguf.Q5_K:
		return decodeQ5K
	case gguf.Q6_K:
		return decodeQ6K
	case gguf.IQ1S:
		return decodeIQ1S
	case gguf.IQ1M:
		return decodeIQ1M
	case gguf.IQ2XXS:
		return decodeIQ2XXS
	case gguf.IQ2XS:
		return decodeIQ2XS
	case gguf.IQ2S:
		return decodeIQ2S
	case gguf.IQ3XXS:
		return decodeIQ3XXS
	case gguf.IQ3S:
		return decodeIQ3S
	case gguf.IQ4NL:
		return decodeIQ4NL
	case gguf.IQ4XS:
		return decodeIQ4XS
	case gguf.MXFP4:
		return decodeMXFP4
	case gguf.NVFP4:
		return decodeNVFP4
	case gguf.Q1_0:
		return decodeQ1_0
	case gguf.Q2_0:
		return decodeQ2_0
	case gguf.TQ1_0:
		return decodeTQ1_0
	case gguf.TQ2_0:
		return decodeTQ2_0
	}
	return nil
}

// Supported reports whether Decode can read t.
func Supported(t gguf.Type) bool { return decoderOf(t) != nil }

// Decode expands src, whole blocks of type t, into len(dst) float32 weights. The order of float operations is ggml's, so
// the results have its bits. Any bytes are accepted: a block whose scale is NaN or infinite decodes to such values.
//
// It fails, and leaves dst alone, when t is not Supported, when len(dst) is no multiple of t.BlockSize(), and when
// len(src) is not exactly t.RowBytes(len(dst)).
func Decode(t gguf.Type, dst []float32, src []byte) error {
	dec := decoderOf(t)
	if dec == nil {
		return fmt.Errorf("quant: no decoder for %v", t)
	}
	if err := checkSizes(t, len(dst), len(src)); err != nil {
		return err
	}
	n, b := t.BlockSize(), t.BlockBytes()
	for len(dst) > 0 {
		dec(dst[:n], src[:b])
		dst, src = dst[n:], src[b:]
	}
	return nil
}

// checkSizes tells whether elems values of type t fill exactly size bytes.
func checkSizes(t gguf.Type, elems, size int) error {
	if n := t.BlockSize(); elems%n != 0 {
		return fmt.Errorf("quant: %v: %d elements are not whole blocks of %d", t, elems, n)
	}
	if want := t.RowBytes(elems); size != want {
		return fmt.Errorf("quant: %v: %d elements take %d bytes, have %d", t, elems, want, size)
	}
	return nil
}
