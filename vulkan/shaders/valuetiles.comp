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
const uint ELEMS = (VD + 127) / 128, HELD = 4 * ELEMS;
#define INF uintBitsToFloat(0x7f800000u)
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 v; };
shared vec4 w[HEADS * BLOCKS * PITCH];
shared float top[HEADS * BLOCKS], before[HEADS * BLOCKS], block[HEADS * BLOCKS], cur[HEADS];
shared bool any_[HEADS];
shared float chunk[128];
const uint THREADS = 128;
#include "acts.glsl"

// load fetches four positions from cell on.
void load(uint64_t values, uint cell, uint t, out uint x[HELD]) {
	[[unroll]] for (uint k = 0; k < 4; k++)
		[[unroll]] for (uint e = 0; e < ELEMS; e++) {
			uint64_t at = values + uint64_t(min(cell + k, p.cells - 1)) * STRIDE;
			uint n = min(e * 128 + t, VD - 1);
			x[k * ELEMS + e] = VT == 0 ? uint(Halves(at).v[n]) : floatBitsToUint(kvElement(VT, at, n));
		}
}
float value(uint x) { return VT == 0 ? widen(x) : uintBitsToFloat(x); }

void main() {
	uint t = gl_LocalInvocationID.x, h0 = gl_WorkGroupID.x * HEADS, r = gl_WorkGroupID.y;
	uint pos = Words(p.where).v[0], n = pos + r + 1;
	uint from = p.window > 0 && n > p.window ? n - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, last = (n + 63) / 64;
	uint64_t values = p.v + uint64_t(h0 / p.group) * p.cells * STRIDE;
	float out_[8 * ELEMS], sum[8];
	[[unroll]] for (uint h = 0; h < 8; h++) {
		sum[h] = p.sinks != 0 ? 1 : 0;
		[[unroll]] for (uint e = 0; e < ELEMS; e++)
			out_[h * ELEMS + e] = 0;
	}
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
		uint x[HELD], y[HELD];
		load(values, 64 * first % p.cells, t, x);
		for (uint g = 0; g < count * 16; g++) {
			if (g + 1 < count * 16)
				load(values, 64 * (first + (g + 1) / 16) % p.cells + (g + 1) % 16 * 4, t, y);
			uint b = g / 16, at = 64 * first + 4 * g;
			if (g % 16 == 0)
				[[unroll]] for (uint h = 0; h < HEADS; h++) {
					float f = before[h * BLOCKS + b];
					sum[h] = sum[h] * f;
					[[unroll]] for (uint e = 0; e < ELEMS; e++)
						out_[h * ELEMS + e] = out_[h * ELEMS + e] * f;
					sum[h] = sum[h] + block[h * BLOCKS + b];
				}
			bool whole = at >= from && at + 4 <= n;
			[[unroll]] for (uint h = 0; h < HEADS; h++) {
				vec4 by = w[(h * BLOCKS + b) * PITCH + g % 16];
				[[unroll]] for (uint k = 0; k < 4; k++)
					if (whole || at + k >= from && at + k < n)
						[[unroll]] for (uint e = 0; e < ELEMS; e++)
							out_[h * ELEMS + e] = ffma(by[k], value(x[k * ELEMS + e]), out_[h * ELEMS + e]);
			}
			[[unroll]] for (uint k = 0; k < 4 * ELEMS; k++)
				x[k] = y[k];
		}
	}
	[[unroll]] for (uint h = 0; h < HEADS; h++) {
		float inv = frecip(sum[h]);
		[[unroll]] for (uint e = 0; e < ELEMS; e++) {
			if (e * 128 + t < VD) {
				float v = out_[h * ELEMS + e] * inv;
				Floats(p.dst + (uint64_t(r) * p.heads + h0 + h) * VD * 4).v[e * 128 + t] = v;
				if (ELEMS == 1)
					chunk[t] = v;
			}
		}
		if (p.q32 != 0)
			acts(p.q32, 32, p.row + r, p.rows, p.heads * VD, (h0 + h) * VD, VD);
	}
}
