#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// The factors of recurrent layers: kernels.DeltaGates, and with SCAN kernels.ScanGates.
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const bool SCAN = false;
layout(push_constant) uniform Push {
	uint64_t decay, gain, alpha, beta, a, dt;
	uint heads, rows;
	uint joint; // > 0: alphas and betas lie together in beta, so many value heads a key head
} p;

float softplus(float x) {
	if (x > 20 || nan(x))
		return x;
	float e = fexp(x);
#ifdef FP64
	// fmath.Log of 1+e, which is in [1, 5e8].
	double y = 1 + double(e);
	uvec2 u = unpackDouble2x32(y);
	int k = int(u.y >> 20) - 1022; // as Frexp: y = m * 2^k, m in [0.5, 1)
	u.y = u.y & 0xfffffu | 1022u << 20;
	double m = packDouble2x32(u);
	if (m < 0.70710678118654752440LF) {
		m = m * 2;
		k--;
	}
	double s = (m - 1) / (m + 1), z = s * s;
	double q = 1.0LF / 21.0LF;
	q = 1.0LF / 19.0LF + q * z;
	q = 1.0LF / 17.0LF + q * z;
	q = 1.0LF / 15.0LF + q * z;
	q = 1.0LF / 13.0LF + q * z;
	q = 1.0LF / 11.0LF + q * z;
	q = 1.0LF / 9.0LF + q * z;
	q = 1.0LF / 7.0LF + q * z;
	q = 1.0LF / 5.0LF + q * z;
	q = 1.0LF / 3.0LF + q * z;
	double n = double(k);
	double low = 2 * ((s * z) * q) + n * packDouble2x32(uvec2(0x6af278edu, 0x3dd473deu)) /* ln 2, low part */;
	return float(n * packDouble2x32(uvec2(0xfef00000u, 0x3fe62e42u)) /* high part */ + (2 * s + low));
#else
	return log(1 + e);
#endif
}

void main() {
	uint i = gl_WorkGroupID.x * 64 + gl_LocalInvocationID.x;
	if (i >= p.rows * p.heads)
		return;
	uint r = i / p.heads, h = i % p.heads;
	if (SCAN) {
		float d = softplus(Floats(p.alpha).v[i] + Floats(p.dt).v[h]);
		Floats(p.gain).v[i] = d;
		Floats(p.decay).v[i] = fexp(Floats(p.a).v[h] * d);
		return;
	}
	float alpha, beta;
	if (p.joint > 0) {
		uint at = r * 2 * p.heads + h / p.joint * 2 * p.joint + h % p.joint;
		beta = Floats(p.beta).v[at];
		alpha = Floats(p.beta).v[at + p.joint];
	} else {
		alpha = Floats(p.alpha).v[i];
		beta = Floats(p.beta).v[i];
	}
	Floats(p.decay).v[i] = fexp(Floats(p.a).v[h] * softplus(alpha + Floats(p.dt).v[h]));
	Floats(p.gain).v[i] = fsigmoid(beta);
}
