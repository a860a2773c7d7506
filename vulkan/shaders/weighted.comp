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

float part(uint i, uint j) { return Floats(p.parts + uint64_t(p.index == 0 ? i : Words(p.index).v[i]) * p.cols * 4).v[j]; }

void main() {
	uint j = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, r = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	if (j >= p.cols || r >= p.rows)
		return;
	float sum = 0;
	uint i = r * p.k, end = i + p.k;
	for (; i + 8 <= end; i += 8) {
		float w[8], v[8];
		[[unroll]] for (uint k = 0; k < 8; k++) {
			w[k] = Floats(p.weights).v[i + k];
			v[k] = part(i + k, j);
		}
		[[unroll]] for (uint k = 0; k < 8; k++)
			sum = sum + w[k] * v[k];
	}
	for (; i < end; i++)
		sum = sum + Floats(p.weights).v[i] * part(i, j);
	Floats x = Floats(p.x + uint64_t(r) * p.cols * 4);
	x.v[j] = x.v[j] + sum;
}
