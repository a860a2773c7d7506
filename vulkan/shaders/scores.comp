#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// Scores of blocks of keys: kernels.IndexScores. A thread has a block of a row.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(push_constant) uniform Push {
	uint64_t dst, q, keys;
	uint dim, heads, blocks; // blocks: those scored of each row
} p;

void main() {
	uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= p.blocks)
		return;
	uint64_t key = p.keys + uint64_t(i) * kvBytes(TYPE, p.dim), q = p.q + uint64_t(r) * p.heads * p.dim * 4;
	float sum = 0;
	for (uint h = 0; h < p.heads; h++) {
		float acc[16];
		[[unroll]] for (uint c = 0; c < 16; c++)
			acc[c] = 0;
		for (uint e = 0; e < p.dim; e += 16)
			[[unroll]] for (uint c = 0; c < 16; c++)
				if (e + c < p.dim)
					acc[c] = ffma(kvElement(TYPE, key, e + c), Floats(q).v[h * p.dim + e + c], acc[c]);
		[[unroll]] for (uint s = 8; s > 0; s /= 2)
			[[unroll]] for (uint c = 0; c < s; c++)
				acc[c] = acc[c] + acc[c + s];
		if (acc[0] > 0)
			sum = sum + acc[0];
	}
	Floats(p.dst).v[r * p.blocks + i] = sum;
}
