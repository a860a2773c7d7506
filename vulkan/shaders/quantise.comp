#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Activations to int8: a workgroup takes 256 elements of a row, one scale for each BLOCK of them. Sums of 16 lie two to a word.
#include "common.glsl"
#include "int8.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint BLOCK = 32;
layout(push_constant) uniform Push {
	uint64_t x, q, d, s;
	uint n;                          // elements of a quantised row
	uint rows;                       // rows of x
	uint ld, first, step;            // head h of row r begins at element r*ld + h*step + first
	uint heads;                      // quantised row h*rows + r is head h of row r
} p;
shared uint top[8];
shared int sums[16];

void main() {
	uint t = gl_LocalInvocationID.x;
	uint row = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	bool valid = row < p.rows * p.heads;
	uint h = row / p.rows, r = row % p.rows;
	if (t < 8)
		top[t] = 0;
	if (t < 16)
		sums[t] = 0;
	barrier();
	uint at = gl_WorkGroupID.x * 256 + 4 * t;
	valid = valid && at < p.n;
	uint64_t from = p.x + (uint64_t(r) * p.ld + h * p.step + p.first + at) * 4;
	float v[4];
	uint b = BLOCK == 32 ? t >> 3 : 0;
	uint m = 0;
	[[unroll]] for (uint k = 0; k < 4; k++) {
		v[k] = valid ? Floats(from).v[k] : 0;
		m = max(m, floatBitsToUint(v[k]) & 0x7fffffffu);
	}
	atomicMax(top[b], m);
	barrier();
	float d, inv;
	int8Scale(top[b], d, inv);
	uint w = 0;
	int sum = 0;
	if (inv != 0) {
		[[unroll]] for (uint k = 0; k < 4; k++) {
			uint q = int8Code(v[k], inv);
			w |= q << 8 * k;
			sum += int(q << 24) >> 24;
		}
	}
	atomicAdd(sums[t >> 2], sum);
	barrier();
	if (!valid)
		return;
	Words(p.q + uint64_t(row) * p.n + at).v[0] = w;
	uint64_t unit = uint64_t(row) * (p.n / 32) + (at >> 5);
	if ((t & 7) == 0)
		Words(p.s).v[uint(unit)] = uint(sums[t >> 2]) & 0xffffu | uint(sums[(t >> 2) + 1]) << 16;
	if (BLOCK == 32 ? (t & 7) == 0 : t == 0)
		Floats(p.d).v[uint(uint64_t(row) * (p.n / BLOCK) + at / BLOCK)] = d;
}
