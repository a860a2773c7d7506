package synth

import (
	"fmt"
	"strings"

	"terrace/gguf"
	"terrace/quant"
)

// typeNamed finds a weight type by the name that ggml gives it, any case.
func typeNamed(name string) (gguf.Type, error) {
	for t := gguf.Type(0); t < 64; t++ {
		if quant.Encodable(t) && strings.EqualFold(t.String(), name) {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%q is no weight type", name)
}

// fits puts another type in t's place where rows of n elements are not whole blocks of 256, as quantisers do.
func fits(t gguf.Type, n int) gguf.Type {
	if n%t.BlockSize() == 0 {
		return t
	}
	switch t {
	case gguf.IQ1S, gguf.IQ1M, gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ3S, gguf.IQ4XS:
		return gguf.IQ4NL
	case gguf.Q2_K, gguf.Q3_K, gguf.TQ1_0, gguf.TQ2_0:
		return gguf.Q4_0
	case gguf.Q4_K:
		return gguf.Q5_0
	case gguf.Q5_K:
		return gguf.Q5_1
	case gguf.Q6_K:
		return gguf.Q8_0
	}
	return t
}

// expertTypes are the types of an expert's three matrices, before the rule of 256.
type expertTypes struct{ gate, up, down gguf.Type }

// mix gives each layer's experts their types.
type mix struct {
	label gguf.Type // what general.file_type says
	of    func(layer, layers int) expertTypes
}

// The mixes with a name of their own. q4_k_m: llama.cpp's, whose down matrices have more bits in half of the layers.
// ud-q4_k_xl: the release of Qwen3.8-Flash-Next.
var mixes = map[string]mix{
	"q4_k_m": {gguf.Q4_K, func(l, n int) expertTypes {
		x := expertTypes{gguf.Q4_K, gguf.Q4_K, gguf.Q4_K}
		if l < n/8 || l >= 7*n/8 || (l-n/8)%3 == 2 {
			x.down = gguf.Q6_K
		}
		return x
	}},
	"ud-q4_k_xl": {gguf.Q4_K, func(l, _ int) expertTypes {
		x := expertTypes{gguf.Q4_K, gguf.Q4_K, gguf.Q5_1}
		switch l {
		case 2:
			x = expertTypes{gguf.Q5_K, gguf.Q5_K, gguf.Q8_0}
		case 4, 30, 46, 47:
			x.down = gguf.Q8_0
		}
		return x
	}},
}

// parseMix reads a mix's name, TYPE for all three matrices, GATEUP+DOWN or GATE+UP+DOWN.
func parseMix(s string) (mix, error) {
	if m, ok := mixes[strings.ToLower(s)]; ok {
		return m, nil
	}
	var t []gguf.Type
	for _, name := range strings.Split(s, "+") {
		x, err := typeNamed(name)
		if err != nil {
			return mix{}, fmt.Errorf("quant %q: %w and no mix: want TYPE, GATEUP+DOWN, GATE+UP+DOWN, q4_k_m or ud-q4_k_xl", s, err)
		}
		t = append(t, x)
	}
	var x expertTypes
	switch len(t) {
	case 1:
		x = expertTypes{t[0], t[0], t[0]}
	case 2:
		x = expertTypes{t[0], t[0], t[1]}
	case 3:
		x = expertTypes{t[0], t[1], t[2]}
	default:
		return mix{}, fmt.Errorf("quant %q has %d types, want 1 to 3", s, len(t))
	}
	return mix{t[0], func(int, int) expertTypes { return x }}, nil
}

// fileTypes are the labels of general.file_type; other types have F32's.
var fileTypes = map[gguf.Type]uint32{
	gguf.F16: 1, gguf.Q4_0: 2, gguf.Q4_1: 3, gguf.Q8_0: 7, gguf.Q5_0: 8, gguf.Q5_1: 9, gguf.Q2_K: 10, gguf.Q3_K: 12, gguf.Q4_K: 15, gguf.Q5_K: 17, gguf.Q6_K: 18,
	gguf.IQ2XXS: 19, gguf.IQ2XS: 20, gguf.IQ3XXS: 23, gguf.IQ1S: 24, gguf.IQ4NL: 25, gguf.IQ3S: 26, gguf.IQ2S: 28, gguf.IQ4XS: 30, gguf.IQ1M: 31, gguf.BF16: 32,
	gguf.TQ1_0: 36, gguf.TQ2_0: 37, gguf.MXFP4: 38, gguf.NVFP4: 39, gguf.Q1_0: 40, gguf.Q2_0: 41,
}
