#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Whether fma is fused, and what becomes of subnormal numbers.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t x, y; // triples, results
	uint n;
} p;

void main() {
	uint i = gl_LocalInvocationID.x;
	if (i < p.n)
		Floats(p.y).v[i] = fma(Floats(p.x).v[3 * i], Floats(p.x).v[3 * i + 1], Floats(p.x).v[3 * i + 2]);
}
