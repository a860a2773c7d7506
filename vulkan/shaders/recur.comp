#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// The recurrences of kernels.DeltaNet, and with SCAN of kernels.Scan: a thread has a column of a head's state.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const bool SCAN = false;
layout(push_constant) uniform Push {
	uint64_t dst, q, k, v; // q: of Mamba-2 the queries, k the keys, v the inputs
	uint64_t decay, gain, now, next, skip;
	uint rows, heads, keyDim, valDim, stride;
	uint keys, grouped; // key heads; which of them a head reads
	float scale;
} p;

void main() {
	uint j = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, h = gl_WorkGroupID.y;
	if (j >= p.valDim)
		return;
	uint kh = p.grouped != 0 ? h / (p.heads / p.keys) : h % p.keys;
	uint64_t at = uint64_t(h) * p.keyDim * p.valDim * 4;
	Floats from = Floats(p.now + at), to = Floats(p.next + at);
	if (p.rows == 0)
		for (uint i = 0; i < p.keyDim; i++)
			to.v[i * p.valDim + j] = from.v[i * p.valDim + j];
	for (uint t = 0; t < p.rows; t++) {
		Floats s = t == 0 ? from : to;
		Floats q = Floats(p.q + (uint64_t(t) * p.stride + kh * p.keyDim) * 4), k = Floats(p.k + (uint64_t(t) * p.stride + kh * p.keyDim) * 4);
		float v = Floats(p.v + (uint64_t(t) * p.stride + h * p.valDim) * 4).v[j];
		float decay = Floats(p.decay).v[t * p.heads + h], gain = Floats(p.gain).v[t * p.heads + h];
		float d;
		if (SCAN) {
			d = gain * v;
		} else {
			float sum = 0;
			for (uint i = 0; i < p.keyDim; i++)
				sum = ffma(s.v[i * p.valDim + j], k.v[i], sum);
			d = v - decay * sum;
			d = gain * d;
		}
		float o = 0;
		for (uint i = 0; i < p.keyDim; i++) {
			float y = ffma(k.v[i], d, decay * s.v[i * p.valDim + j]);
			to.v[i * p.valDim + j] = y;
			o = ffma(y, q.v[i], o);
		}
		if (SCAN)
			o = o + Floats(p.skip).v[h] * v;
		else
			o = o * p.scale;
		Floats(p.dst).v[(t * p.heads + h) * p.valDim + j] = o;
	}
}
