#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// The causal depthwise convolution of kernels.Conv, and the state after it: the last back inputs.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
	uint64_t dst, x, w, bias, now, next; // w: a row of taps a channel; bias may be 0
	uint channels, taps, dilation, rows, back, silu;
} p;

float inputAt(int t, uint c) {
	if (t < 0)
		return Floats(p.now).v[uint(int(p.back) + t) * p.channels + c];
	return Floats(p.x).v[uint(t) * p.channels + c];
}

void main() {
	uint c = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x;
	uint t = gl_WorkGroupID.y + gl_WorkGroupID.z * gl_NumWorkGroups.y;
	if (c >= p.channels || t >= p.rows + p.back)
		return;
	if (t >= p.rows) {
		uint i = t - p.rows;
		Floats(p.next).v[i * p.channels + c] = inputAt(int(p.rows + i) - int(p.back), c);
		return;
	}
	float sum = 0;
	for (uint j = 0; j < p.taps; j++)
		sum = ffma(Floats(p.w).v[c * p.taps + j], inputAt(int(t) - int((p.taps - 1 - j) * p.dilation), c), sum);
	if (p.bias != 0)
		sum = sum + Floats(p.bias).v[c];
	if (p.silu != 0)
		sum = fsilu(sum);
	Floats(p.dst).v[t * p.channels + c] = sum;
}
