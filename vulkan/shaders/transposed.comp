#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// Rows of weights, decoded to float32, summed up with activations as factors: kernels.MatMulT. A thread has one result.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t w, x, dst; // w: heads x stride rows of cols
	uint cols, n, stride, skip;              // results; rows of a head that are summed; rows of a head; rows before these
	uint xld, xstep, xfirst;                 // element of head h in row r: r*ld + h*step + first
	uint yld, ystep, yfirst;
} p;

void main() {
	uint j = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x, h = gl_WorkGroupID.y, r = gl_WorkGroupID.z;
	if (j >= p.cols)
		return;
	uint64_t w = p.w + uint64_t(h * p.stride + p.skip) * p.cols * 4, x = p.x + (uint64_t(r) * p.xld + h * p.xstep + p.xfirst) * 4;
	float sum = 0;
	for (uint i = 0; i < p.n; i++)
		sum = ffma(Floats(x).v[i], Floats(w).v[i * p.cols + j], sum);
	Floats(p.dst + (uint64_t(r) * p.yld + h * p.ystep + p.yfirst) * 4).v[j] = sum;
}
