#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Rows of weights to float32, as quant decodes them: one piece of cols elements for each address of a list.
#include "common.glsl"
#include "units.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t table, dst, rows; // rows: addresses of pieces
	uint cols, count;
	uint stride; // 0: rows is a list; else piece i begins i*stride bytes after rows itself
} p;

void main() {
	uint piece = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	if (piece >= p.count)
		return;
	uint64_t row = p.stride == 0 ? Longs(p.rows).v[piece] : p.rows + uint64_t(piece) * p.stride;
	uint64_t to = p.dst + uint64_t(piece) * p.cols * 4;
	uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x;
	if (TYPE == F32 || TYPE == F16 || TYPE == BF16) {
		if (i >= p.cols)
			return;
		uint v;
		if (TYPE == F32)
			v = Words(row).v[i];
		else if (TYPE == F16)
			v = floatBitsToUint(widen(uint(Halves(row).v[i])));
		else
			v = uint(Halves(row).v[i]) << 16;
		Words(to).v[i] = v;
		return;
	}
	if (32 * i >= p.cols)
		return;
	Unit u;
	unpack(row, i, p.table, u);
	[[unroll]] for (uint k = 0; k < 32; k++) {
		float q = float(int(u.q[k >> 2] << 24 - 8 * (k & 3)) >> 24);
		float x;
		if (wide(TYPE)) {
			x = u.d[0] * float(u.s[k >> 4]) * q;
			if (mins(TYPE))
				x = x - u.dm * float(u.m[k >> 4]);
		} else {
			x = q * u.d[k >> 4];
			if (mins(TYPE))
				x = x + u.dm;
		}
		Floats(to).v[32 * i + k] = x;
	}
}
