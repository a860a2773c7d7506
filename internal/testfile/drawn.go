package testfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
)

// Random weights hardly compress, so fixtures keep the numbers that they were drawn from instead. A drawn file is the magic, the
// length of a JSON description (32 bits, little-endian), the description, and the bytes that are not drawn, one run after the
// other.

const magic = "TERRACE-DRAWN-1\n"

// Drawn describes a file whose matrices of half-precision numbers are drawn.
type Drawn struct {
	Size     int     `json:"size"`
	SHA256   string  `json:"sha256"` // of the whole file
	Seed     uint32  `json:"seed"`
	Matrices []Draws `json:"matrices"` // rising offsets
}

// Draws is a run of half-precision numbers, the normal draws of a stream times a factor, rounded once.
type Draws struct {
	Offset int     `json:"offset"`
	Count  int     `json:"count"`
	Stream uint32  `json:"stream"`
	Factor float64 `json:"factor"`
}

// Pack is the drawn form of data.
func (d *Drawn) Pack(data []byte) []byte {
	d.Size = len(data)
	sum := sha256.Sum256(data)
	d.SHA256 = hex.EncodeToString(sum[:])
	head, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	out := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(head)))
	out = append(out, head...)
	at := 0
	for _, m := range d.Matrices {
		out = append(out, data[at:m.Offset]...)
		at = m.Offset + 2*m.Count
	}
	return append(out, data[at:]...)
}

// unpack is the file that a drawn file describes; other bytes stay what they are.
func unpack(b []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return b, nil
	}
	if len(rest) < 4 || int(binary.LittleEndian.Uint32(rest)) > len(rest)-4 {
		return nil, fmt.Errorf("a drawn file of %d bytes is cut off", len(b))
	}
	n := int(binary.LittleEndian.Uint32(rest))
	var d Drawn
	if err := json.Unmarshal(rest[4:4+n], &d); err != nil {
		return nil, err
	}
	rest = rest[4+n:]
	out := make([]byte, 0, d.Size)
	for _, m := range append(d.Matrices, Draws{Offset: d.Size}) {
		k := m.Offset - len(out)
		if k < 0 || k > len(rest) {
			return nil, fmt.Errorf("%d bytes before offset %d of a drawn file, %d are there", k, m.Offset, len(rest))
		}
		out, rest = append(out, rest[:k]...), rest[k:]
		r := NewNormal(d.Seed, m.Stream)
		for range m.Count {
			out = binary.LittleEndian.AppendUint16(out, Half(m.Factor*r.Next()))
		}
	}
	if sum := sha256.Sum256(out); hex.EncodeToString(sum[:]) != d.SHA256 {
		return nil, fmt.Errorf("drawn file: SHA-256 %x, want %s", sum, d.SHA256)
	}
	return out, nil
}

// Half rounds x to half precision, ties to even.
func Half(x float64) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	_, e := math.Frexp(x) // x = f * 2^e, f from 1/2 to 1
	e = max(e-1, -14)
	q := math.RoundToEven(math.Ldexp(x, 10-e)) // 1024 to 2048, less when subnormal
	if q == 0 {
		return sign
	}
	return sign | uint16(int(q)+(e+14)<<10)
}

// Normal draws what numpy's Generator(PCG64([seed, stream])).standard_normal draws: PCG XSL-RR 128/64 behind a seed sequence,
// and a ziggurat of 256 layers.
type Normal struct {
	hi, lo       uint64 // state
	incHi, incLo uint64
}

// NewNormal seeds a stream of draws.
func NewNormal(seed, stream uint32) *Normal {
	var pool [4]uint32
	c := uint32(0x43b0d7e5)
	mix := func(v uint32) uint32 {
		v ^= c
		c *= 0x931e8875
		v *= c
		return v ^ v>>16
	}
	for i, v := range [4]uint32{seed, stream} {
		pool[i] = mix(v)
	}
	for from := range pool {
		for to := range pool {
			if from != to {
				v := 0xca01f9dd*pool[to] - 0x4973f715*mix(pool[from])
				pool[to] = v ^ v>>16
			}
		}
	}
	var words [8]uint32
	c = 0x8b51f9dd
	for i := range words {
		v := pool[i%4] ^ c
		c *= 0x58f38ded
		v *= c
		words[i] = v ^ v>>16
	}
	word := func(i int) uint64 { return uint64(words[2*i]) | uint64(words[2*i+1])<<32 }
	n := &Normal{incHi: word(2)<<1 | word(3)>>63, incLo: word(3)<<1 | 1}
	n.step()
	var carry uint64
	n.lo, carry = bits.Add64(n.lo, word(1), 0)
	n.hi, _ = bits.Add64(n.hi, word(0), carry)
	n.step()
	return n
}

// step multiplies the state and adds the increment, modulo 2^128.
func (n *Normal) step() {
	const mulHi, mulLo = 0x2360ed051fc65da4, 0x4385df649fccf645
	hi, lo := bits.Mul64(n.lo, mulLo)
	hi += n.hi*mulLo + n.lo*mulHi
	var carry uint64
	n.lo, carry = bits.Add64(lo, n.incLo, 0)
	n.hi, _ = bits.Add64(hi, n.incHi, carry)
}

func (n *Normal) bits() uint64 {
	n.step()
	return bits.RotateLeft64(n.hi^n.lo, -int(n.hi>>58))
}

func (n *Normal) uniform() float64 { return float64(n.bits()>>11) / (1 << 53) }

const zigguratR, zigguratV = 3.6541528853610088, 0.00492867323399 // where the tail begins; the area of a layer

// layers are the ziggurat's: the width of a step, where a layer lies wholly below the curve, and the curve.
var layers = func() (z struct {
	w, f [256]float64
	k    [256]uint64
}) {
	const scale = 1 << 52
	r := zigguratR
	q := zigguratV / math.Exp(-0.5*r*r)
	z.k[0], z.w[0], z.w[255] = uint64(r/q*scale), q/scale, r/scale
	z.f[0], z.f[255] = 1, math.Exp(-0.5*r*r)
	last := r
	for i := 254; i > 0; i-- {
		r = math.Sqrt(-2 * math.Log(zigguratV/r+math.Exp(-0.5*r*r)))
		z.k[i+1] = uint64(r / last * scale)
		last = r
		z.f[i], z.w[i] = math.Exp(-0.5*r*r), r/scale
	}
	return z
}()

// Next is the next draw.
func (n *Normal) Next() float64 {
	for {
		r := n.bits()
		i := r & 0xff
		negative, mantissa := r>>8&1 == 1, r>>9&(1<<52-1)
		x := float64(mantissa) * layers.w[i]
		if negative {
			x = -x
		}
		switch {
		case mantissa < layers.k[i]:
			return x
		case i == 0:
			for {
				a := -math.Log1p(-n.uniform()) / zigguratR
				b := -math.Log1p(-n.uniform())
				if b+b > a*a {
					if mantissa>>8&1 == 1 {
						return -(zigguratR + a)
					}
					return zigguratR + a
				}
			}
		case float64((layers.f[i-1]-layers.f[i])*n.uniform())+layers.f[i] < math.Exp(-0.5*x*x):
			return x
		}
	}
}
