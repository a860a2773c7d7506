package kernels

import (
	"encoding/binary"

	"terrace/quant"
)

// The unpackers of types with a float scale a block. Each takes the i-th run of 32 elements of a row.

// lowHigh spreads 16 bytes: low nibbles to elements 0..15, high nibbles to 16..31.
func lowHigh(q *[32]int8, b []byte) {
	b = b[:16]
	for j, v := range b {
		q[j], q[j+16] = int8(v&15), int8(v>>4)
	}
}

func (r *run) setScale(d float32) { r.d[0], r.d[1] = d, d }

func unpackQ4_0(r *run, row []byte, i int) {
	b := row[18*i : 18*i+18]
	r.setScale(half(b))
	lowHigh(&r.q, b[2:])
	for j := range r.q {
		r.q[j] -= 8
	}
}

func unpackQ4_1(r *run, row []byte, i int) {
	b := row[20*i : 20*i+20]
	r.setScale(half(b))
	r.m = half(b[2:])
	lowHigh(&r.q, b[4:])
}

// fifthBits adds bit i of h to element i as bit 4.
func fifthBits(q *[32]int8, h uint32) {
	for i := range q {
		q[i] |= int8(h >> i & 1 << 4)
	}
}

func unpackQ5_0(r *run, row []byte, i int) {
	b := row[22*i : 22*i+22]
	r.setScale(half(b))
	lowHigh(&r.q, b[6:])
	fifthBits(&r.q, binary.LittleEndian.Uint32(b[2:]))
	for j := range r.q {
		r.q[j] -= 16
	}
}

func unpackQ5_1(r *run, row []byte, i int) {
	b := row[24*i : 24*i+24]
	r.setScale(half(b))
	r.m = half(b[2:])
	lowHigh(&r.q, b[8:])
	fifthBits(&r.q, binary.LittleEndian.Uint32(b[4:]))
}

func unpackQ8_0(r *run, row []byte, i int) {
	b := row[34*i : 34*i+34]
	r.setScale(half(b))
	for j, v := range b[2:34] {
		r.q[j] = int8(v)
	}
}

func unpackIQ4NL(r *run, row []byte, i int) {
	b := row[18*i : 18*i+18]
	r.setScale(half(b))
	for j, v := range b[2:18] {
		r.q[j], r.q[j+16] = quant.KV4[v&15], quant.KV4[v>>4]
	}
}

func unpackMXFP4(r *run, row []byte, i int) {
	b := row[17*i : 17*i+17]
	r.setScale(quant.E8M0Half(b[0]))
	for j, v := range b[1:17] {
		r.q[j], r.q[j+16] = quant.FP4x2[v&15], quant.FP4x2[v>>4]
	}
}

func unpackNVFP4(r *run, row []byte, i int) {
	b := row[36*(i/2) : 36*(i/2)+36]
	i &= 1
	for h := range 2 {
		r.d[h] = quant.UE4M3Half(b[2*i+h])
		for k, v := range b[4+16*i+8*h : 4+16*i+8*h+8] {
			r.q[16*h+k], r.q[16*h+k+8] = quant.FP4x2[v&15], quant.FP4x2[v>>4]
		}
	}
}

func unpackQ1_0(r *run, row []byte, i int) {
	b := row[18*(i/4) : 18*(i/4)+18]
	r.setScale(half(b))
	bits := binary.LittleEndian.Uint32(b[2+4*(i%4):])
	for j := range r.q {
		r.q[j] = int8(bits>>j&1)<<1 - 1
	}
}

func unpackQ2_0(r *run, row []byte, i int) {
	b := row[18*(i/2) : 18*(i/2)+18]
	r.setScale(half(b))
	for j, v := range b[2+8*(i%2) : 10+8*(i%2)] {
		for k := range 4 {
			r.q[4*j+k] = int8(v>>(2*k)&3) - 1
		}
	}
}
