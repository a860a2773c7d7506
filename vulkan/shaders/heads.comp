#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// What comes between the products and attention, in one dispatch: the norm of each head of queries and keys (norm.comp), their rotation
// (rope.comp), and the place of keys and values in the cache (store.comp). A workgroup has a head.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint DIM = 128;   // elements of a head of queries or keys
layout(constant_id = 1) const uint FLAGS = 0;   // 1: neighbours are turned together; 2: heads are normed first
layout(constant_id = 2) const uint TYPES = 0;   // of the cache: of keys, and of values in the upper half
layout(constant_id = 3) const uint TURNED = 64; // pairs that are turned
layout(push_constant) uniform Push {
	uint64_t q, k, v;             // rows of heads; v 0: none
	uint64_t qw, kw;              // of the norms; 0: none
	uint64_t cos, sin;
	uint64_t keys, values, where; // of the cache; where: the position of the first row. keys 0: nothing is stored
	uint rows, heads, kheads;     // heads of queries, and of keys and values
	uint vdim, first;             // first: element of a head where the rotation begins
	uint cells, kstride, vstride; // bytes of a head's element
	float eps;
} p;
const uint SPAN = 512, THREADS = 64;
const uint EACH = (DIM + THREADS - 1) / THREADS, TURNS = (TURNED + THREADS - 1) / THREADS;
const bool NEIGHBOURS = (FLAGS & 1u) != 0, NORMED = (FLAGS & 2u) != 0;
shared float head[SPAN];
float value(uint i) { return head[i]; }
#include "store.glsl"
#include "rms.glsl"

// append stores the head that is in sight at a position.
void append(uint type, uint64_t cache, uint stride, uint dim, uint h, uint at) {
	uint64_t to = cache + (uint64_t(h) * p.cells + at % p.cells) * stride;
	for (uint e = gl_LocalInvocationID.x; e < dim / (type < 2 ? 1 : 32); e += THREADS)
		storeKV(type, to, e);
}

void main() {
	uint t = gl_LocalInvocationID.x, n = p.heads + p.kheads + (p.v != 0 ? p.kheads : 0);
	uint run = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
	if (run >= p.rows * n)
		return;
	uint r = run / n, h = run % n, at = r;
	if (p.keys != 0)
		at += Words(p.where).v[0];
	if (h >= p.heads + p.kheads) {
		h -= p.heads + p.kheads;
		for (uint i = t; i < p.vdim; i += THREADS)
			head[i] = Floats(p.v + (uint64_t(r) * p.kheads + h) * p.vdim * 4).v[i];
		barrier();
		append(TYPES >> 16, p.values, p.vstride, p.vdim, h, at);
		return;
	}
	bool query = h < p.heads;
	if (!query)
		h -= p.heads;
	uint64_t x = query ? p.q : p.k, w = query ? p.qw : p.kw;
	x += (uint64_t(r) * (query ? p.heads : p.kheads) + h) * DIM * 4;
	// All that is read is on its way before anything waits.
	float v[EACH], by[EACH], c[TURNS], s[TURNS];
	[[unroll]] for (uint e = 0; e < EACH; e++)
		v[e] = Floats(x).v[min(e * THREADS + t, DIM - 1)];
	if (NORMED && w != 0) {
		[[unroll]] for (uint e = 0; e < EACH; e++)
			by[e] = Floats(w).v[min(e * THREADS + t, DIM - 1)];
	}
	[[unroll]] for (uint e = 0; e < TURNS; e++) {
		uint j = r * TURNED + min(e * THREADS + t, TURNED - 1);
		c[e] = Floats(p.cos).v[j];
		s[e] = Floats(p.sin).v[j];
	}
	if (NORMED) {
		[[unroll]] for (uint e = 0; e < EACH; e++)
			if (e * THREADS + t < DIM)
				putSquare(e * THREADS + t, v[e]);
		barrier();
		if (t < 8) {
			SUM sum = SUM(0);
			lane(t, DIM, sum);
			part[t] = sum;
		}
		barrier();
		if (t == 0)
			setFactor(float(DIM), p.eps);
		barrier();
		float f = factor;
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			v[e] = v[e] * f;
			if (w != 0)
				v[e] = v[e] * by[e];
		}
	}
	[[unroll]] for (uint e = 0; e < EACH; e++)
		if (e * THREADS + t < DIM)
			head[e * THREADS + t] = v[e];
	barrier();
	[[unroll]] for (uint e = 0; e < TURNS; e++) {
		uint j = e * THREADS + t;
		if (j < TURNED) {
			uint lo = p.first + (NEIGHBOURS ? 2 * j : j), hi = p.first + (NEIGHBOURS ? 2 * j + 1 : j + TURNED);
			float a = head[lo], b = head[hi];
			head[lo] = a * c[e] - b * s[e];
			head[hi] = a * s[e] + b * c[e];
		}
	}
	barrier();
	[[unroll]] for (uint e = 0; e < EACH; e++)
		if (e * THREADS + t < DIM)
			Floats(x).v[e * THREADS + t] = head[e * THREADS + t];
	if (!query && p.keys != 0)
		append(TYPES & 0xffffu, p.keys, p.kstride, DIM, h, at);
}
