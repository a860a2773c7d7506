#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// Appends rows of keys or values to a cache: kernels.EncodeKV. A thread has an element, or a block of 32.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(push_constant) uniform Push {
	uint64_t x, kv, where; // where: the position of the first row
	uint count;            // elements or blocks in all
	uint heads, dim, cells, stride; // stride: bytes of a head's element
} p;

int code(float v, float d, int lo, int hi) {
	if (d == 0 || nan(d))
		return 0;
	float x = div(v, d), t = trunc(x), a = abs(x - t);
	int i = abs(x) > 1000 ? (x > 0 ? 1000 : -1000) : int(t);
	if (a >= 0.5)
		i += x > 0 ? 1 : -1;
	return clamp(i, lo, hi);
}

void main() {
	uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 64 + gl_LocalInvocationID.x;
	if (i >= p.count)
		return;
	uint block = TYPE < 2 ? 1 : 32, per = p.dim / block;
	uint e = i % per, h = i / per % p.heads, r = i / per / p.heads;
	uint64_t from = p.x + (uint64_t(i) * block) * 4;
	uint64_t to = p.kv + (uint64_t(h) * p.cells + (Words(p.where).v[0] + r) % p.cells) * p.stride;
	if (TYPE == 0) {
		Halves(to).v[e] = uint16_t(narrow(Floats(from).v[0]));
		return;
	}
	if (TYPE == 1) {
		Words(to).v[e] = Words(from).v[0];
		return;
	}
	uint top = 0;
	float m = 0;
	for (uint k = 0; k < 32; k++) {
		float v = Floats(from).v[k];
		uint u = floatBitsToUint(v) & 0x7fffffffu;
		if (u > top) {
			top = u;
			m = v;
		}
	}
	if (top > 0x7f7fffffu)
		m = uintBitsToFloat(0x7fc00000u);
	to += e * (TYPE == 2 ? 34 : 18);
	float d = TYPE == 2 ? (nan(m) ? m : div(abs(m), 127)) : m * -0.125;
	uint s = nan(m) ? 0x7e00u : narrow(d);
	if ((s & 0x7fffu) >= 0x7c00u)
		s = 0x7e00u;
	Halves(to).v[0] = uint16_t(s);
	d = widen(s);
	if (TYPE == 2) {
		for (uint k = 0; k < 32; k++)
			Bytes(to + 2).v[k] = uint8_t(code(Floats(from).v[k], d, -127, 127) & 255);
		return;
	}
	for (uint k = 0; k < 16; k++)
		Bytes(to + 2).v[k] = uint8_t(code(Floats(from).v[k], d, -8, 7) + 8 | code(Floats(from).v[k + 16], d, -8, 7) + 8 << 4);
}
