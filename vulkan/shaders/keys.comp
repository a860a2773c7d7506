#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// Attention, first part: the scores of a block of 64 keys for one query head. Four threads a key, each with a quarter of the sixteen
// sums of the contract. values.comp goes on.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KT = 0;
layout(constant_id = 1) const uint KD = 128;
layout(push_constant) uniform Push {
	uint64_t q, k, scores, where; // where: the position of the first row
	uint heads, group;            // heads of queries, and how many share keys
	uint window, cells, ld, rows; // ld: scores from head to head
	float scale;
} p;
#include "kvfours.glsl"
const uint HELD = KD < 128 ? KD / 16 : 8; // quads of a thread that are loaded first
shared float query[KD];
shared float parts[64 * 17];

void main() {
	uint t = gl_LocalInvocationID.x, h = gl_WorkGroupID.y, r = gl_WorkGroupID.z;
	uint pos = Words(p.where).v[0], n = pos + r + 1; // positions before the end
	uint from = p.window > 0 && n > p.window ? n - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, b = base + gl_WorkGroupID.x;
	// A ring is whole blocks; where there is none cells is larger than any position. What lies at others is loaded and not used, so that
	// keys do not wait for the position.
	uint key = t >> 2, j = t & 3u, at = 64 * b + key;
	uint64_t row = p.k + (uint64_t(h / p.group) * p.cells + min(64 * b % p.cells + key, p.cells - 1)) * kvBytes(KT, KD);
	uvec4 held[HELD];
	[[unroll]] for (uint k = 0; k < HELD; k++)
		held[k] = raw(row, 16 * k + 4 * j);
	for (uint i = t; i < KD; i += 256)
		query[i] = Floats(p.q + (uint64_t(r) * p.heads + h) * KD * 4).v[i];
	if (64 * b >= n || 64 * b + 64 <= from)
		return;
	barrier();
	if (at >= from && at < n) {
		vec4 acc = vec4(0);
		[[unroll]] for (uint k = 0; k < HELD; k++)
			[[unroll]] for (uint c = 0; c < 4; c++)
				acc[c] = ffma(four(held[k])[c], query[16 * k + 4 * j + c], acc[c]);
		uint e = 16 * HELD;
		for (; e + 128 <= KD; e += 128) {
			uvec4 w[8];
			[[unroll]] for (uint k = 0; k < 8; k++)
				w[k] = raw(row, e + 16 * k + 4 * j);
			[[unroll]] for (uint k = 0; k < 8; k++)
				[[unroll]] for (uint c = 0; c < 4; c++)
					acc[c] = ffma(four(w[k])[c], query[e + 16 * k + 4 * j + c], acc[c]);
		}
		for (; e < KD; e += 16) {
			vec4 w = four(raw(row, e + 4 * j));
			[[unroll]] for (uint c = 0; c < 4; c++)
				acc[c] = ffma(w[c], query[e + 4 * j + c], acc[c]);
		}
		[[unroll]] for (uint c = 0; c < 4; c++)
			parts[key * 17 + 4 * j + c] = acc[c];
	}
	barrier();
	at = 64 * b + t;
	if (t < 64 && at >= from && at < n) {
		float a[16];
		[[unroll]] for (uint c = 0; c < 16; c++)
			a[c] = parts[t * 17 + c];
		[[unroll]] for (uint s = 8; s > 0; s /= 2)
			[[unroll]] for (uint c = 0; c < s; c++)
				a[c] = a[c] + a[c + s];
		Floats(p.scores + ((uint64_t(r) * p.heads + h) * p.ld + gl_WorkGroupID.x * 64 + t) * 4).v[0] = a[0] * p.scale;
	}
}
