#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// Appends rows of keys or values to a cache: kernels.EncodeKV. A thread has an element, or a block of 32.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(push_constant) uniform Push {
	uint64_t x, kv, where; // where: the position of the first row
	uint count;            // elements or blocks in all
	uint heads, dim, cells, stride; // stride: bytes of a head's element
} p;
uint64_t from; // where the head begins
float value(uint i) { return Floats(from).v[i]; }
#include "store.glsl"

void main() {
	uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 64 + gl_LocalInvocationID.x;
	if (i >= p.count)
		return;
	uint per = p.dim / (TYPE < 2 ? 1 : 32);
	uint e = i % per, h = i / per % p.heads, r = i / per / p.heads;
	from = p.x + (uint64_t(r) * p.heads + h) * p.dim * 4;
	storeKV(TYPE, p.kv + (uint64_t(h) * p.cells + (Words(p.where).v[0] + r) % p.cells) * p.stride, e);
}
