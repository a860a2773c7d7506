#version 450
// variants: base dot
#extension GL_GOOGLE_include_directive : require
// Quantised weights times int8 activations, in the order of kernels.MatMul: LANES threads a row, each with one of the
// accumulators of the contract, COLS columns at a time. With PAIR gate and up are met together and activated.
#include "common.glsl"
#include "units.glsl"
#include "product.glsl"
#include "dot.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 1) const uint COLS = 1;
layout(constant_id = 2) const bool PAIR = false;
shared float part[64 * 8];

#define LANES (wide(TYPE) ? 4u : 8u)

void sum(uint64_t row, uint lane, const uint act[8], uint n, inout float acc[8]) {
	uint units = p.in_ / 32;
	Unit u;
	if (wide(TYPE)) {
		for (uint sb = lane; sb < units / 8; sb += 4) {
			int isum[8], msum[8];
			[[unroll]] for (uint c = 0; c < COLS; c++) {
				isum[c] = 0;
				msum[c] = 0;
			}
			[[unroll]] for (uint g = 0; g < 8; g++) {
				unpack(row, sb * 8 + g, p.table, u);
				[[unroll]] for (uint c = 0; c < COLS; c++) {
					if (c >= n)
						break;
					uint64_t x = p.q + uint64_t(act[c]) * p.in_ + (sb * 8 + g) * 32;
					int lo = 0, hi = 0;
					[[unroll]] for (uint k = 0; k < 4; k++) {
						lo += dot4(u.q[k], Words(x).v[k]);
						hi += dot4(u.q[k + 4], Words(x).v[k + 4]);
					}
					isum[c] += u.s[0] * lo + u.s[1] * hi;
					if (mins(TYPE)) {
						int xs = int(Words(p.s + (uint64_t(act[c]) * units + sb * 8 + g) * 4).v[0]);
						msum[c] += u.m[0] * (xs << 16 >> 16) + u.m[1] * (xs >> 16);
					}
				}
			}
			[[unroll]] for (uint c = 0; c < COLS; c++) {
				if (c >= n)
					break;
				float dy = Floats(p.d + (uint64_t(act[c]) * (units / 8) + sb) * 4).v[0];
				acc[c] = acc[c] + (u.d[0] * dy) * float(isum[c]);
				if (mins(TYPE))
					acc[c] = acc[c] - (u.dm * dy) * float(msum[c]);
			}
		}
		return;
	}
	for (uint i = lane; i < units; i += 8) {
		unpack(row, i, p.table, u);
		[[unroll]] for (uint c = 0; c < COLS; c++) {
			if (c >= n)
				break;
			uint64_t x = p.q + uint64_t(act[c]) * p.in_ + i * 32;
			int lo = 0, hi = 0;
			[[unroll]] for (uint k = 0; k < 4; k++) {
				lo += dot4(u.q[k], Words(x).v[k]);
				hi += dot4(u.q[k + 4], Words(x).v[k + 4]);
			}
			float dy = Floats(p.d + (uint64_t(act[c]) * units + i) * 4).v[0];
			if (TYPE == NVFP4) {
				acc[c] = acc[c] + (u.d[0] * dy) * float(lo);
				acc[c] = acc[c] + (u.d[1] * dy) * float(hi);
			} else {
				acc[c] = acc[c] + (u.d[0] * dy) * float(lo + hi);
			}
			if (mins(TYPE)) {
				int xs = int(Words(p.s + (uint64_t(act[c]) * units + i) * 4).v[0]);
				acc[c] = acc[c] + (u.dm * dy) * float((xs << 16 >> 16) + (xs >> 16));
			}
		}
	}
}

// result is column c of the row that thread t is about, once all threads are here.
float result(uint t, uint c) {
	uint at = (t & ~(LANES - 1)) * 8 + c;
	if (LANES == 4)
		return (part[at] + part[at + 8]) + (part[at + 16] + part[at + 24]);
	return ((part[at] + part[at + 32]) + (part[at + 16] + part[at + 48])) + ((part[at + 8] + part[at + 40]) + (part[at + 24] + part[at + 56]));
}

void main() {
	uint t = gl_LocalInvocationID.x, lane = t & LANES - 1;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	uint c0 = gl_WorkGroupID.y * COLS;
	if (c0 >= j.n)
		return;
	uint n = min(COLS, j.n - c0);
	uint r = gl_WorkGroupID.x * (64 / LANES) + t / LANES;
	bool valid = r < p.out_;
	uint act[8];
	[[unroll]] for (uint c = 0; c < COLS; c++)
		act[c] = c >= n ? 0 : j.rows != 0 ? Words(j.rows).v[c0 + c] : j.act + c0 + c;
	float gate[8];
	for (uint half_ = PAIR ? 0 : 1; half_ < 2; half_++) {
		float acc[8];
		[[unroll]] for (uint c = 0; c < COLS; c++)
			acc[c] = 0;
		bool second = PAIR && half_ == 1;
		if (valid)
			sum((second ? j.w2 : j.w) + uint64_t(r) * p.stride, lane, act, n, acc);
		[[unroll]] for (uint c = 0; c < COLS; c++)
			part[t * 8 + c] = acc[c];
		barrier();
		uint64_t bias = second ? j.bias2 : j.bias;
		[[unroll]] for (uint c = 0; c < COLS; c++) {
			if (c >= n || lane != (c & LANES - 1) || !valid)
				continue;
			float y = result(t, c);
			if (bias != 0)
				y = y + Floats(bias).v[r];
			if (PAIR && !second) {
				gate[c] = y;
				continue;
			}
			if (PAIR)
				y = activate(p.act, gate[c], y);
			Floats(p.dst + (uint64_t(j.first + c0 + c) * p.ld + j.off + r) * 4).v[0] = y;
		}
		barrier();
	}
}
