package quant

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"terrace/gguf"
)

// allTypes are the types of weights that files may contain.
func allTypes() (all []gguf.Type) {
	for t := gguf.Type(0); t < 64; t++ {
		if Supported(t) {
			all = append(all, t)
		}
	}
	return all
}

func TestSupported(t *testing.T) {
	want := "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS " +
		"IQ1_M BF16 TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0"
	var got []string
	for _, ty := range allTypes() {
		got = append(got, ty.String())
	}
	if s := strings.Join(got, " "); s != want {
		t.Errorf("supported: %s\nwant: %s", s, want)
	}
}

func TestCodebookDigests(t *testing.T) {
	flat8 := func(rows int, at func(k int) [8]uint8) []byte {
		var b []byte
		for k := range rows {
			r := at(k)
			b = append(b, r[:]...)
		}
		return b
	}
	flat4 := func(rows int, at func(k int) [4]uint8) []byte {
		var b []byte
		for k := range rows {
			r := at(k)
			b = append(b, r[:]...)
		}
		return b
	}
	for _, c := range []struct {
		name              string
		codes             []uint16
		expanded          []byte
		compact, expandTo string
		even              bool
		bits              int
	}{
		{"256", codes256[:], flat8(256, func(k int) [8]uint8 { return Grid256()[k] }), "915952ebc4af8ddb", "05826b5d3e472a3a", true, 2},
		{"512", codes512[:], flat8(512, func(k int) [8]uint8 { return Grid512()[k] }), "f66435966ca8d64e", "06e47aaca60b4dc1", true, 2},
		{"1024", codes1024[:], flat8(1024, func(k int) [8]uint8 { return Grid1024()[k] }), "e6e75e121b65e8af", "e1aa1473412b0552", true, 2},
		{"1x2048", codes1x2048[:], flat8(2048, func(k int) [8]uint8 {
			var r [8]uint8
			for j, v := range Grid1x2048()[k] {
				r[j] = uint8(v)
			}
			return r
		}), "e9ffebfc997ad602", "07540ffc1aeaf6ad", false, 2},
		{"3x256", codes3x256[:], flat4(256, func(k int) [4]uint8 { return Grid3x256()[k] }), "c9678803c61b2210", "46e35f5a997efdee", true, 3},
		{"3x512", codes3x512[:], flat4(512, func(k int) [4]uint8 { return Grid3x512()[k] }), "353274c58dd7d8dc", "bd1af4945a1717c6", false, 3},
	} {
		var le bytes.Buffer
		binary.Write(&le, binary.LittleEndian, c.codes)
		if got := digest(le.Bytes()); got != c.compact {
			t.Errorf("grid %s: compact digest %s, want %s", c.name, got, c.compact)
		}
		if got := digest(c.expanded); got != c.expandTo {
			t.Errorf("grid %s: expanded digest %s, want %s", c.name, got, c.expandTo)
		}
		for k, v := range c.codes {
			if k > 0 && v <= c.codes[k-1] {
				t.Errorf("grid %s: row %d (%#x) does not exceed the row before (%#x)", c.name, k, v, c.codes[k-1])
			}
			sum := 0
			for s := 0; s < 16; s += c.bits {
				sum += int(v >> s & (1<<c.bits - 1))
			}
			if c.even && sum%2 != 0 {
				t.Errorf("grid %s: the codes of row %d add up to %d, want an even sum", c.name, k, sum)
			}
		}
	}
}

// digest is the first 16 hexadecimal digits of the SHA-256 of b.
func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

func TestSign7(t *testing.T) {
	for k := range uint8(128) {
		s, ones := Sign7(k), 0
		for j := range 8 {
			ones += int(s >> j & 1)
		}
		if s&127 != k || ones%2 != 0 {
			t.Errorf("Sign7(%d) = %08b", k, s)
		}
	}
}

func TestScaleBytes(t *testing.T) {
	for e := range 256 {
		want := float32(math.Ldexp(1, e-128))
		if got := E8M0Half(uint8(e)); got != want {
			t.Errorf("E8M0Half(%d) = %g, want %g", e, got, want)
		}
	}
	for _, c := range []struct {
		b    uint8
		want float32
	}{{0, 0}, {1, 1.0 / 1024}, {7, 7.0 / 1024}, {8, 1.0 / 128}, {0x38, 0.5}, {0x39, 0.5625}, {0x7e, 224}, {0x7f, 0}, {0x80, 0}, {0xb8, 0.5}} {
		if got := UE4M3Half(c.b); got != c.want {
			t.Errorf("UE4M3Half(%#x) = %g, want %g", c.b, got, c.want)
		}
	}
}

func TestF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := F16ToF32(h)
		back := F32ToF16(f)
		if f != f {
			if back != h|0x200 {
				t.Errorf("NaN %04x comes back as %04x", h, back)
			}
			continue
		}
		if back != h {
			t.Errorf("%04x widens to %g and comes back as %04x", h, f, back)
		}
		exp, man := int(h>>10&31), float64(h&0x3ff)
		want := math.Ldexp(man, -24)
		if exp > 0 {
			want = math.Ldexp(1024+man, exp-25)
		}
		if exp == 31 {
			want = math.Inf(1)
		}
		if float64(f) != math.Copysign(want, float64(1-2*int(h>>15))) {
			t.Errorf("%04x is %g, want %g", h, f, want)
		}
	}
}

// TestF32ToF16Rounds compares the neighbourhood of every midpoint between two half-precision numbers with exact
// arithmetic.
func TestF32ToF16Rounds(t *testing.T) {
	for i := range uint16(0x7bff) {
		a, b := F16ToF32(i), F16ToF32(i+1)
		mid := float32((float64(a) + float64(b)) / 2) // exact: one bit more than half precision
		even := i + i&1
		down, up := math.Nextafter32(mid, 0), math.Nextafter32(mid, 1e9)
		if g := F32ToF16(mid); g != even {
			t.Fatalf("%g lies between %04x and %04x and rounds to %04x", mid, i, i+1, g)
		}
		if g := F32ToF16(down); g != i {
			t.Fatalf("%g rounds to %04x, want %04x", down, g, i)
		}
		if g := F32ToF16(-up); g != i+1|0x8000 {
			t.Fatalf("%g rounds to %04x, want %04x", -up, g, i+1|0x8000)
		}
	}
	for _, c := range []struct {
		f    float32
		want uint16
	}{{65519.996, 0x7bff}, {65520, 0x7c00}, {1e30, 0x7c00}, {float32(math.Inf(-1)), 0xfc00}, {1e-40, 0}, {-1e-40, 0x8000}} {
		if g := F32ToF16(c.f); g != c.want {
			t.Errorf("F32ToF16(%g) = %04x, want %04x", c.f, g, c.want)
		}
	}
}

func TestBF16(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := BF16ToF32(h)
		back := F32ToBF16(f)
		if f == f && back != h || f != f && back != h|0x40 {
			t.Errorf("%04x widens to %g and comes back as %04x", h, f, back)
		}
	}
	for _, c := range []struct {
		bits uint32
		want uint16
	}{
		{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0xbf817fff, 0xbf81},
		{0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fc0}, {0x00008000, 0}, {0x00018000, 2},
	} {
		if g := F32ToBF16(math.Float32frombits(c.bits)); g != c.want {
			t.Errorf("F32ToBF16(%08x) = %04x, want %04x", c.bits, g, c.want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct {
		t          gguf.Type
		elems, src int
		want       string
	}{
		{gguf.Q4_K, 300, 144, "quant: Q4_K: 300 elements are not whole blocks of 256"},
		{gguf.Q4_K, 512, 287, "quant: Q4_K: 512 elements take 288 bytes, have 287"},
		{gguf.Q4_K, 0, 1, "quant: Q4_K: 0 elements take 0 bytes, have 1"},
		{gguf.F16, 3, 8, "quant: F16: 3 elements take 6 bytes, have 8"},
		{gguf.Q8_K, 256, 292, "quant: no decoder for Q8_K"},
		{gguf.I32, 1, 4, "quant: no decoder for I32"},
		{4, 32, 20, "quant: no decoder for type 4"},
	} {
		dst := make([]float32, c.elems)
		if err := Decode(c.t, dst, make([]byte, c.src)); err == nil || err.Error() != c.want {
			t.Errorf("%v, %d elements from %d bytes: %v, want %s", c.t, c.elems, c.src, err, c.want)
		}
	}
	if err := Decode(gguf.Q4_K, nil, nil); err != nil {
		t.Errorf("nothing from nothing: %v", err)
	}
}

// TestDecodeArbitrary feeds random bytes, blocks of equal bytes among them, to every decoder: none may panic, and each
// block must decode alike alone and among others.
func TestDecodeArbitrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, ty := range allTypes() {
		n, b := ty.BlockSize(), ty.BlockBytes()
		const blocks = 300
		src, all := make([]byte, blocks*b), make([]float32, blocks*n)
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		for i := range 256 {
			copy(src[i*b:(i+1)*b], bytes.Repeat([]byte{byte(i)}, b))
		}
		if err := Decode(ty, all, src); err != nil {
			t.Fatal(err)
		}
		one := make([]float32, n)
		for k := range blocks {
			if err := Decode(ty, one, src[k*b:(k+1)*b]); err != nil {
				t.Fatal(err)
			}
			for i := range one {
				if !sameBits(one[i], all[k*n+i]) {
					t.Fatalf("%v: block %d element %d is %g alone, %g among others", ty, k, i, one[i], all[k*n+i])
				}
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(uint32(12), []byte("a block of Q4_K would be longer"), 256)
	f.Add(uint32(39), make([]byte, 17), 32)
	f.Fuzz(func(t *testing.T, ty uint32, src []byte, n int) {
		if n < 0 || n > 4096 {
			return
		}
		dst := make([]float32, n)
		err := Decode(gguf.Type(ty), dst, src)
		fits := Supported(gguf.Type(ty)) && n%gguf.Type(ty).BlockSize() == 0 && gguf.Type(ty).RowBytes(n) == len(src)
		if fits != (err == nil) {
			t.Errorf("%v, %d elements from %d bytes: %v", gguf.Type(ty), n, len(src), err)
		}
	})
}
