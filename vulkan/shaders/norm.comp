#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// RMS norms of runs of elements: kernels.RMSNorm and L2Norm, and what may follow, a gate. A workgroup has a run.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t dst, x, w, z; // w and z may be 0
	uint dim, heads, rows; // elements of a run, runs of a row
	uint ld, step, first;  // run h of row r begins at element r*ld + h*step + first, in dst too
	uint wide;             // elements of w from run to run
	float eps, over;       // what the sum is divided by
	uint gate;             // 1: silu(z), 2: sigmoid(z)
} p;
#ifdef FP64
shared double part[8];
#else
shared vec2 part[8];
// two is a sum as an unevaluated pair: about 48 bits.
vec2 two(vec2 a, vec2 b) {
	float s = a.x + b.x, t = s - a.x, e = (a.x - (s - t)) + (b.x - t) + (a.y + b.y);
	float r = s + e;
	return vec2(r, e - (r - s));
}
#endif
shared float factor;
shared float chunk[2048]; // of the run, so that the eight that add do not wait for memory

void main() {
	uint t = gl_LocalInvocationID.x, run = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
	if (run >= p.rows * p.heads)
		return;
	uint r = run / p.heads, h = run % p.heads;
	uint64_t at = (uint64_t(r) * p.ld + h * p.step + p.first) * 4;
	uint64_t x = p.x + at, y = p.dst + at;
#ifdef FP64
	double s = 0;
#else
	vec2 s = vec2(0);
#endif
	for (uint base = 0; base < p.dim; base += 2048) {
		uint n = min(p.dim - base, 2048);
		for (uint i = t; i < n; i += 64)
			chunk[i] = Floats(x).v[base + i];
		barrier();
		if (t < 8) {
			for (uint i = t; i < n; i += 8) {
				float v = chunk[i];
#ifdef FP64
				s = s + double(v) * double(v);
#else
				float q = v * v;
				s = two(s, vec2(q, ffma(v, v, -q)));
#endif
			}
		}
		barrier();
	}
	if (t < 8)
		part[t] = s;
	barrier();
	if (t == 0) {
#ifdef FP64
		double s = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
		factor = rroot(s / double(p.over) + double(p.eps));
#else
		vec2 s = two(two(two(part[0], part[4]), two(part[2], part[6])), two(two(part[1], part[5]), two(part[3], part[7])));
		float m = div(s.x, p.over) + p.eps + div(s.y, p.over);
		factor = div(1, froot(m));
#endif
	}
	barrier();
	float f = factor;
	for (uint i = t; i < p.dim; i += 64) {
		float v = Floats(x).v[i] * f;
		if (p.w != 0)
			v = v * Floats(p.w).v[h * p.wide + i];
		if (p.z != 0) {
			float z = Floats(p.z + at).v[i];
			v = (p.gate == 1 ? fsilu(z) : fsigmoid(z)) * v;
		}
		Floats(y).v[i] = v;
	}
}
