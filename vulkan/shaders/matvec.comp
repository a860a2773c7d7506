#version 450
// variants: base dot
#extension GL_GOOGLE_include_directive : require
// Quantised weights times one row of int8 activations, for the types that are met most. What product.comp sums in one thread is
// done here in two steps. First each thread meets pieces of ROWS rows with the same piece of activations, by loads of 16 bytes;
// integer sums are exact, so that it does not matter who makes them. Then few threads add up the blocks of a row in the order of
// the contract. With PAIR gate and up are met together and activated; with INLINE the activations are float32 and are
// quantised here, by each workgroup for itself: that costs less than waiting for somebody else to do it.
//
// With ALONE a thread makes one accumulator of a row by itself, from every eighth block: MXFP4 has so few bytes for its arithmetic
// that instructions are what counts, and so there are no sums to pass on, and where its blocks begin within a word is the same for
// all of them.
#include "common.glsl"
#include "units.glsl"
#include "product.glsl"
#include "dot.glsl"
#include "int8.glsl"
#include "shift.glsl"
layout(constant_id = 1) const uint FLAGS = 4; // rows of a thread; 256: PAIR; 512: INLINE; 1024: ALONE
layout(constant_id = 2) const uint THREADS = 64;
layout(constant_id = 3) const uint IN = 256; // elements of a row
layout(local_size_x_id = 2) in;

const uint ROWS = FLAGS & 255u;
const bool PAIR = (FLAGS & 256u) != 0, INLINE = (FLAGS & 512u) != 0;
const bool WIDE = TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K;
const bool MINS = TYPE == Q4_K || TYPE == Q5_K;
const uint SPAN = TYPE == Q6_K ? 128 : WIDE ? 64 : 32; // elements of a piece
const uint PER = 256 / SPAN;                           // pieces of a block of 256
const uint LANES = WIDE ? 4 : 8;                       // accumulators
const uint PIECES = IN / SPAN;
const uint ACROSS = PIECES < THREADS ? PIECES : THREADS; // pieces at a time
const uint FIT = THREADS / ACROSS, ROOM = THREADS / (ROWS * LANES);
const uint GROUPS = FIT < ROOM ? FIT : ROOM; // rows at a time
const uint BLOCK = WIDE ? 256 : 32;

// No && here: the compiler makes that a branch, and then sizes of arrays are no constants.
const bool ALONE = (FLAGS & (TYPE == MXFP4 ? 1024u : 0u)) != 0;
const uint ALL = (ALONE ? THREADS / LANES : GROUPS) * ROWS; // rows of the workgroup, of both matrices where there is a pair

shared int parts[ALONE ? 1 : THREADS * ROWS * (MINS ? 2 : 1)]; // of blocks of 32: their products, as floats
shared vec2 scales[WIDE ? THREADS * ROWS : 1];
shared float sums[ALONE ? THREADS * ROWS : THREADS];
shared uint xq[INLINE ? IN / 4 : 1], xtop[INLINE ? IN / BLOCK : 1];
shared int xs[INLINE ? IN / 16 : 1];

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v; };
uvec4 quad(uint64_t a) { return Quads(a).v; }

const uint RAW = 10; // most quads of a piece

// slot is where word i of the activations lies in xq. Threads beside each other read the same quad of pieces that follow each
// other: without this all of them would lie in few banks.
const uint TURN = TYPE == Q6_K ? 28 : TYPE == MXFP4 ? 4 : 0;
uint slot(uint i) { return i ^ (i >> 3 & TURN); }

// ONCE quads are loaded before any is used.
const uint EACH = (IN / 4 + THREADS - 1) / THREADS, ONCE = EACH < 8 ? EACH : 8;
#define TAKEN(base) { \
	[[unroll]] for (uint k = 0; k < ONCE; k++) \
		v[k] = quad(x + 16 * min(base + k * THREADS, IN / 4 - 1)); \
}

// quantise fills xq, xs and xtop, of which the last becomes the scales.
void quantise(uint64_t x) {
	uint t = gl_LocalInvocationID.x;
	for (uint i = t; i < IN / BLOCK; i += THREADS)
		xtop[i] = 0;
	for (uint i = t; i < IN / 16; i += THREADS)
		xs[i] = 0;
	barrier();
	uvec4 v[ONCE];
	for (uint base = t; base < IN / 4; base += ONCE * THREADS) {
		TAKEN(base)
		[[unroll]] for (uint k = 0; k < ONCE; k++) {
			uint i = base + k * THREADS;
			uvec4 a = v[k] & 0x7fffffffu;
			if (i < IN / 4)
				atomicMax(xtop[4 * i / BLOCK], max(max(a.x, a.y), max(a.z, a.w)));
		}
	}
	barrier();
	for (uint base = t; base < IN / 4; base += ONCE * THREADS) {
		if (IN / 4 > ONCE * THREADS)
			TAKEN(base)
		[[unroll]] for (uint n = 0; n < ONCE; n++) {
			uint i = base + n * THREADS;
			if (i >= IN / 4)
				continue;
			vec4 f = uintBitsToFloat(v[n]);
			float d, inv;
			int8Scale(xtop[4 * i / BLOCK], d, inv);
			uint w = 0;
			int sum = 0;
			if (inv != 0) {
				[[unroll]] for (uint k = 0; k < 4; k++) {
					uint q = int8Code(f[k], inv);
					w |= q << 8 * k;
					sum += int(q << 24) >> 24;
				}
			}
			xq[slot(i)] = w;
			if (MINS || TYPE == Q6_K)
				atomicAdd(xs[i >> 2], sum);
		}
	}
	barrier();
	for (uint i = t; i < IN / BLOCK; i += THREADS) {
		float d, inv;
		int8Scale(xtop[i], d, inv);
		xtop[i] = floatBitsToUint(d);
	}
	barrier();
}

#define TAKE(k) if (SPAN > 16 * k) { \
	uint i = slot(p * (SPAN / 4) + 4 * k); \
	uvec4 v = INLINE ? uvec4(xq[i], xq[i + 1], xq[i + 2], xq[i + 3]) : quad(q + (p * SPAN + 16 * k)); \
	x[4 * k] = v.x; \
	x[4 * k + 1] = v.y; \
	x[4 * k + 2] = v.z; \
	x[4 * k + 3] = v.w; \
}
#define TOTAL(k) if ((MINS || TYPE == Q6_K) && SPAN > 32 * k) { \
	int w = INLINE ? 0 : int(Words(s).v[p * (SPAN / 32) + k]); \
	sum[2 * k] = INLINE ? xs[p * (SPAN / 16) + 2 * k] : w << 16 >> 16; \
	sum[2 * k + 1] = INLINE ? xs[p * (SPAN / 16) + 2 * k + 1] : w >> 16; \
}
// Steps are written out: compilers that leave a loop as it is put arrays where they can be indexed, which is slow.
// Activations of a piece: codes, sums of 16, scale.
void activations(uint64_t q, uint64_t d, uint64_t s, uint p, out uint x[32], out int sum[8], out float dy) {
	TAKE(0) TAKE(1) TAKE(2) TAKE(3) TAKE(4) TAKE(5) TAKE(6) TAKE(7)
	TOTAL(0) TOTAL(1) TOTAL(2) TOTAL(3)
	uint b = WIDE ? p / PER : p;
	dy = INLINE ? uintBitsToFloat(xtop[b]) : Floats(d).v[b];
}

// load fetches piece p of a row, from the quad on in which it begins.
void load(uint64_t row, uint p, out uvec4 w[RAW]) {
	switch (TYPE) {
	case Q4_K: {
		uint64_t b = row + 144 * (p >> 2);
		w[0] = quad(b);
		w[1] = quad(b + (16 + 32 * (p & 3u)));
		w[2] = quad(b + (32 + 32 * (p & 3u)));
		break;
	}
	case Q5_K: {
		uint64_t b = row + 176 * (p >> 2);
		w[0] = quad(b);
		w[1] = quad(b + 16);
		w[2] = quad(b + 32);
		w[3] = quad(b + (48 + 32 * (p & 3u)));
		w[4] = quad(b + (64 + 32 * (p & 3u)));
		break;
	}
	case Q6_K: {
		uint64_t b = row + 210 * (p >> 1) & ~15ul;
		uint64_t l = b + 64 * (p & 1u), h = b + (128 + 32 * (p & 1u));
		w[0] = quad(l);
		w[1] = quad(l + 16);
		w[2] = quad(l + 32);
		w[3] = quad(l + 48);
		w[4] = quad(l + 64);
		w[5] = quad(h);
		w[6] = quad(h + 16);
		w[7] = quad(h + 32);
		w[8] = quad(b + 192);
		w[9] = quad(b + 208);
		break;
	}
	case Q8_0: {
		uint64_t b = row + 34 * p & ~15ul;
		w[0] = quad(b);
		w[1] = quad(b + 16);
		w[2] = quad(b + 32);
		break;
	}
	case MXFP4: {
		uint64_t b = row + 17 * p & ~3ul;
		w[0] = uvec4(word(b, 0), word(b, 4), word(b, 8), word(b, 12));
		w[1].x = word(b, 16);
		break;
	}
	}
}

const uint each4 = 0x11111111u;

// late takes word k of w from byte n/8 on.
#define LATE(w, k, n) uint((uint64_t(w[(k) + 1]) << 32 | w[k]) >> (n))

#define WORDS4(k) w[k].x, w[k].y, w[k].z, w[k].w
// SIX meets word k of each quarter of a half block of Q6_K.
#define SIX(k) \
	a0 += dot4(l[k] & low4 | h[k] << 4 & 0x30303030u, x[k]); \
	a1 += dot4(l[k + 8] & low4 | h[k] << 2 & 0x30303030u, x[k + 8]); \
	a2 += dot4(l[k] >> 4 & low4 | h[k] & 0x30303030u, x[k + 16]); \
	a3 += dot4(l[k + 8] >> 4 & low4 | h[k] >> 2 & 0x30303030u, x[k + 24]);

// sixes is a half block of Q6_K: its low and high bits and its eight scales.
int sixes(const uint l[20], const uint h[12], uint s0, uint s1, const uint x[32], const int xsum[8]) {
	int a0 = -32 * xsum[0], a1 = -32 * xsum[2], a2 = -32 * xsum[4], a3 = -32 * xsum[6];
	SIX(0) SIX(1) SIX(2) SIX(3)
	int isum = (int(s0 << 24) >> 24) * a0 + (int(s0 << 8) >> 24) * a1 + (int(s1 << 24) >> 24) * a2 + (int(s1 << 8) >> 24) * a3;
	a0 = -32 * xsum[1];
	a1 = -32 * xsum[3];
	a2 = -32 * xsum[5];
	a3 = -32 * xsum[7];
	SIX(4) SIX(5) SIX(6) SIX(7)
	return isum + (int(s0 << 16) >> 24) * a0 + (int(s0) >> 24) * a1 + (int(s1 << 16) >> 24) * a2 + (int(s1) >> 24) * a3;
}

// FOUR meets word k of MXFP4. Of the magnitudes 0, 1, 2, 3, 4, 6, 8, 12 a code from 4 on counts its low bits again, and 7 two
// more. What is negative is taken off twice. The high magnitudes meet their activations together with the low ones, which the
// same product of these takes off again: on GPUs there is more room for a product than for a mask.
#define FOUR(k) { \
	uint c = LATE(v, k, n); \
	uint m = c & (c >> 2 & each4) * 3; \
	m = (c & 0x77777777u) + m + (m << 1 & m & 0x22222222u); \
	uint sign = (c >> 3 & each4) * 15, low = m & low4; \
	lo += dot4(low, x[k]); \
	nlo += dot4(low & sign, x[k]); \
	hi += dotu(x[k + 4], m); \
	both += dot4(low, x[k + 4]); \
	nhi += dotu(x[k + 4], m & sign & ~low4); \
}

// fours is a block of MXFP4 that begins n/8 - 1 bytes after v does.
int fours(const uint v[5], uint n, const uint x[32], out float d) {
	// The scale is 2^(e-128), which is no normal number where e is 0 or 1: then the second one is the greater.
	uint e = v[0] >> n - 8 & 255u;
	d = intBitsToFloat(max(int(e * 0x00800000u - 0x00800000u), int(e * 0x00200000u + 0x00200000u)));
	int lo = 0, hi = 0, nlo = 0, nhi = 0, both = 0;
	FOUR(0) FOUR(1) FOUR(2) FOUR(3)
	return lo - 2 * nlo + (hi - both - 2 * nhi >> 4);
}

// meet multiplies piece p with its activations: the integer sums, and scale and minimum of the block.
void meet(const uvec4 w[RAW], uint64_t row, uint p, const uint x[32], const int xsum[8], out int isum, out int msum, out float d, out float dm) {
	isum = 0;
	msum = 0;
	dm = 0;
	d = 0;
	switch (TYPE) {
	case Q4_K:
	case Q5_K: {
		uint j = p & 3u, n = 16 * (j & 1u);
		d = widen(w[0].x & 0xffffu);
		dm = widen(w[0].x >> 16);
		uint a = w[0].y >> n, b = w[0].z >> n, c = w[0].w >> n;
		// Scales and minima of both units, each in the low byte of a half.
		uint sc = mix(c & 0x0f0fu | (a & 0xc0c0u) >> 2, a & 0x3f3fu, j < 2);
		uint mn = mix(c >> 4 & 0x0f0fu | (b & 0xc0c0u) >> 2, b & 0x3f3fu, j < 2);
		int lo = 0, hi = 0;
		[[unroll]] for (uint k = 0; k < 8; k++) {
			uint v = w[(TYPE == Q4_K ? 1 : 3) + (k >> 2)][k & 3u];
			if (TYPE == Q4_K) {
				lo += dot4(v & low4, x[k]);
				hi += dotu(x[k + 8], v & ~low4);
			} else {
				uint h = w[1 + (k >> 2)][k & 3u] >> 2 * j;
				lo += dot4(v & low4 | h << 4 & 0x10101010u, x[k]);
				hi += dot4(v >> 4 & low4 | h << 3 & 0x10101010u, x[k + 8]);
			}
		}
		if (TYPE == Q4_K)
			hi >>= 4;
		isum = int(sc & 255u) * lo + int(sc >> 8) * hi;
		msum = int(mn & 255u) * (xsum[0] + xsum[1]) + int(mn >> 8) * (xsum[2] + xsum[3]);
		break;
	}
	case Q6_K: {
		uint o = uint(row + 210 * (p >> 1)) & 15u;
		uint l[20] = {WORDS4(0), WORDS4(1), WORDS4(2), WORDS4(3), WORDS4(4)}, h[12] = {WORDS4(5), WORDS4(6), WORDS4(7)}, s[8] = {WORDS4(8), WORDS4(9)};
		SHIFT16(l, o)
		X16(HALF, l, 0, o)
		SHIFT8(h, o)
		X8(HALF, h, 0, o)
		SHIFT4(s, o)
		d = widen(s[4] >> 8 * (o & 2u) & 0xffffu);
		X4(HALF, s, 0, o)
		isum = sixes(l, h, mix(s[0], s[2], (p & 1u) != 0), mix(s[1], s[3], (p & 1u) != 0), x, xsum);
		break;
	}
	case Q8_0: {
		uint o = uint(row + 34 * p) & 15u;
		uint v[12] = {WORDS4(0), WORDS4(1), WORDS4(2)};
		SHIFT8(v, o)
		d = widen(v[0] >> 8 * (o & 2u) & 0xffffu);
		[[unroll]] for (uint k = 0; k < 8; k++)
			isum += dot4(mix(v[k] >> 16 | v[k + 1] << 16, v[k + 1], (o & 2u) != 0), x[k]);
		break;
	}
	case MXFP4: {
		const uint v[5] = {WORDS4(0), w[1].x};
		isum = fours(v, 8 + 8 * (uint(row + 17 * p) & 3u), x, d);
		break;
	}
	}
}

// begins is where row r of the workgroup lies; those past the end are the last one again.
uint64_t begins(const Job j, uint first, uint r) {
	uint n = first + (PAIR ? r >> 1 : r);
	return (PAIR && (r & 1u) != 0 ? j.w2 : j.w) + uint64_t(min(n, p.out_ - 1)) * p.stride;
}

// A thread that is ALONE loads the blocks of AHEAD steps before it meets any; a step is a block of each of its rows.
const uint STEPS = (PIECES + LANES - 1) / LANES, AHEAD = ROWS >= 4 ? 1 : STEPS < 4 / ROWS ? STEPS : 4 / ROWS;

// steps goes through the blocks of AHEAD steps from one on; with whole all of them are there. Addresses are written so that the
// blocks lie at fixed distances from the first.
void steps(const bool whole, uint step, const uint64_t from[ROWS], const uint n[ROWS], uint64_t q, uint64_t d, uint64_t s, inout float acc[ROWS]) {
	uint v[AHEAD][ROWS][5];
	uint now = step * LANES + gl_LocalInvocationID.x % LANES;
	[[unroll]] for (uint k = 0; k < ROWS; k++) {
		uint64_t a = from[k] + 17 * LANES * step;
		[[unroll]] for (uint i = 0; i < AHEAD; i++) {
			bool there = whole || now + i * LANES < PIECES;
			[[unroll]] for (uint m = 0; m < 5; m++)
				v[i][k][m] = word(there ? a + uint64_t(17 * LANES * i) : from[k], 4 * m);
		}
	}
	[[unroll]] for (uint i = 0; i < AHEAD; i++) {
		uint at = now + i * LANES, x[32];
		int xsum[8];
		float dy;
		if (INLINE || !whole)
			activations(q, d, s, whole ? at : min(at, PIECES - 1), x, xsum, dy);
		else
			activations(q + SPAN * now, d + 4 * now, s, i * LANES, x, xsum, dy);
		[[unroll]] for (uint k = 0; k < ROWS; k++) {
			float dw;
			int isum = fours(v[i][k], n[k], x, dw);
			float y = (dw * dy) * float(isum);
			if (whole || at < PIECES)
				acc[k] = acc[k] + y;
		}
	}
}

// joined meets the rows of the workgroup and adds up the accumulator that is the thread's.
float joined(const Job j, uint first, uint64_t q, uint64_t d, uint64_t s) {
	uint t = gl_LocalInvocationID.x;
	uint piece = t % ACROSS, g = t / ACROSS;
	// The thread that adds up: accumulator lane of row r of the workgroup.
	uint r = t / LANES, lane = t % LANES;
	float acc = 0;
	for (uint base = 0; base < PIECES; base += ACROSS) {
		uint at = base + piece;
		bool there = g < GROUPS && piece < ACROSS && at < PIECES;
		uint x[32];
		int xsum[8];
		float dy;
		if (there) {
			uvec4 raw[ROWS][RAW];
			uint64_t row[ROWS];
			[[unroll]] for (uint k = 0; k < ROWS; k++) {
				row[k] = begins(j, first, k * GROUPS + g);
				load(row[k], at, raw[k]);
			}
			activations(q, d, s, at, x, xsum, dy);
			[[unroll]] for (uint k = 0; k < ROWS; k++) {
				int isum, msum;
				float dw, dm;
				meet(raw[k], row[k], at, x, xsum, isum, msum, dw, dm);
				uint to = (k * GROUPS + g) * ACROSS + piece;
				if (WIDE) {
					parts[to] = isum;
					if (MINS)
						parts[to + THREADS * ROWS] = msum;
					if (piece % PER == 0)
						scales[to / PER] = vec2(dw * dy, dm * dy);
				} else {
					parts[to] = floatBitsToInt((dw * dy) * float(isum));
				}
			}
		}
		barrier();
		if (r < ALL) {
			uint n = PIECES % ACROSS == 0 ? ACROSS : min(ACROSS, PIECES - base), from = r * ACROSS;
			if (WIDE) {
				for (uint b = lane; b < n / PER; b += LANES) {
					int isum = 0, msum = 0;
					[[unroll]] for (uint k = 0; k < PER; k++) {
						isum += parts[from + b * PER + k];
						if (MINS)
							msum += parts[from + b * PER + k + THREADS * ROWS];
					}
					vec2 f = scales[from / PER + b];
					acc = acc + f.x * float(isum);
					if (MINS)
						acc = acc - f.y * float(msum);
				}
			} else {
				for (uint b = lane; b < n; b += LANES)
					acc = acc + intBitsToFloat(parts[from + b]);
			}
		}
		barrier();
	}
	return acc;
}

void main() {
	uint t = gl_LocalInvocationID.x;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	if (j.n == 0)
		return;
	uint act = j.rows != 0 ? Words(j.rows).v[0] : j.act;
	uint64_t q = p.q + uint64_t(act) * IN, d = p.d + uint64_t(act) * (IN / BLOCK) * 4, s = p.s + uint64_t(act) * (IN / 32) * 4;
	uint first = gl_WorkGroupID.x * (PAIR ? ALL / 2 : ALL);
	if (INLINE)
		quantise(p.q + uint64_t(act) * IN * 4);
	if (ALONE) {
		uint lane = t % LANES, n[ROWS];
		uint64_t from[ROWS];
		float acc[ROWS];
		[[unroll]] for (uint k = 0; k < ROWS; k++) {
			uint64_t b = begins(j, first, k * (THREADS / LANES) + t / LANES) + 17 * min(lane, PIECES - 1);
			from[k] = b & ~3ul;
			n[k] = 8 + 8 * (uint(b) & 3u);
			acc[k] = 0;
		}
		const uint most = PIECES / LANES / AHEAD * AHEAD; // steps that are whole
		[[dont_unroll]] for (uint i = 0; i < most; i += AHEAD)
			steps(true, i, from, n, q, d, s, acc);
		if (most < STEPS)
			for (uint i = most; i < STEPS; i += AHEAD)
				steps(false, i, from, n, q, d, s, acc);
		[[unroll]] for (uint k = 0; k < ROWS; k++)
			sums[k * THREADS + t] = acc[k];
	} else {
		sums[t] = joined(j, first, q, d, s);
	}
	barrier();
	if (t >= (PAIR ? ALL / 2 : ALL) || first + t >= p.out_)
		return;
	float y[2];
	[[unroll]] for (uint m = 0; m < (PAIR ? 2 : 1); m++) {
		uint at = (PAIR ? 2 * t + m : t) * LANES;
		if (LANES == 4)
			y[m] = (sums[at] + sums[at + 1]) + (sums[at + 2] + sums[at + 3]);
		else
			y[m] = ((sums[at] + sums[at + 4]) + (sums[at + 2] + sums[at + 6])) + ((sums[at + 1] + sums[at + 5]) + (sums[at + 3] + sums[at + 7]));
		uint64_t bias = m == 1 ? j.bias2 : j.bias;
		if (bias != 0)
			y[m] = y[m] + Floats(bias).v[first + t];
	}
	if (PAIR)
		y[0] = activate(p.act, y[0], y[1]);
	Floats(p.dst + (uint64_t(j.first) * p.ld + j.off + first + t) * 4).v[0] = y[0];
}
