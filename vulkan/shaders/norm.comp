#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// RMS norms of runs of elements: kernels.RMSNorm and L2Norm, what may come before, a sum that x becomes, and what may follow, a gate.
// A workgroup has a run.
#include "common.glsl"
layout(constant_id = 0) const uint FLAGS = 0; // 1: x becomes x + z first; 2: x plus the sum of K rows of z, weighed, as weighted.comp has it; 4: runs are whole quads
layout(constant_id = 1) const uint SPAN = 2048; // elements in sight at a time
layout(constant_id = 2) const uint THREADS = 128;
layout(constant_id = 3) const uint K = 1;
layout(local_size_x_id = 2) in;
layout(push_constant) uniform Push {
	uint64_t dst, x, w, z; // w and z may be 0
	uint dim, heads, rows; // elements of a run, runs of a row
	uint ld, step, first;  // run h of row r begins at element r*ld + h*step + first, in dst too
	uint wide;             // elements of w from run to run
	float eps, over;       // what the sum is divided by
	uint gate;             // 1: silu(z), 2: sigmoid(z)
	uint64_t q32, q256;    // where a run is a row, its forms as int8; 0: not wanted
	uint64_t weights;      // rows of K
} p;
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { vec4 v[]; };
const bool ADD = (FLAGS & 1u) != 0, WEIGH = (FLAGS & 2u) != 0, QUADS = (FLAGS & 4u) != 0;
const bool KEPT = SPAN <= 2048; // whether what is in sight is kept for the forms as int8: more has no room beside the squares
shared float chunk[KEPT ? SPAN : 1];
#include "rms.glsl"
#include "acts.glsl"

// element is element i of the run at x, and of row r, as it is normed and as x has it afterwards.
float element(uint64_t x, uint64_t at, uint r, uint i) {
	float v = Floats(x).v[i];
	if (ADD)
		v = v + Floats(p.z + at).v[i];
	if (WEIGH) {
		float sum = 0;
		for (uint k = 0; k < K; k++)
			sum = sum + Floats(p.weights).v[r * K + k] * Floats(p.z + (uint64_t(r) * K + k) * p.ld * 4).v[i];
		v = v + sum;
	}
	return v;
}

// result is what becomes of element i of the run, v, by w, where the run begins at byte at.
float result(uint i, float v, float w, float f, uint64_t at) {
	v = v * f;
	if (p.w != 0)
		v = v * w;
	if (!ADD && !WEIGH && p.z != 0) {
		float z = Floats(p.z + at).v[i];
		v = (p.gate == 1 ? fsilu(z) : fsigmoid(z)) * v;
	}
	return v;
}

// quads is the norm of a run that is in sight as a whole: what is known to be wanted is loaded before anything waits.
const uint EACH = SPAN / 4 / THREADS, AHEAD = 8;
void quads(uint64_t x, uint64_t y, uint64_t at, uint r, uint h) {
	uint t = gl_LocalInvocationID.x, n = p.dim / 4;
	vec4 v[EACH], w[EACH];
	[[unroll]] for (uint e = 0; e < EACH; e++)
		v[e] = Quads(x).v[min(e * THREADS + t, n - 1)];
	if (p.w != 0) {
		[[unroll]] for (uint e = 0; e < EACH; e++)
			w[e] = Quads(p.w + uint64_t(h) * p.wide * 4).v[min(e * THREADS + t, n - 1)];
	}
	if (ADD) {
		vec4 z[EACH];
		[[unroll]] for (uint e = 0; e < EACH; e++)
			z[e] = Quads(p.z + at).v[min(e * THREADS + t, n - 1)];
		[[unroll]] for (uint e = 0; e < EACH; e++)
			v[e] = v[e] + z[e];
	}
	if (WEIGH) {
		vec4 sum[EACH];
		[[unroll]] for (uint e = 0; e < EACH; e++)
			sum[e] = vec4(0);
		for (uint i = 0; i < K; i += AHEAD) {
			float f[AHEAD];
			vec4 a[AHEAD * EACH];
			[[unroll]] for (uint k = 0; k < AHEAD; k++) {
				uint row = r * K + min(i + k, K - 1);
				f[k] = Floats(p.weights).v[row];
				[[unroll]] for (uint e = 0; e < EACH; e++)
					a[k * EACH + e] = Quads(p.z + uint64_t(row) * p.ld * 4).v[min(e * THREADS + t, n - 1)];
			}
			// vec4(f), for a product by a number alone would not be held to its own rounding.
			[[unroll]] for (uint k = 0; k < AHEAD; k++)
				if (i + k < K)
					[[unroll]] for (uint e = 0; e < EACH; e++)
						sum[e] = sum[e] + vec4(f[k]) * a[k * EACH + e];
		}
		[[unroll]] for (uint e = 0; e < EACH; e++)
			v[e] = v[e] + sum[e];
	}
	[[unroll]] for (uint e = 0; e < EACH; e++) {
		uint q = e * THREADS + t;
		if (q < n) {
			if (ADD || WEIGH)
				Quads(x).v[q] = v[e];
			[[unroll]] for (uint c = 0; c < 4; c++)
				putSquare(4 * q + c, v[e][c]);
		}
	}
	barrier();
	if (t < 8) {
		SUM s = SUM(0);
		lane(t, p.dim, s);
		part[t] = s;
	}
	barrier();
	if (t == 0)
		setFactor(p.over, p.eps);
	barrier();
	float f = factor;
	[[unroll]] for (uint e = 0; e < EACH; e++) {
		uint q = e * THREADS + t;
		if (q < n) {
			vec4 u = v[e] * vec4(f);
			if (p.w != 0)
				u = u * w[e];
			Quads(y).v[q] = u;
			if (KEPT)
				[[unroll]] for (uint c = 0; c < 4; c++)
					chunk[4 * q + c] = u[c];
		}
	}
}

// spans is the norm of any run, some elements at a time. A thread meets the same elements again, AHEAD at once; those past the end
// are the last one, which is not used then.
void spans(uint64_t x, uint64_t y, uint64_t at, uint r, uint h) {
	uint t = gl_LocalInvocationID.x;
	SUM s = SUM(0);
	for (uint base = 0; base < p.dim; base += SPAN) {
		uint n = min(p.dim - base, SPAN);
		barrier(); // what was there has been used
		for (uint i = t; i < n; i += AHEAD * THREADS) {
			float v[AHEAD];
			[[unroll]] for (uint k = 0; k < AHEAD; k++)
				v[k] = element(x, at, r, base + min(i + k * THREADS, n - 1));
			[[unroll]] for (uint k = 0; k < AHEAD; k++) {
				uint j = i + k * THREADS;
				if (j < n) {
					if (ADD || WEIGH)
						Floats(x).v[base + j] = v[k];
					if (KEPT)
						chunk[j] = v[k];
					putSquare(j, v[k]);
				}
			}
		}
		barrier();
		if (t < 8)
			lane(t, n, s);
	}
	if (t < 8)
		part[t] = s;
	barrier();
	if (t == 0)
		setFactor(p.over, p.eps);
	barrier();
	float f = factor;
	for (uint i = t; i < p.dim; i += AHEAD * THREADS) {
		float v[AHEAD], w[AHEAD];
		[[unroll]] for (uint k = 0; k < AHEAD; k++) {
			uint j = min(i + k * THREADS, p.dim - 1);
			w[k] = p.w != 0 ? Floats(p.w).v[h * p.wide + j] : 1;
			v[k] = KEPT && p.dim <= SPAN ? chunk[j] : Floats(x).v[j];
		}
		[[unroll]] for (uint k = 0; k < AHEAD; k++) {
			uint j = i + k * THREADS;
			if (j < p.dim) {
				float u = result(j, v[k], w[k], f, at);
				Floats(y).v[j] = u;
				if (KEPT && p.dim <= SPAN)
					chunk[j] = u;
			}
		}
	}
}

void main() {
	uint run = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
	if (run >= p.rows * p.heads)
		return;
	uint r = run / p.heads, h = run % p.heads;
	uint64_t at = (uint64_t(r) * p.ld + h * p.step + p.first) * 4;
	uint64_t x = p.x + at, y = p.dst + at;
	if (QUADS)
		quads(x, y, at, r, h);
	else
		spans(x, y, at, r, h);
	if (p.q32 != 0)
		acts(p.q32, 32, r, p.rows, p.dim, 0, p.dim);
	if (p.q256 != 0)
		acts(p.q256, 256, r, p.rows, p.dim, 0, p.dim);
}
