// Weights by units of 32 elements: their codes as packed int8, with integer scales and minima of halves for types of
// 256-blocks, float scales for those of 32-blocks. An element is d*s*q - dm*m, or d*q + dm. kernels/unpack*.go is the same.
const uint F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ2_XXS = 16,
	IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23, IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39,
	NVFP4 = 40, Q1_0 = 41, Q2_0 = 42;

bool wide(uint t) { // blocks of 256
	return t >= Q2_K && t <= IQ1_S || t >= IQ3_S && t <= IQ1_M || t == TQ1_0 || t == TQ2_0;
}
bool mins(uint t) { return t == Q4_1 || t == Q5_1 || t == Q2_K || t == Q4_K || t == Q5_K; }

struct Unit {
	uint q[8];
	int s[2], m[2];
	float d[2], dm;
};

const uint ones = 0x01010101u, low4 = 0x0f0f0f0fu, low2 = 0x03030303u, tops = 0x80808080u;

// less takes n, 0 to 128, from each byte of x, which are below 128.
uint less(uint x, uint n) { return ((x | tops) - n * ones) ^ tops; }
// spread puts the four lowest bits of n into the lowest bits of four bytes.
uint spread(uint n) { return n & 1 | (n & 2) << 7 | (n & 4) << 14 | (n & 8) << 21; }
// negate turns the signs of bytes of x whose bit in s is set; such a byte is not zero.
uint negate(uint x, uint s) {
	uint o = spread(s);
	return (x ^ o * 255u) + o;
}
uint sign7(uint k) { return k | (uint(bitCount(k)) & 1) << 7; }
uint lookup(uint w, const uint book[4]) {
	uint r = 0;
	[[unroll]] for (uint i = 0; i < 4; i++) {
		uint c = w >> 8 * i & 15u;
		r |= (book[c >> 2] >> 8 * (c & 3) & 255u) << 8 * i;
	}
	return r;
}
const uint kv4[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
const uint fp4[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};

// trits takes digit n of each of four bytes.
uint trits(uint w, uint n) {
	const uint pow3[5] = {1, 3, 9, 27, 81};
	uint r = 0;
	[[unroll]] for (uint i = 0; i < 4; i++)
		r |= (((w >> 8 * i & 255u) * pow3[n] & 255u) * 3 >> 8) << 8 * i;
	return less(r, 1);
}
uint ternary(uint w, bool minus) {
	uint g = w << 3 & 0xf8f8f8f8u;
	return minus ? (g & 0x7f7f7f7fu) + 0x7f7f7f7fu ^ ~g & tops : g | ones;
}

// Where the grids lie in the table, in words.
const uint grid256 = 0, grid512 = 512, grid1024 = 1536, grid2048 = 3584, grid3x256 = 7680, grid3x512 = 7936;

float ue4m3(uint b) { // half of it
	uint exp = b >> 3 & 15u;
	float man = float(b & 7u);
	if (b == 0x7f)
		return 0;
	if (exp == 0)
		return man * 0.0009765625;
	return (8 + man) * uintBitsToFloat(exp + 116u << 23);
}

void fill(inout Unit u, int s0, int s1) {
	u.s[0] = s0;
	u.s[1] = s1;
}

layout(constant_id = 0) const uint TYPE = 8;

// unpack takes unit i of a row of type TYPE apart. table is the address of the grids.
void unpack(uint64_t row, uint i, uint64_t table, out Unit u) {
	u.s[0] = 1; u.s[1] = 1;
	u.m[0] = 0; u.m[1] = 0;
	u.dm = 0;
	uint g = i & 7u, h = g >> 2, c = g & 3u;
	uint64_t b = row;
	float d = 0;
	switch (TYPE) {
	case Q4_0:
		b += 18 * i;
		d = widen(u16(b, 0));
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = u32(b, 2 + 4 * k);
			u.q[k] = less(w & low4, 8);
			u.q[k + 4] = less(w >> 4 & low4, 8);
		}
		break;
	case Q4_1:
		b += 20 * i;
		d = widen(u16(b, 0));
		u.dm = widen(u16(b, 2));
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = word(b, 4 + 4 * k);
			u.q[k] = w & low4;
			u.q[k + 4] = w >> 4 & low4;
		}
		break;
	case Q5_0: {
		b += 22 * i;
		d = widen(u16(b, 0));
		uint qh = u32(b, 2);
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = u32(b, 6 + 4 * k);
			u.q[k] = less(w & low4 | spread(qh >> 4 * k & 15u) << 4, 16);
			u.q[k + 4] = less(w >> 4 & low4 | spread(qh >> 16 + 4 * k & 15u) << 4, 16);
		}
		break;
	}
	case Q5_1: {
		b += 24 * i;
		d = widen(u16(b, 0));
		u.dm = widen(u16(b, 2));
		uint qh = word(b, 4);
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = word(b, 8 + 4 * k);
			u.q[k] = w & low4 | spread(qh >> 4 * k & 15u) << 4;
			u.q[k + 4] = w >> 4 & low4 | spread(qh >> 16 + 4 * k & 15u) << 4;
		}
		break;
	}
	case Q8_0:
		b += 34 * i;
		d = widen(u16(b, 0));
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = u32(b, 2 + 4 * k);
		break;
	case IQ4_NL:
		b += 18 * i;
		d = widen(u16(b, 0));
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = u32(b, 2 + 4 * k);
			u.q[k] = lookup(w & low4, kv4);
			u.q[k + 4] = lookup(w >> 4 & low4, kv4);
		}
		break;
	case MXFP4: {
		b += 17 * i;
		uint e = u8(b, 0);
		d = uintBitsToFloat(e < 2 ? 0x00200000u << e : e - 1 << 23);
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = bytes4(b, 1 + 4 * k);
			u.q[k] = lookup(w & low4, fp4);
			u.q[k + 4] = lookup(w >> 4 & low4, fp4);
		}
		break;
	}
	case NVFP4: {
		b += 36 * (i >> 1);
		uint at = i & 1u;
		[[unroll]] for (uint k = 0; k < 2; k++) {
			u.d[k] = ue4m3(u8(b, 2 * at + k));
			uint w0 = word(b, 4 + 16 * at + 8 * k), w1 = word(b, 8 + 16 * at + 8 * k);
			u.q[4 * k] = lookup(w0 & low4, fp4);
			u.q[4 * k + 1] = lookup(w1 & low4, fp4);
			u.q[4 * k + 2] = lookup(w0 >> 4 & low4, fp4);
			u.q[4 * k + 3] = lookup(w1 >> 4 & low4, fp4);
		}
		break;
	}
	case Q1_0: {
		b += 18 * (i >> 2);
		d = widen(u16(b, 0));
		uint bits = u32(b, 2 + 4 * (i & 3u));
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = less(spread(bits >> 4 * k & 15u) << 1, 1);
		break;
	}
	case Q2_0: {
		b += 18 * (i >> 1);
		d = widen(u16(b, 0));
		[[unroll]] for (uint k = 0; k < 8; k++) {
			uint v = u8(b, 2 + 8 * (i & 1u) + k);
			u.q[k] = less(v & 3 | (v & 12) << 6 | (v & 48) << 12 | (v & 192) << 18, 1);
		}
		break;
	}
	case Q2_K: {
		b += 84 * (i >> 3);
		d = widen(u16(b, 80));
		u.dm = widen(u16(b, 82));
		uint s = u16(b, 2 * g);
		fill(u, int(s & 15), int(s >> 8 & 15));
		u.m[0] = int(s >> 4 & 15);
		u.m[1] = int(s >> 12);
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = word(b, 16 + 32 * h + 4 * k) >> 2 * c & low2;
		break;
	}
	case Q3_K: {
		b += 110 * (i >> 3);
		d = widen(u16(b, 108));
		[[unroll]] for (uint k = 0; k < 2; k++) {
			uint n = 2 * g + k;
			u.s[k] = int(u8(b, 96 + (n & 7)) >> 4 * (n >> 3) & 15 | (u8(b, 104 + (n & 3)) >> 2 * (n >> 2) & 3) << 4) - 32;
		}
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = less(u32(b, 32 + 32 * h + 4 * k) >> 2 * c & low2 | (u32(b, 4 * k) >> g & ones) << 2, 4);
		break;
	}
	case Q4_K:
	case Q5_K: {
		b += (TYPE == Q4_K ? 144 : 176) * (i >> 3);
		uint dd = word(b, 0);
		d = widen(dd & 0xffffu);
		u.dm = widen(dd >> 16);
		// Twelve bytes: six bits of the first four scales, of the first four minima, then nibbles of the others.
		uint n = 8 * (g & 3);
		uint x = word(b, 4) >> n, y = word(b, 8) >> n, z = word(b, 12) >> n;
		uint sc = g < 4 ? x & 63 : z & 15 | (x >> 6 & 3) << 4;
		uint mn = g < 4 ? y & 63 : z >> 4 & 15 | (y >> 6 & 3) << 4;
		fill(u, int(sc), int(sc));
		u.m[0] = int(mn);
		u.m[1] = int(mn);
		uint at = TYPE == Q4_K ? 16 : 48;
		[[unroll]] for (uint k = 0; k < 8; k++) {
			u.q[k] = word(b, at + 32 * (g >> 1) + 4 * k) >> 4 * (g & 1) & low4;
			if (TYPE == Q5_K)
				u.q[k] |= (word(b, 16 + 4 * k) >> g & ones) << 4;
		}
		break;
	}
	case Q6_K: {
		b += 210 * (i >> 3);
		d = widen(u16(b, 208));
		uint s = u16(b, 192 + 2 * g);
		fill(u, int(s << 24) >> 24, int(s << 16) >> 24);
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = less(u32(b, 64 * h + 32 * (c & 1) + 4 * k) >> 4 * (c >> 1) & low4 | (u32(b, 128 + 32 * h + 4 * k) >> 2 * c & low2) << 4, 32);
		break;
	}
	case IQ2_XXS: {
		b += 66 * (i >> 3);
		d = widen(u16(b, 0)) * 0.125;
		uint idx = u32(b, 2 + 8 * g), w = u32(b, 6 + 8 * g);
		fill(u, int(2 * (w >> 28) + 1), int(2 * (w >> 28) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint at = grid256 + 2 * (idx >> 8 * l & 255u), s = sign7(w >> 7 * l & 127u);
			u.q[2 * l] = negate(word(table, 4 * at), s & 15);
			u.q[2 * l + 1] = negate(word(table, 4 * at + 4), s >> 4);
		}
		break;
	}
	case IQ2_XS: {
		b += 74 * (i >> 3);
		d = widen(u16(b, 0)) * 0.125;
		uint sc = u8(b, 66 + g);
		fill(u, int(2 * (sc & 15) + 1), int(2 * (sc >> 4) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint v = u16(b, 2 + 8 * g + 2 * l), at = grid512 + 2 * (v & 511u), s = sign7(v >> 9);
			u.q[2 * l] = negate(word(table, 4 * at), s & 15);
			u.q[2 * l + 1] = negate(word(table, 4 * at + 4), s >> 4);
		}
		break;
	}
	case IQ2_S: {
		b += 82 * (i >> 3);
		d = widen(u16(b, 0)) * 0.125;
		uint sc = u8(b, 74 + g), qh = u8(b, 66 + g);
		fill(u, int(2 * (sc & 15) + 1), int(2 * (sc >> 4) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint at = grid1024 + 2 * (u8(b, 2 + 4 * g + l) | (qh >> 2 * l & 3) << 8), s = u8(b, 34 + 4 * g + l);
			u.q[2 * l] = negate(word(table, 4 * at), s & 15);
			u.q[2 * l + 1] = negate(word(table, 4 * at + 4), s >> 4);
		}
		break;
	}
	case IQ3_XXS: {
		b += 98 * (i >> 3);
		d = widen(u16(b, 0)) * 0.25;
		uint w = u32(b, 66 + 4 * g);
		fill(u, int(2 * (w >> 28) + 1), int(2 * (w >> 28) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint s = sign7(w >> 7 * l & 127u);
			u.q[2 * l] = negate(word(table, 4 * (grid3x256 + u8(b, 2 + 8 * g + 2 * l))), s & 15);
			u.q[2 * l + 1] = negate(word(table, 4 * (grid3x256 + u8(b, 3 + 8 * g + 2 * l))), s >> 4);
		}
		break;
	}
	case IQ3_S: {
		b += 110 * (i >> 3);
		d = widen(u16(b, 0));
		int sc = int(2 * (u8(b, 106 + (g >> 1)) >> 4 * (g & 1) & 15) + 1);
		fill(u, sc, sc);
		uint high = u8(b, 66 + g);
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint s = u8(b, 74 + 4 * g + l);
			uint x = u8(b, 2 + 8 * g + 2 * l) | (high >> 2 * l & 1) << 8, y = u8(b, 3 + 8 * g + 2 * l) | (high >> 2 * l + 1 & 1) << 8;
			u.q[2 * l] = negate(word(table, 4 * (grid3x512 + x)), s & 15);
			u.q[2 * l + 1] = negate(word(table, 4 * (grid3x512 + y)), s >> 4);
		}
		break;
	}
	case IQ1_S: {
		b += 50 * (i >> 3);
		d = widen(u16(b, 0)) * 0.125;
		uint x = u16(b, 34 + 2 * g);
		fill(u, int(2 * (x >> 12 & 7) + 1), int(2 * (x >> 12 & 7) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint at = grid2048 + 2 * (u8(b, 2 + 4 * g + l) | (x >> 3 * l & 7) << 8);
			u.q[2 * l] = ternary(word(table, 4 * at), x >> 15 != 0);
			u.q[2 * l + 1] = ternary(word(table, 4 * at + 4), x >> 15 != 0);
		}
		break;
	}
	case IQ1_M: {
		b += 56 * (i >> 3);
		uint e = 0;
		[[unroll]] for (uint k = 0; k < 4; k++)
			e |= u16(b, 48 + 2 * k) >> 12 << 4 * k;
		d = widen(e) * 0.125;
		uint sc = u16(b, 48 + 2 * (g >> 1)) >> 6 * (g & 1);
		fill(u, int(2 * (sc & 7) + 1), int(2 * (sc >> 3 & 7) + 1));
		[[unroll]] for (uint l = 0; l < 4; l++) {
			uint n = u8(b, 32 + 2 * g + (l >> 1)) >> 4 * (l & 1) & 15;
			uint at = grid2048 + 2 * (u8(b, 4 * g + l) | (n & 7) << 8);
			u.q[2 * l] = ternary(word(table, 4 * at), (n & 8) != 0);
			u.q[2 * l + 1] = ternary(word(table, 4 * at + 4), (n & 8) != 0);
		}
		break;
	}
	case IQ4_XS: {
		b += 136 * (i >> 3);
		d = widen(u16(b, 0));
		int sc = int(u8(b, 4 + (g >> 1)) >> 4 * (g & 1) & 15 | (u16(b, 2) >> 2 * g & 3) << 4) - 32;
		fill(u, sc, sc);
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint w = word(b, 8 + 16 * g + 4 * k);
			u.q[k] = lookup(w & low4, kv4);
			u.q[k + 4] = lookup(w >> 4 & low4, kv4);
		}
		break;
	}
	case TQ1_0:
		b += 54 * (i >> 3);
		d = widen(u16(b, 52));
		[[unroll]] for (uint k = 0; k < 8; k++) {
			if (g < 5)
				u.q[k] = trits(u32(b, 4 * k), g);
			else if (g < 7 || k < 4)
				u.q[k] = trits(u32(b, 32 + 4 * (k & 3)), 2 * (g - 5) + (k >> 2));
			else
				u.q[k] = trits(u32(b, 48), k - 4);
		}
		break;
	case TQ2_0:
		b += 66 * (i >> 3);
		d = widen(u16(b, 64));
		[[unroll]] for (uint k = 0; k < 8; k++)
			u.q[k] = less(u32(b, 32 * h + 4 * k) >> 2 * c & low2, 1);
		break;
	}
	if (TYPE != NVFP4) {
		u.d[0] = d;
		u.d[1] = d;
	}
}
