package kernels

// The unpackers of K-quants and ternary types.

func unpackQ2K(s *super, b []byte) {
	_ = b[83]
	s.d, s.dmin = half(b[80:]), half(b[82:])
	for g, v := range b[:16] {
		s.scale[g], s.min[g] = int16(v&15), int16(v>>4)
	}
	for h := range 2 {
		for l, v := range b[16+32*h : 48+32*h] {
			for c := range 4 {
				s.q[128*h+32*c+l] = int8(v >> (2 * c) & 3)
			}
		}
	}
}

func unpackQ3K(s *super, b []byte) {
	_ = b[109]
	s.d = half(b[108:])
	sc := b[96:108]
	for g := range 16 {
		low := sc[g&7] >> (g / 8 * 4) & 15
		s.scale[g] = int16(low|sc[8+g%4]>>(g/4*2)&3<<4) - 32
	}
	mask := b[:32]
	for h := range 2 {
		for l, v := range b[32+32*h : 64+32*h] {
			for c := range 4 {
				s.q[128*h+32*c+l] = int8(v>>(2*c)&3) - 4 + int8(mask[l]>>(4*h+c)&1<<2)
			}
		}
	}
}

// scales6 decodes the eight 6-bit scales and mins of Q4_K and Q5_K, each good for two runs of 16.
func scales6(s *super, b []byte) {
	b = b[:12]
	for g := range 4 {
		sc, mn := int16(b[g]&63), int16(b[g+4]&63)
		s.scale[2*g], s.scale[2*g+1] = sc, sc
		s.min[2*g], s.min[2*g+1] = mn, mn
		sc, mn = int16(b[g+8]&15|b[g]>>6<<4), int16(b[g+8]>>4|b[g+4]>>6<<4)
		s.scale[2*g+8], s.scale[2*g+9] = sc, sc
		s.min[2*g+8], s.min[2*g+9] = mn, mn
	}
}

func unpackQ4K(s *super, b []byte) {
	_ = b[143]
	s.d, s.dmin = half(b), half(b[2:])
	scales6(s, b[4:])
	for p := range 4 {
		for l, v := range b[16+32*p : 48+32*p] {
			s.q[64*p+l], s.q[64*p+32+l] = int8(v&15), int8(v>>4)
		}
	}
}

func unpackQ5K(s *super, b []byte) {
	_ = b[175]
	s.d, s.dmin = half(b), half(b[2:])
	scales6(s, b[4:])
	qh := b[16:48]
	for p := range 4 {
		for l, v := range b[48+32*p : 80+32*p] {
			h := qh[l] >> (2 * p)
			s.q[64*p+l], s.q[64*p+32+l] = int8(v&15|h&1<<4), int8(v>>4|h>>1&1<<4)
		}
	}
}

func unpackQ6K(s *super, b []byte) {
	_ = b[209]
	s.d = half(b[208:])
	for g, v := range b[192:208] {
		s.scale[g] = int16(int8(v))
	}
	for h := range 2 {
		ql, qh := b[64*h:64*h+64], b[128+32*h:160+32*h]
		q := s.q[128*h : 128*h+128]
		for l, v := range qh {
			q[l] = int8(ql[l]&15|v&3<<4) - 32
			q[l+32] = int8(ql[l+32]&15|v>>2&3<<4) - 32
			q[l+64] = int8(ql[l]>>4|v>>4&3<<4) - 32
			q[l+96] = int8(ql[l+32]>>4|v>>6<<4) - 32
		}
	}
}

func (s *super) setScales(v int16) {
	for g := range s.scale {
		s.scale[g] = v
	}
}

// trits takes the n-th base-3 digit of a byte that holds five of them as a fixed-point fraction.
func trit(b byte, pow byte) int8 { return int8(uint16(b*pow)*3>>8) - 1 }

func unpackTQ1(s *super, b []byte) {
	_ = b[53]
	s.d = half(b[52:])
	s.setScales(1)
	pow := byte(1)
	for n := range 5 {
		for l, v := range b[:32] {
			s.q[32*n+l] = trit(v, pow)
		}
		for l, v := range b[32:48] {
			s.q[160+16*n+l] = trit(v, pow)
		}
		if n < 4 {
			for l, v := range b[48:52] {
				s.q[240+4*n+l] = trit(v, pow)
			}
		}
		pow *= 3
	}
}

func unpackTQ2(s *super, b []byte) {
	_ = b[65]
	s.d = half(b[64:])
	s.setScales(1)
	for j := range 2 {
		for m, v := range b[32*j : 32*j+32] {
			for l := range 4 {
				s.q[128*j+32*l+m] = int8(v>>(2*l)&3) - 1
			}
		}
	}
}
