#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// F32, F16 and BF16 weights times float32 activations: 16 threads a row, one for each accumulator of the contract.
#include "common.glsl"
#include "product.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;
layout(constant_id = 1) const uint COLS = 1;
layout(constant_id = 2) const bool PAIR = false;
shared float part[64 * 8];

float weight(uint64_t row, uint i) {
	if (TYPE == 0)
		return Floats(row).v[i];
	if (TYPE == 1)
		return widen(uint(Halves(row).v[i]));
	return uintBitsToFloat(uint(Halves(row).v[i]) << 16);
}

// AHEAD elements are loaded before they are used: the sums wait for each other, memory need not.
const uint AHEAD = COLS == 1 ? 32 : 4;

void sum(uint64_t row, uint lane, const uint act[8], uint n, inout float acc[8]) {
	uint i = lane;
	for (; i + 16 * (AHEAD - 1) < p.in_; i += 16 * AHEAD) {
		float w[AHEAD];
		[[unroll]] for (uint k = 0; k < AHEAD; k++)
			w[k] = weight(row, i + 16 * k);
		[[unroll]] for (uint c = 0; c < COLS; c++) {
			if (COLS > 1 && c >= n)
				break;
			Floats x = Floats(p.q + uint64_t(act[c]) * p.in_ * 4);
			float v[AHEAD];
			[[unroll]] for (uint k = 0; k < AHEAD; k++)
				v[k] = x.v[i + 16 * k];
			[[unroll]] for (uint k = 0; k < AHEAD; k++)
				acc[c] = ffma(w[k], v[k], acc[c]);
		}
	}
	for (; i < p.in_; i += 16) {
		float w = weight(row, i);
		[[unroll]] for (uint c = 0; c < COLS; c++) {
			if (COLS > 1 && c >= n)
				break;
			acc[c] = ffma(w, Floats(p.q + uint64_t(act[c]) * p.in_ * 4).v[i], acc[c]);
		}
	}
}

void main() {
	uint t = gl_LocalInvocationID.x, lane = t & 15;
	Job j = Jobs(p.jobs).v[gl_WorkGroupID.z];
	uint c0 = gl_WorkGroupID.y * COLS;
	if (c0 >= j.n)
		return;
	uint n = min(COLS, j.n - c0);
	uint r = gl_WorkGroupID.x * 4 + t / 16;
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
		[[unroll]] for (uint h = 8; h > 0; h /= 2) {
			barrier();
			if (lane < h) {
				[[unroll]] for (uint c = 0; c < COLS; c++)
					part[t * 8 + c] = part[t * 8 + c] + part[(t + h) * 8 + c];
			}
		}
		barrier();
		uint64_t bias = second ? j.bias2 : j.bias;
		if (lane < n && valid) {
			float y = part[(t & ~15u) * 8 + lane];
			if (bias != 0)
				y = y + Floats(bias).v[r];
			if (PAIR && !second)
				gate[0] = y;
			else {
				if (PAIR)
					y = activate(p.act, gate[0], y);
				Floats(p.dst + (uint64_t(j.first + c0 + lane) * p.ld + j.off + r) * 4).v[0] = y;
			}
		}
		barrier();
	}
}
