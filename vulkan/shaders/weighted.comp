#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// WeightedSum: the products rounded, summed in the router's order from zero, then added.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t x, parts, index, weights; // index 0: parts lie in the router's order
	uint cols, k, rows;
} p;

void main() {
	uint j = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, r = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	if (j >= p.cols || r >= p.rows)
		return;
	float sum = 0;
	for (uint i = r * p.k; i < (r + 1) * p.k; i++)
		sum = sum + Floats(p.weights).v[i] * Floats(p.parts + uint64_t(p.index == 0 ? i : Words(p.index).v[i]) * p.cols * 4).v[j];
	Floats x = Floats(p.x + uint64_t(r) * p.cols * 4);
	x.v[j] = x.v[j] + sum;
}
