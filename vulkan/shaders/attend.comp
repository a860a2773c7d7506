#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// Attention of one query head over the keys it sees: kernels.Attention. Keys go by blocks of 64 positions, a thread to each;
// then a thread has elements of the result. VALUES is how many.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KT = 0;
layout(constant_id = 1) const uint VT = 0;
layout(constant_id = 2) const uint VALUES = 2;
layout(push_constant) uniform Push {
	uint64_t dst, q, k, v, sinks; // sinks may be 0
	uint64_t picked;              // for each row: number of blocks, then block and two words of mask each; 0: all positions
	uint kd, vd, heads, group;    // heads of queries, and how many share keys
	uint pos, window, cells, most; // position of the first row; most: blocks of a row in picked
	float scale;
} p;
shared float query[1024];
shared float score[64];

void main() {
	uint t = gl_LocalInvocationID.x, h = gl_WorkGroupID.x, r = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	uint kbytes = kvBytes(KT, p.kd), vbytes = kvBytes(VT, p.vd);
	uint n = p.pos + r + 1; // positions before the end
	uint from = p.window > 0 && n > p.window ? n - p.window : 0;
	uint64_t keys = p.k + uint64_t(h / p.group) * p.cells * kbytes;
	uint64_t values = p.v + uint64_t(h / p.group) * p.cells * (p.k == p.v ? kbytes : vbytes);
	if (p.k == p.v)
		vbytes = kbytes;
	for (uint i = t; i < p.kd; i += 64)
		query[i] = Floats(p.q + (uint64_t(r) * p.heads + h) * p.kd * 4).v[i];
	float out_[VALUES];
	[[unroll]] for (uint e = 0; e < VALUES; e++)
		out_[e] = 0;
	float top = 0, sum = 0;
	bool any = false;
	if (p.sinks != 0) {
		top = Floats(p.sinks).v[h];
		sum = 1;
		any = true;
	}
	uint64_t list = p.picked + uint64_t(r) * (3 * p.most + 1) * 4;
	uint first = p.picked != 0 ? 0 : from / 64, last = p.picked != 0 ? Words(list).v[0] : (n + 63) / 64;
	for (uint i = first; i < last; i++) {
		uint b = i;
		uvec2 mask;
		if (p.picked != 0) {
			b = Words(list).v[1 + 3 * i];
			mask = uvec2(Words(list).v[2 + 3 * i], Words(list).v[3 + 3 * i]);
		} else {
			uint lo = max(from, 64 * b) - 64 * b, hi = min(n, 64 * b + 64) - 64 * b; // lo < hi
			mask = uvec2(lo < 32 ? 0xffffffffu << lo : 0u, lo < 32 ? 0xffffffffu : 0xffffffffu << lo - 32);
			mask &= uvec2(hi >= 32 ? 0xffffffffu : (1u << hi) - 1, hi >= 64 ? 0xffffffffu : hi > 32 ? (1u << hi - 32) - 1 : 0u);
		}
		uint cell = 64 * b % p.cells; // a ring is whole blocks; where there is none cells is larger than any position
		barrier();
		if (((t < 32 ? mask.x >> t : mask.y >> t - 32) & 1) != 0) {
			uint64_t key = keys + uint64_t(cell + t) * kbytes;
			float acc[16];
			[[unroll]] for (uint c = 0; c < 16; c++)
				acc[c] = 0;
			for (uint e = 0; e < p.kd; e += 16)
				[[unroll]] for (uint c = 0; c < 16; c++)
					if (e + c < p.kd)
						acc[c] = ffma(kvElement(KT, key, e + c), query[e + c], acc[c]);
			[[unroll]] for (uint s = 8; s > 0; s /= 2)
				[[unroll]] for (uint c = 0; c < s; c++)
					acc[c] = acc[c] + acc[c + s];
			score[t] = acc[0] * p.scale;
		}
		barrier();
		float best = uintBitsToFloat(0xff800000u);
		for (uint j = 0; j < 64; j++)
			if (((j < 32 ? mask.x >> j : mask.y >> j - 32) & 1) != 0 && score[j] > best)
				best = score[j];
		float factor = 1;
		if (!any) {
			any = true;
			top = best;
		} else if (best > top) {
			factor = fexp(top - best);
			top = best;
			sum = sum * factor;
		}
		if (factor != 1)
			[[unroll]] for (uint e = 0; e < VALUES; e++)
				out_[e] = out_[e] * factor;
		barrier();
		score[t] = fexp(score[t] - top);
		barrier();
		float block = 0;
		uint j = mask.x != 0 ? findLSB(mask.x) : 32 + findLSB(mask.y);
		uint end = mask.y != 0 ? 33 + findMSB(mask.y) : 1 + findMSB(mask.x);
		if (p.picked == 0) // no gaps: values are loaded before they are used
			for (; j + 4 <= end; j += 4) {
				float x[4 * VALUES];
				[[unroll]] for (uint k = 0; k < 4; k++)
					[[unroll]] for (uint e = 0; e < VALUES; e++)
						if (e * 64 + t < p.vd)
							x[k * VALUES + e] = kvElement(VT, values + uint64_t(cell + j + k) * vbytes, e * 64 + t);
				[[unroll]] for (uint k = 0; k < 4; k++) {
					float w = score[j + k];
					block = block + w;
					[[unroll]] for (uint e = 0; e < VALUES; e++)
						if (e * 64 + t < p.vd)
							out_[e] = ffma(w, x[k * VALUES + e], out_[e]);
				}
			}
		for (; j < end; j++) {
			if (((j < 32 ? mask.x >> j : mask.y >> j - 32) & 1) == 0)
				continue;
			float w = score[j];
			block = block + w;
			uint64_t val = values + uint64_t(cell + j) * vbytes;
			[[unroll]] for (uint e = 0; e < VALUES; e++)
				if (e * 64 + t < p.vd)
					out_[e] = ffma(w, kvElement(VT, val, e * 64 + t), out_[e]);
		}
		sum = sum + block;
	}
	float inv = frecip(sum);
	[[unroll]] for (uint e = 0; e < VALUES; e++)
		if (e * 64 + t < p.vd)
			Floats(p.dst + (uint64_t(r) * p.heads + h) * p.vd * 4).v[e * 64 + t] = out_[e] * inv;
}
