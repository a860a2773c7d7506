#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// RMS norms of runs of elements: kernels.RMSNorm and L2Norm, and what may follow, a gate. A workgroup has a run.
#include "common.glsl"
layout(local_size_x = 128) in;
layout(push_constant) uniform Push {
	uint64_t dst, x, w, z; // w and z may be 0
	uint dim, heads, rows; // elements of a run, runs of a row
	uint ld, step, first;  // run h of row r begins at element r*ld + h*step + first, in dst too
	uint wide;             // elements of w from run to run
	float eps, over;       // what the sum is divided by
	uint gate;             // 1: silu(z), 2: sigmoid(z)
	uint64_t q32, q256;    // where a run is a row, its forms as int8; 0: not wanted
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
const uint SPAN = 2048, AHEAD = 16, THREADS = 128;
shared float factor;
shared float chunk[SPAN]; // of the run, so that the eight that add do not wait for memory

#include "acts.glsl"

#ifdef FP64
void add(inout double s, float v) { s = s + double(v) * double(v); }
#else
void add(inout vec2 s, float v) {
	float q = v * v;
	s = two(s, vec2(q, ffma(v, v, -q)));
}
#endif

// result is what becomes of element i of the run, v, where the run begins at byte at.
float result(uint i, uint h, float v, float f, uint64_t at) {
	v = v * f;
	if (p.w != 0)
		v = v * Floats(p.w).v[h * p.wide + i];
	if (p.z != 0) {
		float z = Floats(p.z + at).v[i];
		v = (p.gate == 1 ? fsilu(z) : fsigmoid(z)) * v;
	}
	return v;
}

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
	for (uint base = 0; base < p.dim; base += SPAN) {
		uint n = min(p.dim - base, SPAN);
		barrier(); // what was there has been used
		if (n == SPAN) {
			float v[SPAN / 128];
			[[unroll]] for (uint k = 0; k < SPAN / 128; k++)
				v[k] = Floats(x).v[base + 128 * k + t];
			[[unroll]] for (uint k = 0; k < SPAN / 128; k++)
				chunk[128 * k + t] = v[k];
		} else {
			for (uint i = t; i < n; i += 128)
				chunk[i] = Floats(x).v[base + i];
		}
		barrier();
		if (t < 8) {
			uint i = t;
			for (; i + 8 * (AHEAD - 1) < n; i += 8 * AHEAD) {
				float v[AHEAD];
				[[unroll]] for (uint k = 0; k < AHEAD; k++)
					v[k] = chunk[i + 8 * k];
				[[unroll]] for (uint k = 0; k < AHEAD; k++)
					add(s, v[k]);
			}
			for (; i < n; i += 8)
				add(s, chunk[i]);
		}
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
	if (p.dim == SPAN && p.w != 0 && p.z == 0) {
		float w[SPAN / 128];
		[[unroll]] for (uint k = 0; k < SPAN / 128; k++)
			w[k] = Floats(p.w).v[h * p.wide + 128 * k + t];
		[[unroll]] for (uint k = 0; k < SPAN / 128; k++) {
			float v = chunk[128 * k + t] * f;
			v = v * w[k];
			chunk[128 * k + t] = v;
			Floats(y).v[128 * k + t] = v;
		}
	} else {
		for (uint i = t; i < p.dim; i += 128) {
			float v = result(i, h, p.dim <= SPAN ? chunk[i] : Floats(x).v[i], f, at);
			Floats(y).v[i] = v;
			if (p.dim <= SPAN)
				chunk[i] = v;
		}
	}
	if (p.q32 != 0)
		acts(p.q32, 32, r, p.rows, p.dim, 0, p.dim);
	if (p.q256 != 0)
		acts(p.q256, 256, r, p.rows, p.dim, 0, p.dim);
}
