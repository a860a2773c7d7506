#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Rotation of n elements from first on in each head of dim.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t x, cos, sin;
	uint count; // pairs in all
	uint heads, dim, first, half_, norm;
} p;

void main() {
	uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 64 + gl_LocalInvocationID.x;
	if (i >= p.count)
		return;
	uint j = i % p.half_, h = i / p.half_ % p.heads, r = i / p.half_ / p.heads;
	uint64_t at = p.x + (uint64_t(r) * p.heads * p.dim + h * p.dim + p.first) * 4;
	uint lo = p.norm != 0 ? 2 * j : j, hi = p.norm != 0 ? 2 * j + 1 : j + p.half_;
	float c = Floats(p.cos).v[r * p.half_ + j], s = Floats(p.sin).v[r * p.half_ + j];
	float a = Floats(at).v[lo], b = Floats(at).v[hi];
	Floats(at).v[lo] = a * c - b * s;
	Floats(at).v[hi] = a * s + b * c;
}
