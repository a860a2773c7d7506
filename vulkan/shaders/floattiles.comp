#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// floats.comp for many rows of activations: tiles of 32 rows of weights by 16 of activations, 64 elements at a time, of which the next are
// on their way while these are multiplied. Rows are whole quads of elements.
#include "common.glsl"
#include "product.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint TYPE = 0;
#include "fours.glsl"
const uint ROWS = 32, COLS = 16, PITCH = 17;
shared vec4 as_[ROWS * PITCH], bs[COLS * PITCH];
shared uint who[COLS];
#include "dots.glsl"

void main() {
	uint t = gl_LocalInvocationID.x;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	uint r0 = gl_WorkGroupID.x * ROWS, c0_ = gl_WorkGroupID.y * COLS;
	if (c0_ >= j.n)
		return;
	uint n = min(COLS, j.n - c0_), quads = p.in_ / 4;
	if (t < COLS) {
		uint k = c0_ + min(t, n - 1); // columns past the end are the last one again
		who[t] = j.rows != 0 ? Words(j.rows).v[k] : j.act + k;
	}
	barrier();
	// Thread t brings quad t%16 of rows t/16, +8, +16 and +24 and of columns t/16 and +8.
	uint lq = t & 15u, lr = t >> 4;
	uint64_t rows[4], cols[2];
	[[unroll]] for (uint k = 0; k < 4; k++)
		rows[k] = j.w + uint64_t(min(r0 + lr + 8 * k, p.out_ - 1)) * p.stride;
	[[unroll]] for (uint k = 0; k < 2; k++)
		cols[k] = p.q + uint64_t(who[lr + 8 * k]) * p.in_ * 4;
	uvec4 w[4];
	vec4 x[2];
#define BRING(base) { \
	uint i = 4 * min((base) + lq, quads - 1); \
	[[unroll]] for (uint k = 0; k < 4; k++) \
		w[k] = raw(rows[k], i); \
	[[unroll]] for (uint k = 0; k < 2; k++) \
		x[k] = Quads(cols[k] + 4 * i).v; \
}
	uint tile = t / 32, tr = tile % 2 * 16 + (t & 7u), tc = tile / 2 * 8 + (t >> 3 & 3u);
	uint ra = tr * PITCH, ca = tc * PITCH;
	DOTS_DECLARE
	DOTS_CLEAR
	BRING(0)
	for (uint base = 0; base < quads; base += 16) {
		barrier(); // what was there has been used
		[[unroll]] for (uint k = 0; k < 4; k++)
			as_[(lr + 8 * k) * PITCH + lq] = four(w[k]);
		[[unroll]] for (uint k = 0; k < 2; k++)
			bs[(lr + 8 * k) * PITCH + lq] = x[k];
		barrier();
		if (base + 16 < quads)
			BRING(base + 16)
		DOTS(min(16, quads - base))
	}
#define STORE(p_, r, c) { \
	uint row = r0 + tr + (r), col = tc + (c); \
	if (row < p.out_ && col < n) { \
		float y = DOTS_RESULT(p_); \
		if (j.bias != 0) \
			y = y + Floats(j.bias).v[row]; \
		Floats(p.dst + (uint64_t(j.first + c0_ + col) * p.ld + j.off + row) * 4).v[0] = y; \
	} \
}
	STORE(p0, 0, 0)
	STORE(p1, 0, 4)
	STORE(p2, 8, 0)
	STORE(p3, 8, 4)
}
