#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// F32, F16 and BF16 weights times one row of float32 activations, of matrices of few rows, such as routers: a workgroup a row. All that
// is in sight is loaded at once; then 16 threads, one for each accumulator of the contract, do nothing but add.
#include "common.glsl"
#include "product.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
#include "fours.glsl"
const uint SPAN = 2048, EACH = SPAN / 4 / 64, AHEAD = 16;
shared vec4 ws[SPAN / 4], xs[SPAN / 4];
shared float part[16];

void main() {
	uint t = gl_LocalInvocationID.x, r = gl_WorkGroupID.x;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	if (j.n == 0)
		return;
	uint act = j.rows != 0 ? Words(j.rows).v[0] : j.act;
	uint64_t row = j.w + uint64_t(r) * p.stride, x = p.q + uint64_t(act) * p.in_ * 4;
	float acc = 0;
	for (uint base = 0; base < p.in_; base += SPAN) {
		uint n = min(p.in_ - base, SPAN);
		uvec4 w[EACH];
		vec4 v[EACH];
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			uint i = base + min(4 * (64 * e + t), n - 4);
			w[e] = raw(row, i);
			v[e] = Quads(x + 4 * i).v;
		}
		barrier(); // what was there has been used
		[[unroll]] for (uint e = 0; e < EACH; e++) {
			uint i = 64 * e + t;
			if (4 * i < n) {
				ws[i] = four(w[e]);
				xs[i] = v[e];
			}
		}
		barrier();
		if (t < 16) {
			uint i = t;
			for (; i + 16 * (AHEAD - 1) < n; i += 16 * AHEAD) {
				float a[AHEAD], b[AHEAD];
				[[unroll]] for (uint k = 0; k < AHEAD; k++) {
					a[k] = ws[i / 4 + 4 * k][t & 3u];
					b[k] = xs[i / 4 + 4 * k][t & 3u];
				}
				[[unroll]] for (uint k = 0; k < AHEAD; k++)
					acc = ffma(a[k], b[k], acc);
			}
			for (; i < n; i += 16)
				acc = ffma(ws[i / 4][t & 3u], xs[i / 4][t & 3u], acc);
		}
	}
	if (t < 16)
		part[t] = acc;
	barrier();
	if (t > 0)
		return;
	float a[16];
	[[unroll]] for (uint c = 0; c < 16; c++)
		a[c] = part[c];
	[[unroll]] for (uint s = 8; s > 0; s /= 2)
		[[unroll]] for (uint c = 0; c < s; c++)
			a[c] = a[c] + a[c + s];
	float y = a[0];
	if (j.bias != 0)
		y = y + Floats(j.bias).v[r];
	Floats(p.dst + (uint64_t(j.first) * p.ld + j.off + r) * 4).v[0] = y;
}
