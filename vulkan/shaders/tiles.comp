#version 450
// variants: base dot
#extension GL_GOOGLE_include_directive : require
// Quantised weights times many rows of int8 activations, in tiles: ROWS rows of weights by COLS of activations, of which each thread
// has four by four. Units of both are unpacked into shared memory once a tile, eight at a time. The threads are in two halves, each with
// its accumulators of the contract: of blocks of 32 those with even and with odd numbers, of blocks of 256 the first two and the last
// two. That is how the sums join in the end, so that the bits are product.comp's, with half of what one thread would have to hold.
#include "common.glsl"
#include "units.glsl"
#include "product.glsl"
#include "dot.glsl"
#include "shift.glsl"
layout(constant_id = 1) const uint SHAPE = 32; // rows, of 32; 1024: AHEAD
layout(constant_id = 2) const uint COLS = 32; // of 16
layout(constant_id = 3) const uint THREADS = 128; // ROWS * COLS / 8
layout(local_size_x_id = 3) in;

const uint ROWS = SHAPE & 1023u;
const bool AHEAD = (SHAPE & 1024u) != 0; // the next units are on their way while these are multiplied
const uint BRINGS = (64 + COLS - 1) / COLS, XBRINGS = (64 + ROWS - 1) / ROWS; // units of each side that a thread brings
const bool WIDE = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K || TYPE == IQ2_XXS || TYPE == IQ2_XS || TYPE == IQ3_XXS ||
	TYPE == IQ1_S || TYPE == IQ3_S || TYPE == IQ2_S || TYPE == IQ4_XS || TYPE == IQ1_M || TYPE == TQ1_0 || TYPE == TQ2_0;
const bool MINS = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K;
// HALVES: sixteen elements have a scale of their own.
const bool HALVES = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q6_K || TYPE == IQ2_XS || TYPE == IQ2_S || TYPE == IQ1_M || TYPE == NVFP4;
const bool TWOS = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == NVFP4; // blocks of 32 with a second number
const bool PAIRED = TYPE == Q4_K || TYPE == Q5_K; // a minimum is that of both halves
const uint PITCH = 17; // quads of a row: odd, so that rows begin in different banks

// Of each unit, four rows or columns of a thread side by side: see place4 and place8.
shared uvec4 ws[ROWS * PITCH], xs[COLS * PITCH];
shared vec4 wd[2 * ROWS], wm[2 * ROWS]; // scales and minima; of blocks of 256: one in a half
shared uvec4 wi[2 * ROWS];              // integer scales and minima of halves, a byte each
shared vec4 xd[2 * COLS];
shared uvec4 xi[2 * COLS]; // sums of sixteen activations, two to a word
shared uint who[COLS];     // rows of activations

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v; };
uvec4 quad(uint64_t a) { return Quads(a).v; }

// place8 is where row r of a tile has its numbers: those of rows r, r+8, r+16, r+24 lie together. place4 does so for columns.
uint place8(uint r) { return (r & ~31u) + (r & 7u) * 4 + (r >> 3 & 3u); }
uint place4(uint c) { return (c & ~15u) + (c & 3u) * 4 + (c >> 2 & 3u); }

// fp4s is the numbers of four codes in the low halves of bytes, twice as large: 0, 1, 2, 3, 4, 6, 8, 12 and a sign.
uint fp4s(uint c) {
	uint m = c & (c >> 2 & ones) * 3;
	m = (c & 0x07070707u) + m + 2 * (m & m >> 1 & ones);
	uint s = c >> 3 & ones & m + 0x7f7f7f7fu >> 7; // zero has none
	return (m ^ s * 255u) + s;
}

#define FOURS(k) b[k].x, b[k].y, b[k].z, b[k].w
#define THREE(k) FOURS(k), FOURS((k) + 1), FOURS((k) + 2)
#define UPTO8(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
// bring loads unit i of a row by loads of 16 bytes, for the types that are met most; expand takes it apart.
void bring(uint64_t row, uint i, out uvec4 w[6], out uint e, out uint f) {
	uint g = i & 7u;
	switch (TYPE) {
	case Q8_0: {
		uint64_t a = row + 34 * i & ~15ul;
		w[0] = quad(a);
		w[1] = quad(a + 16);
		w[2] = quad(a + 32);
		break;
	}
	case MXFP4: {
		uint64_t b = row + 17 * i + 1;
		w[0] = quad(b & ~15ul);
		w[1] = quad(b + 15 & ~15ul); // the same where all 16 bytes lie in one
		e = u8(b - 1, 0);
		break;
	}
	case Q4_K: {
		uint64_t b = row + 144 * (i >> 3), at = b + 16 + 32 * (g >> 1);
		w[0] = quad(b);
		w[1] = quad(at);
		w[2] = quad(at + 16);
		break;
	}
	case Q5_K: {
		uint64_t b = row + 176 * (i >> 3), at = b + 48 + 32 * (g >> 1);
		w[0] = quad(b);
		w[1] = quad(at);
		w[2] = quad(at + 16);
		w[3] = quad(b + 16);
		w[4] = quad(b + 32);
		break;
	}
	case Q6_K: {
		uint64_t b = row + 210 * (i >> 3), a = b & ~15ul;
		uint64_t lo = a + (64 * (g >> 2) + 32 * (g & 1u)), hi = a + (128 + 32 * (g >> 2));
		w[0] = quad(lo);
		w[1] = quad(lo + 16);
		w[2] = quad(lo + 32);
		w[3] = quad(hi);
		w[4] = quad(hi + 16);
		w[5] = quad(hi + 32);
		e = u16(b, 192 + 2 * g);
		f = u16(b, 208);
		break;
	}
	}
}

void expand(const uvec4 b[6], uint e, uint f, uint64_t row, uint i, out Unit u) {
	uint g = i & 7u;
	u.dm = 0;
	u.m[0] = 0;
	u.m[1] = 0;
	switch (TYPE) {
	case Q8_0: {
		uint o = uint(row + 34 * i) & 15u, w[12] = {THREE(0)};
		SHIFT8(w, o)
		u.d[0] = widen(w[0] >> 8 * (o & 2u) & 0xffffu);
#define CODES(k) u.q[k] = mix(w[k] >> 16 | w[(k) + 1] << 16, w[(k) + 1], (o & 2u) != 0);
		UPTO8(CODES)
#undef CODES
		break;
	}
	case MXFP4: {
		uint o = uint(row + 17 * i + 1) & 15u, sh = 8 * (o & 3u);
		uint w[8] = {FOURS(0), FOURS(1)};
		SHIFT4(w, o)
		u.d[0] = uintBitsToFloat(mix(e - 1 << 23, 0x00200000u << (e & 1u), e < 2));
#define CODES(k) { \
	uint c = uint((uint64_t(w[(k) + 1]) << 32 | w[k]) >> sh); \
	u.q[k] = fp4s(c & low4); \
	u.q[k + 4] = fp4s(c >> 4 & low4); \
}
		CODES(0) CODES(1) CODES(2) CODES(3)
#undef CODES
		break;
	}
	case Q4_K:
	case Q5_K: {
		uvec4 head = b[0], v = b[1] >> 4 * (g & 1) & low4, w = b[2] >> 4 * (g & 1) & low4;
		u.d[0] = widen(head.x & 0xffffu);
		u.dm = widen(head.x >> 16);
		uint n = 8 * (g & 3u), x = head.y >> n, y = head.z >> n, z = head.w >> n;
		int sc = int(mix(z & 15 | (x >> 6 & 3) << 4, x & 63, g < 4)), mn = int(mix(z >> 4 & 15 | (y >> 6 & 3) << 4, y & 63, g < 4));
		fill(u, sc, sc);
		u.m[0] = mn;
		u.m[1] = mn;
		if (TYPE == Q5_K) {
			v |= (b[3] >> g & ones) << 4;
			w |= (b[4] >> g & ones) << 4;
		}
		u.q = uint[8](v.x, v.y, v.z, v.w, w.x, w.y, w.z, w.w);
		break;
	}
	case Q6_K: {
		uint o = uint(row + 210 * (i >> 3)) & 15u, c = g & 3u, l[12] = {THREE(0)}, h[12] = {THREE(3)};
		SHIFT8(l, o)
		SHIFT8(h, o)
		u.d[0] = widen(f);
		fill(u, int(e << 24) >> 24, int(e << 16) >> 24);
#define CODES(k) { \
	uint x = mix(l[k], l[k] >> 16 | l[(k) + 1] << 16, (o & 2u) != 0), y = mix(h[k], h[k] >> 16 | h[(k) + 1] << 16, (o & 2u) != 0); \
	u.q[k] = less(x >> 4 * (c >> 1) & low4 | (y >> 2 * c & low2) << 4, 32); \
}
		UPTO8(CODES)
#undef CODES
		break;
	}
	default:
		unpack(row, i, p.table, u);
	}
}

// unitAt is which unit has a slot in a stage. Of blocks of 256 a stage has half a block of each of two: those that per apart from
// each other end accumulators.
uint unitAt(uint stage, uint slot, uint per) {
	uint q = stage / 2, block = q % per * 4 + q / per + 2 * (slot / 4);
	return WIDE ? block * 8 + 4 * (stage & 1u) + (slot & 3u) : stage * 8 + slot;
}

#define ALL4(F) F(0) F(1) F(2) F(3)

void main() {
	uint t = gl_LocalInvocationID.x;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	uint c0 = gl_WorkGroupID.y * COLS, r0 = gl_WorkGroupID.x * ROWS;
	if (c0 >= j.n)
		return;
	uint n = min(COLS, j.n - c0), units = p.in_ / 32;
	for (uint c = t; c < COLS; c += THREADS) {
		uint k = c0 + min(c, n - 1); // columns past the end are the last one again
		who[c] = j.rows != 0 ? Words(j.rows).v[k] : j.act + k;
	}
	// A block of 32 threads has 32 rows and 16 columns; blocks lie row by row, in each half.
	uint half_ = t / (THREADS / 2), tile = t % (THREADS / 2) / 32;
	uint rb = tile % (ROWS / 32) * 32, cb = tile / (ROWS / 32) * 16;
	uint tr = t & 7u, tc = t >> 3 & 3u;
	uint wrow = (rb + tr) * PITCH, xrow = (cb + tc) * PITCH;
	uint wat = rb / 4 + tr, xat = cb / 4 + tc;
	bool idle = cb >= n;

	// Sums: one for each accumulator of blocks of 32; of blocks of 256: the one that goes on, and the first when the second does.
#define DECLARE(m) vec4 f0##m = vec4(0), f1##m = vec4(0), f2##m = vec4(0), f3##m = vec4(0); ivec4 isum##m = ivec4(0), msum##m = ivec4(0);
	ALL4(DECLARE)
	uint per = (units / 8 + 3) / 4; // blocks of 256 of an accumulator
	uint stages = WIDE ? 4 * per : (units + 7) / 8;
	per = max(per, 1);
	// Thread t brings unit t%8 of rows t/8 and every THREADS/8 further, of both sides.
	uint slot_ = t & 7u;
	uint64_t wrows[BRINGS], xrows[XBRINGS];
	[[unroll]] for (uint k = 0; k < BRINGS; k++)
		wrows[k] = j.w + uint64_t(min(r0 + min(t / 8 + k * (THREADS / 8), ROWS - 1), p.out_ - 1)) * p.stride;
	barrier(); // who is there
	[[unroll]] for (uint k = 0; k < XBRINGS; k++)
		xrows[k] = uint64_t(who[min(t / 8 + k * (THREADS / 8), COLS - 1)]);
	uvec4 wq[BRINGS][6], xq[XBRINGS][2];
	uint we[BRINGS], wf[BRINGS], xsum[XBRINGS];
	float xscale[XBRINGS];
#define BRING(stage) { \
	uint unit = unitAt(stage, slot_, per); \
	if (unit < units) { \
		[[unroll]] for (uint k = 0; k < BRINGS; k++) \
			bring(wrows[k], unit, wq[k], we[k], wf[k]); \
		[[unroll]] for (uint k = 0; k < XBRINGS; k++) { \
			uint64_t x = p.q + xrows[k] * p.in_ + unit * 32; \
			xq[k][0] = quad(x); \
			xq[k][1] = quad(x + 16); \
			xscale[k] = WIDE ? Floats(p.d + (xrows[k] * (units / 8) + unit / 8) * 4).v[0] : Floats(p.d + (xrows[k] * units + unit) * 4).v[0]; \
			if (MINS) \
				xsum[k] = Words(p.s + (xrows[k] * units + unit) * 4).v[0]; \
		} \
	} \
}
	if (AHEAD)
		BRING(0)
	for (uint stage = 0; stage < stages; stage++) {
		uint unit = unitAt(stage, slot_, per);
		if (!AHEAD)
			BRING(stage)
		barrier(); // what was there has been used
		[[unroll]] for (uint k = 0; k < BRINGS; k++) {
			uint r = t / 8 + k * (THREADS / 8);
			if (64 % COLS != 0 && r >= ROWS)
				continue;
			Unit u;
			if (unit < units) {
				expand(wq[k], we[k], wf[k], wrows[k], unit, u);
			} else {
				u.q = uint[8](0, 0, 0, 0, 0, 0, 0, 0);
				u.d[0] = 0;
				u.d[1] = 0;
				u.dm = 0;
				fill(u, 0, 0);
				u.m[0] = 0;
				u.m[1] = 0;
			}
			ws[r * PITCH + 2 * slot_] = uvec4(u.q[0], u.q[1], u.q[2], u.q[3]);
			ws[r * PITCH + 2 * slot_ + 1] = uvec4(u.q[4], u.q[5], u.q[6], u.q[7]);
			uint at = slot_ * ROWS + place8(r);
			if (WIDE) {
				wi[at / 4][at & 3u] = uint(u.s[0]) & 255u | (uint(u.s[1]) & 255u) << 8 | uint(u.m[0]) << 16 | uint(u.m[1]) << 24;
				at = slot_ / 4 * ROWS + place8(r);
			}
			if (!WIDE || (slot_ & 3u) == 0) {
				wd[at / 4][at & 3u] = u.d[0];
				if (MINS)
					wm[at / 4][at & 3u] = u.dm;
				if (TYPE == NVFP4)
					wm[at / 4][at & 3u] = u.d[1];
			}
		}
		[[unroll]] for (uint k = 0; k < XBRINGS; k++) {
			uint c = t / 8 + k * (THREADS / 8);
			if (64 % ROWS != 0 && c >= COLS)
				continue;
			bool there = unit < units;
			xs[c * PITCH + 2 * slot_] = there ? xq[k][0] : uvec4(0);
			xs[c * PITCH + 2 * slot_ + 1] = there ? xq[k][1] : uvec4(0);
			uint at = slot_ * COLS + place4(c);
			if (MINS)
				xi[at / 4][at & 3u] = there ? xsum[k] : 0;
			if (WIDE)
				at = slot_ / 4 * COLS + place4(c);
			if (!WIDE || (slot_ & 3u) == 0)
				xd[at / 4][at & 3u] = there ? xscale[k] : 0;
		}
		barrier();
		if (AHEAD && stage + 1 < stages)
			BRING(stage + 1)
		if (idle)
			continue;
		// Steps are written out, for the reason that matvec.comp gives.
#define DOTS(s, m, n) s##m[n] += dot4(a##m.x, x##n.x); s##m[n] += dot4(a##m.y, x##n.y); s##m[n] += dot4(a##m.z, x##n.z); s##m[n] += dot4(a##m.w, x##n.w);
#define ACROSS(s, m) DOTS(s, m, 0) DOTS(s, m, 1) DOTS(s, m, 2) DOTS(s, m, 3)
#define LOW(m) ACROSS(lo, m)
#define HIGH(m) ACROSS(hi, m)
#define FETCH(k) { \
	a0 = ws[wrow + 2 * slot + k]; \
	a1 = ws[wrow + 8 * PITCH + 2 * slot + k]; \
	a2 = ws[wrow + 16 * PITCH + 2 * slot + k]; \
	a3 = ws[wrow + 24 * PITCH + 2 * slot + k]; \
	x0 = xs[xrow + 2 * slot + k]; \
	x1 = xs[xrow + 4 * PITCH + 2 * slot + k]; \
	x2 = xs[xrow + 8 * PITCH + 2 * slot + k]; \
	x3 = xs[xrow + 12 * PITCH + 2 * slot + k]; \
}
#define SCALED(m) { \
	int s = int(i4[m]); \
	if (HALVES) \
		isum##m += ivec4(s << 24 >> 24) * lo##m + ivec4(s << 16 >> 24) * hi##m; \
	else \
		isum##m += ivec4(s << 24 >> 24) * lo##m; \
	if (MINS) \
		msum##m += PAIRED ? ivec4(s << 8 >> 24) * xt : ivec4(s << 8 >> 24) * xl + ivec4(s >> 24) * xh; \
}
#define ADDED(u, m) { \
	if (TYPE == NVFP4) { \
		f##u##m = f##u##m + (vec4(d4[m]) * y4) * vec4(lo##m); \
		f##u##m = f##u##m + (vec4(m4[m]) * y4) * vec4(hi##m); \
	} else { \
		f##u##m = f##u##m + (vec4(d4[m]) * y4) * vec4(lo##m); \
		if (MINS) \
			f##u##m = f##u##m + (vec4(m4[m]) * y4) * vec4(xt); \
	} \
}
#define STEP(u) { \
	uint slot = WIDE ? 4 * half_ + u : 2 * u + half_; \
	ivec4 lo0 = ivec4(0), lo1 = ivec4(0), lo2 = ivec4(0), lo3 = ivec4(0), hi0 = ivec4(0), hi1 = ivec4(0), hi2 = ivec4(0), hi3 = ivec4(0); \
	uvec4 a0, a1, a2, a3, x0, x1, x2, x3; \
	FETCH(0) \
	ALL4(LOW) \
	FETCH(1) \
	if (HALVES) { \
		ALL4(HIGH) \
	} else { \
		ALL4(LOW) \
	} \
	ivec4 xw = ivec4(0), xl, xh; \
	if (MINS) \
		xw = ivec4(xi[slot * (COLS / 4) + xat]); \
	xl = xw << 16 >> 16; \
	xh = xw >> 16; \
	ivec4 xt = xl + xh; \
	if (WIDE) { \
		uvec4 i4 = wi[slot * (ROWS / 4) + wat]; \
		ALL4(SCALED) \
	} else { \
		vec4 d4 = wd[slot * (ROWS / 4) + wat], m4 = vec4(0), y4 = xd[slot * (COLS / 4) + xat]; \
		if (TWOS) \
			m4 = wm[slot * (ROWS / 4) + wat]; \
		ADDED(u, 0) ADDED(u, 1) ADDED(u, 2) ADDED(u, 3) \
	} \
}
		bool none = WIDE && unitAt(stage, 4 * half_, per) >= units; // of an accumulator with fewer blocks
		if (!none) {
			STEP(0) STEP(1) STEP(2) STEP(3)
		}
		if (WIDE && !none && (stage & 1u) == 1) {
			vec4 d4 = wd[half_ * (ROWS / 4) + wat], m4 = vec4(0), y4 = xd[half_ * (COLS / 4) + xat];
			if (MINS)
				m4 = wm[half_ * (ROWS / 4) + wat];
#define BLOCK(m) { \
	f0##m = f0##m + (vec4(d4[m]) * y4) * vec4(isum##m); \
	if (MINS) \
		f0##m = f0##m - (vec4(m4[m]) * y4) * vec4(msum##m); \
	isum##m = ivec4(0); \
	msum##m = ivec4(0); \
}
			ALL4(BLOCK)
		}
		if (WIDE && stage == 2 * per - 1) {
#define NEXT(m) \
	f1##m = f0##m; \
	f0##m = vec4(0);
			ALL4(NEXT)
		}
	}
	// The halves join where the tiles were: results of four columns a quad.
	barrier();
	uint at = (tile * 32 + (t & 31u)) * 4;
#define JOIN(m) { \
	vec4 s = WIDE ? f1##m + f0##m : (f0##m + f2##m) + (f1##m + f3##m); \
	if (half_ == 1) \
		ws[at + m] = floatBitsToUint(s); \
	f0##m = s; \
}
	ALL4(JOIN)
	barrier();
	if (half_ == 1 || idle)
		return;
#define STORE(m) { \
	uint r = r0 + rb + tr + 8 * m; \
	if (r < p.out_) { \
		vec4 y = f0##m + uintBitsToFloat(ws[at + m]); \
		if (j.bias != 0) \
			y = y + vec4(Floats(j.bias).v[r]); \
		[[unroll]] for (uint k = 0; k < 4; k++) { \
			uint c = cb + tc + 4 * k; \
			if (c < n) \
				Floats(p.dst + (uint64_t(j.first + c0 + c) * p.ld + j.off + r) * 4).v[0] = y[k]; \
		} \
	} \
}
	ALL4(STORE)
}
