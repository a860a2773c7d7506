#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// The means of the keys of blocks that the rows make whole: sums over a block's stored keys and its last one as projected,
// times 1/block. What follows, a norm and a rotation, are operations of their own. STEP 0 stores the keys of positions, 1 sums.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(constant_id = 1) const uint STEP = 0;
layout(push_constant) uniform Push {
	uint64_t x, parts, sums, keys; // x: rows of dim; sums: one row a block
	uint dim, block, pos, rows;
	uint first; // block of the first sum
	uint count; // blocks or rows
} p;

void main() {
	uint e = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, i = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	if (e >= p.dim || i >= p.count)
		return;
	uint bytes = kvBytes(TYPE, p.dim);
	if (STEP == 0 || STEP == 2) { // STEP 2 stores the keys of blocks, which begin with the first
		uint64_t to = p.keys + uint64_t(p.first + i) * bytes;
		if (STEP == 0) {
			uint pos = p.pos + i;
			if (pos % p.block == p.block - 1)
				return;
			to = p.parts + uint64_t(pos / p.block * (p.block - 1) + pos % p.block) * bytes;
		}
		float v = Floats(p.x).v[i * p.dim + e];
		if (TYPE == 0)
			Halves(to).v[e] = uint16_t(narrow(v));
		else
			Words(to).v[e] = floatBitsToUint(v);
		return;
	}
	float sum = 0;
	for (uint k = 0; k < p.block - 1; k++)
		sum = sum + kvElement(TYPE, p.parts + uint64_t((p.first + i) * (p.block - 1) + k) * bytes, e);
	sum = sum + Floats(p.x).v[((p.first + i) * p.block + p.block - 1 - p.pos) * p.dim + e];
	Floats(p.sums).v[i * p.dim + e] = sum * div(1, float(p.block));
}
