#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// values.comp for many rows: HEADS query heads of a row that share values, which are read once for all of them. BLOCKS blocks of scores
// are there at a time; their maxima and sums are made for all heads and blocks at once.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint VT = 0;
layout(constant_id = 1) const uint VD = 128;
layout(constant_id = 2) const uint HEADS = 8;  // at most 8
layout(constant_id = 3) const uint STRIDE = 0; // bytes of a position
layout(push_constant) uniform Push {
	uint64_t dst, v, scores, sinks, where; // sinks: 0: none
	uint heads, group, window, cells, ld;
	uint row, rows; // of dst: the first one here, and how many there are
	uint64_t q32;   // their form as int8, by blocks of 32; 0: not wanted
} p;
const uint BLOCKS = 6, PITCH = 17; // quads of a block: odd, so that threads with a block each meet no bank twice
const uint ELEMS = (VD + 127) / 128;
#define INF uintBitsToFloat(0x7f800000u)
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 v; };
shared vec4 w[HEADS * BLOCKS * PITCH];
shared float top[HEADS * BLOCKS], before[HEADS * BLOCKS], block[HEADS * BLOCKS], cur[HEADS];
shared bool any_[HEADS];
shared float chunk[128];
const uint THREADS = 128;
#include "acts.glsl"

// Steps are written out, for the reason that matvec.comp gives.
#define EIGHT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
// raw is element n of a position as it lies there.
uint raw(uint64_t at, uint n) { return VT == 0 ? uint(Halves(at).v[n]) : floatBitsToUint(kvElement(VT, at, n)); }
float value(uint x) { return VT == 0 ? widen(x) : uintBitsToFloat(x); }

void main() {
	uint t = gl_LocalInvocationID.x, h0 = gl_WorkGroupID.x * HEADS, r = gl_WorkGroupID.y;
	uint pos = Words(p.where).v[0], n = pos + r + 1;
	uint from = p.window > 0 && n > p.window ? n - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, last = (n + 63) / 64;
	uint64_t values = p.v + uint64_t(h0 / p.group) * p.cells * STRIDE;
	// Of each head: the thread's element, the one 128 further where there is one, and the sum of weights.
#define DECLARE(h) float o##h = 0, O##h = 0, s##h = p.sinks != 0 ? 1 : 0;
	EIGHT(DECLARE)
	uint n0 = min(t, VD - 1), n1 = min(128 + t, VD - 1);
	if (t < HEADS) {
		any_[t] = p.sinks != 0;
		cur[t] = p.sinks != 0 ? Floats(p.sinks).v[h0 + t] : 0;
	}
	for (uint first = from / 64; first < last; first += BLOCKS) {
		uint count = min(BLOCKS, last - first);
		barrier();
		for (uint i = t; i < HEADS * count * 16; i += 128) {
			uint h = i / (count * 16), k = i % (count * 16);
			w[(h * BLOCKS + k / 16) * PITCH + k % 16] = Quads(p.scores + (((uint64_t(r) * p.heads + h0 + h) * p.ld) + (first - base) * 64 + 4 * k) * 4).v;
		}
		barrier();
		uint hb = t / BLOCKS, b = t % BLOCKS; // a head and a block of it
		uint start = 64 * (first + b), lo = max(from, start) - start, hi = min(n, start + 64) - start;
		bool mine = t < HEADS * BLOCKS && b < count;
		if (mine) {
			float best = -INF;
			if (lo == 0 && hi == 64) {
				for (uint k = 0; k < 16; k++) {
					vec4 x = w[t * PITCH + k];
					best = x.x > best ? x.x : best;
					best = x.y > best ? x.y : best;
					best = x.z > best ? x.z : best;
					best = x.w > best ? x.w : best;
				}
			} else {
				for (uint k = lo; k < hi; k++) {
					float x = w[t * PITCH + k / 4][k & 3u];
					best = x > best ? x : best;
				}
			}
			top[t] = best;
		}
		barrier();
		if (t < HEADS) {
			float now = cur[t];
			bool some = any_[t];
			for (uint k = 0; k < count; k++) {
				float best = top[t * BLOCKS + k];
				if (!some)
					now = best;
				some = true;
				before[t * BLOCKS + k] = now;
				if (best > now)
					now = best;
				top[t * BLOCKS + k] = now;
			}
			cur[t] = now;
			any_[t] = true;
		}
		barrier();
		for (uint i = t; i < HEADS * count * 16; i += 128) {
			uint h = i / (count * 16), k = i % (count * 16), at = (h * BLOCKS + k / 16) * PITCH + k % 16;
			float m = top[h * BLOCKS + k / 16];
			vec4 x = w[at];
			w[at] = vec4(fexp(x.x - m), fexp(x.y - m), fexp(x.z - m), fexp(x.w - m));
		}
		barrier();
		if (mine) {
			float s = 0;
			if (lo == 0 && hi == 64) {
				for (uint k = 0; k < 16; k++) {
					vec4 x = w[t * PITCH + k];
					s = s + x.x;
					s = s + x.y;
					s = s + x.z;
					s = s + x.w;
				}
			} else {
				for (uint k = lo; k < hi; k++)
					s = s + w[t * PITCH + k / 4][k & 3u];
			}
			block[t] = s;
			before[t] = top[t] > before[t] ? fexp(before[t] - top[t]) : 1;
		}
		barrier();
		uint x0, x1, x2, x3, x4, x5, x6, x7, X0, X1, X2, X3, X4, X5, X6, X7;
#define LOAD1(k) { \
	uint64_t a = at + uint64_t(min(cell + k, p.cells - 1)) * STRIDE; \
	x##k = raw(a, n0); \
	if (ELEMS > 1) \
		X##k = raw(a, n1); \
}
// LOAD fetches the g-th eight positions of those here.
#define LOAD(g) { \
	uint64_t at = values; \
	uint cell = 64 * (first + (g) / 8) % p.cells + (g) % 8 * 8; \
	EIGHT(LOAD1) \
}
		LOAD(0)
		for (uint g = 0; g < count * 8; g++) {
			uint b = g / 8, at = 64 * first + 8 * g;
#define WIDEN(k) float v##k = value(x##k), V##k = ELEMS > 1 ? value(X##k) : 0;
			EIGHT(WIDEN)
			if (g + 1 < count * 8)
				LOAD(g + 1)
			if (g % 8 == 0) {
#define BLOCK(h) if (h < HEADS) { \
	float f = before[h * BLOCKS + b]; \
	s##h = s##h * f; \
	o##h = o##h * f; \
	O##h = O##h * f; \
	s##h = s##h + block[h * BLOCKS + b]; \
}
				EIGHT(BLOCK)
			}
			uint wat = b * PITCH + g % 8 * 2;
#define ONE(h, f, k) o##h = ffma(f, v##k, o##h); if (ELEMS > 1) O##h = ffma(f, V##k, O##h);
			if (at >= from && at + 8 <= n) {
#define WHOLE(h) if (h < HEADS) { \
	vec4 u = w[h * BLOCKS * PITCH + wat], v = w[h * BLOCKS * PITCH + wat + 1]; \
	ONE(h, u.x, 0) ONE(h, u.y, 1) ONE(h, u.z, 2) ONE(h, u.w, 3) ONE(h, v.x, 4) ONE(h, v.y, 5) ONE(h, v.z, 6) ONE(h, v.w, 7) \
}
				EIGHT(WHOLE)
			} else {
#define IF(h, f, k) if (at + k >= from && at + k < n) { ONE(h, f, k) }
#define PARTLY(h) if (h < HEADS) { \
	vec4 u = w[h * BLOCKS * PITCH + wat], v = w[h * BLOCKS * PITCH + wat + 1]; \
	IF(h, u.x, 0) IF(h, u.y, 1) IF(h, u.z, 2) IF(h, u.w, 3) IF(h, v.x, 4) IF(h, v.y, 5) IF(h, v.z, 6) IF(h, v.w, 7) \
}
				EIGHT(PARTLY)
			}
		}
	}
#define FINISH(h) if (h < HEADS) { \
	float inv = frecip(s##h); \
	uint64_t to = p.dst + (uint64_t(r) * p.heads + h0 + h) * VD * 4; \
	if (t < VD) \
		Floats(to).v[t] = o##h * inv; \
	if (ELEMS > 1 && 128 + t < VD) \
		Floats(to).v[128 + t] = O##h * inv; \
	if (p.q32 != 0) { \
		chunk[t] = o##h * inv; \
		acts(p.q32, 32, p.row + r, p.rows, p.heads * VD, (h0 + h) * VD, VD); \
	} \
}
	EIGHT(FINISH)
}
