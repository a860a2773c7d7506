#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Reads memory as fast as it can: what other shaders are measured against. A workgroup reads runs of THREADS*16 bytes that lie
// a whole grid apart.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(push_constant) uniform Push {
	uint64_t from, to;
	uint quads;
} p;
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };

void main() {
	uvec4 sum = uvec4(0);
	uint step = gl_NumWorkGroups.x * 256, i = gl_WorkGroupID.x * 256 + gl_LocalInvocationID.x;
	for (; i + 3 * step < p.quads; i += 4 * step) {
		uvec4 a = Quads(p.from).v[i], b = Quads(p.from).v[i + step], c = Quads(p.from).v[i + 2 * step], d = Quads(p.from).v[i + 3 * step];
		sum ^= a ^ b ^ c ^ d;
	}
	for (; i < p.quads; i += step)
		sum ^= Quads(p.from).v[i];
	if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u)
		Words(p.to).v[gl_WorkGroupID.x & 63u] = sum.x;
}
