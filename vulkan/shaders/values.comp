#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// Attention, second part: softmax from block to block, and the sum of values, of one query head. What of it does not wait for the
// block before is done for 64 blocks at once; then each thread has elements of the result, and the next STEP positions are loaded
// while these are added.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint VT = 0;
layout(constant_id = 1) const uint VD = 128;
layout(constant_id = 2) const uint STEP = 8;   // divides 64
layout(constant_id = 3) const uint STRIDE = 0; // bytes of a position
layout(push_constant) uniform Push {
	uint64_t dst, v, scores, sinks, where; // sinks: 0: none
	uint heads, group, window, cells, ld;
	uint row, rows; // of dst: the first one here, and how many there are
	uint64_t q32;   // their form as int8, by blocks of 32; 0: not wanted
} p;
const uint ELEMS = (VD + 127) / 128, HELD = STEP * ELEMS;
#define INF uintBitsToFloat(0x7f800000u)
shared float w[64 * 65], chunk[128];
const uint THREADS = 128;
#include "acts.glsl"

shared float top[64], before[64], block[64];

uint64_t values;
uint first, count; // block of the chunk, and how many

// load fetches the g-th STEP positions of the chunk.
void load(uint g, uint t, out uint x[HELD]) {
	uint j = g * STEP % 64, cell = 64 * (first + g * STEP / 64) % p.cells + j;
	[[unroll]] for (uint k = 0; k < STEP; k++)
		[[unroll]] for (uint e = 0; e < ELEMS; e++)
{
				uint64_t at = values + uint64_t(min(cell + k, p.cells - 1)) * STRIDE;
				uint n = min(e * 128 + t, VD - 1);
				x[k * ELEMS + e] = VT == 0 ? uint(Halves(at).v[n]) : floatBitsToUint(kvElement(VT, at, n));
			}
}

float value(uint x) { return VT == 0 ? widen(x) : uintBitsToFloat(x); }

void main() {
	uint t = gl_LocalInvocationID.x, h = gl_WorkGroupID.x, r = gl_WorkGroupID.y;
	uint pos = Words(p.where).v[0], n = pos + r + 1;
	uint from = p.window > 0 && n > p.window ? n - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, last = (n + 63) / 64;
	uint64_t scores = p.scores + (uint64_t(r) * p.heads + h) * p.ld * 4;
	values = p.v + uint64_t(h / p.group) * p.cells * STRIDE;
	float out_[ELEMS];
	[[unroll]] for (uint e = 0; e < ELEMS; e++)
		out_[e] = 0;
	float cur = 0, sum = 0;
	bool any = false;
	if (p.sinks != 0) {
		cur = Floats(p.sinks).v[h];
		sum = 1;
		any = true;
	}
	for (first = from / 64; first < last; first += 64) {
		count = min(64, last - first);
		uint x[HELD], y[HELD];
		load(0, t, x); // which nothing of what follows waits for
		barrier();
		for (uint i = t; i < 64 * count; i += 128)
			w[(i >> 6) * 65 + (i & 63u)] = Floats(scores).v[(first - base) * 64 + i];
		barrier();
		uint lo = max(from, 64 * (first + t)) - 64 * (first + t), hi = min(n, 64 * (first + t) + 64) - 64 * (first + t); // of block t
		if (t < count) {
			float best = -INF; // what cannot be compared is not the largest
			for (uint j = 0; j < 64; j += 16) {
				float v[16];
				[[unroll]] for (uint k = 0; k < 16; k++)
					v[k] = w[t * 65 + j + k];
				[[unroll]] for (uint k = 0; k < 16; k++)
					v[k] = j + k >= lo && j + k < hi && v[k] > -INF ? v[k] : -INF;
				[[unroll]] for (uint s = 8; s > 0; s /= 2)
					[[unroll]] for (uint k = 0; k < s; k++)
						v[k] = v[k] > v[k + s] ? v[k] : v[k + s];
				best = v[0] > best ? v[0] : best;
			}
			top[t] = best;
		}
		barrier();
		if (t == 0) {
			float now = cur;
			bool some = any;
			for (uint b = 0; b < count; b++) {
				float best = top[b];
				if (!some)
					now = best;
				some = true;
				before[b] = now;
				if (best > now)
					now = best;
				top[b] = now;
			}
		}
		barrier();
		cur = top[count - 1];
		any = true;
		for (uint i = t; i < 64 * count; i += 128) {
			uint at = (i >> 6) * 65 + (i & 63u);
			w[at] = fexp(w[at] - top[i >> 6]);
		}
		barrier();
		if (t < count) {
			float s = 0; // never less, so that nothing added is nothing
			for (uint j = 0; j < 64; j += 16) {
				float v[16];
				[[unroll]] for (uint k = 0; k < 16; k++)
					v[k] = w[t * 65 + j + k];
				[[unroll]] for (uint k = 0; k < 16; k++)
					s = s + (j + k >= lo && j + k < hi ? v[k] : 0);
			}
			block[t] = s;
			before[t] = top[t] > before[t] ? fexp(before[t] - top[t]) : 1;
		}
		barrier();
		for (uint g = 0; g < count * (64 / STEP); g++) {
			if (g + 1 < count * (64 / STEP))
				load(g + 1, t, y);
			uint b = g * STEP / 64, j0 = g * STEP % 64, at = 64 * (first + b) + j0;
			if (j0 == 0) {
				float f = before[b];
				sum = sum * f;
				if (f != 1)
					[[unroll]] for (uint e = 0; e < ELEMS; e++)
						out_[e] = out_[e] * f;
				sum = sum + block[b];
			}
			if (at >= from && at + STEP <= n) {
				[[unroll]] for (uint k = 0; k < STEP; k++)
					[[unroll]] for (uint e = 0; e < ELEMS; e++)
						out_[e] = ffma(w[b * 65 + j0 + k], value(x[k * ELEMS + e]), out_[e]);
			} else {
				[[unroll]] for (uint k = 0; k < STEP; k++)
					if (at + k >= from && at + k < n)
						[[unroll]] for (uint e = 0; e < ELEMS; e++)
							out_[e] = ffma(w[b * 65 + j0 + k], value(x[k * ELEMS + e]), out_[e]);
			}
			[[unroll]] for (uint k = 0; k < HELD; k++)
				x[k] = y[k];
		}
	}
	float inv = frecip(sum);
	[[unroll]] for (uint e = 0; e < ELEMS; e++) {
		if (e * 128 + t < VD) {
			float v = out_[e] * inv;
			Floats(p.dst + (uint64_t(r) * p.heads + h) * VD * 4).v[e * 128 + t] = v;
			if (ELEMS == 1)
				chunk[t] = v;
		}
	}
	if (p.q32 != 0)
		acts(p.q32, 32, p.row + r, p.rows, p.heads * VD, h * VD, VD);
}
