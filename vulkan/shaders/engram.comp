#version 450
// variants: base f64 emu
#extension GL_GOOGLE_include_directive : require
// The gate of kernels.Engram for one stream of one row: key and query are normed already.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t dst, key, query, val;
	uint dim, streams;
	float inv;
} p;
shared float part[16];

void main() {
	uint t = gl_LocalInvocationID.x, c = gl_WorkGroupID.x, r = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	uint64_t at = (uint64_t(r) * p.streams + c) * p.dim * 4;
	if (t < 16) {
		float acc = 0;
		for (uint i = t; i < p.dim; i += 16)
			acc = ffma(Floats(p.key + at).v[i], Floats(p.query + at).v[i], acc);
		part[t] = acc;
	}
	[[unroll]] for (uint h = 8; h > 0; h /= 2) {
		barrier();
		if (t < h)
			part[t] = part[t] + part[t + h];
	}
	barrier();
	float v = part[0] * p.inv;
	float root = froot(gomax(v < 0 ? -v : v, 1e-6));
	if (v < 0)
		root = -root;
	else if (v == 0)
		root = 0;
	if (nan(v))
		root = v;
	float f = fsigmoid(root);
	for (uint i = t; i < p.dim; i += 64)
		Floats(p.dst + at).v[i] = 0 + f * Floats(p.val + uint64_t(r) * p.dim * 4).v[i];
}
