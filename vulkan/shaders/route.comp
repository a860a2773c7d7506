#version 450
// variants: base f64
#extension GL_GOOGLE_include_directive : require
// The choice of experts: router.Rule.TopK, a workgroup a row, and the jobs of the products that follow. An expert's place among the
// chosen is how many go before it, so that equal values need no order of their own.
#include "common.glsl"
#include "job.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint N = 128;   // experts
layout(constant_id = 1) const uint K = 8;     // chosen
layout(constant_id = 2) const uint FLAGS = 1; // router.Gating; 16: weights are divided by their sum
layout(constant_id = 3) const uint CUT = 0;   // groups, and how many of them count in the upper half; 0: none
layout(push_constant) uniform Push {
	uint64_t scores, table;          // rows of N; for each expert where gate, up and down lie
	uint64_t jobs, weights, ids;     // rows of 3 lists of K, 0: none; rows of K
	uint64_t gate, up, down;         // biases of all experts, 0: none
	uint64_t pick, each_;            // what is added for the choice, and what multiplies weights; 0: nothing
	uint ff, out_;                   // elements of the biases of gate and up, and of down
	uint rows;
	float scale, factor;             // multiply weights; scale 0: 1
} p;
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer NewJobs { Job v[]; };

const uint GATING = FLAGS & 15u, GROUPS = CUT & 0xffffu, USED = CUT >> 16;
const uint SIZE = GROUPS > 0 ? N / GROUPS : N;
#define INF uintBitsToFloat(0x7f800000u)
shared float probs[N], sel[N];
shared float tops[128], top8[8], total;
const bool NEAR = N <= 256; // whether the table is loaded first
shared uvec2 lies[NEAR ? 3 * N : 1];
shared float groups_[GROUPS > 0 ? GROUPS : 1];
shared bool kept[GROUPS > 0 ? GROUPS : 1];
shared uint chosen[K];
shared float by[K];
shared uint bad;

// lie is word i of the table.
uint64_t lie(uint i) { return NEAR ? packUint2x32(lies[i]) : Longs(p.table).v[i]; }

void main() {
	uint t = gl_LocalInvocationID.x, row = gl_WorkGroupID.x;
	Floats scores = Floats(p.scores + uint64_t(row) * N * 4);
	if (t == 0)
		bad = 0;
	barrier();
	float top = -INF;
	for (uint i = t; i < N; i += 128) {
		float v = scores.v[i];
		if (nan(v) || v == INF)
			bad = 1;
		sel[i] = v;
		top = v > top ? v : top;
	}
	tops[t] = top;
	if (NEAR) {
		for (uint i = t; i < 3 * N; i += 128)
			lies[i] = unpackUint2x32(Longs(p.table).v[i]);
	}
	barrier();
	if (t < 8) {
		float v[16];
		[[unroll]] for (uint k = 0; k < 16; k++)
			v[k] = tops[8 * k + t];
		[[unroll]] for (uint k = 1; k < 16; k++)
			v[0] = v[k] > v[0] ? v[k] : v[0];
		top8[t] = v[0];
	}
	barrier();
	top = top8[0];
	[[unroll]] for (uint k = 1; k < 8; k++)
		top = top8[k] > top ? top8[k] : top;
	if (GATING == 1) {
		for (uint i = t; i < N; i += 128)
			probs[i] = fexp(sel[i] - top);
		barrier();
		if (t == 0) {
			if (top == -INF)
				bad = 1;
			float s = 0;
			uint i = 0;
			for (; i + 16 <= N; i += 16) {
				float v[16];
				[[unroll]] for (uint k = 0; k < 16; k++)
					v[k] = probs[i + k];
				[[unroll]] for (uint k = 0; k < 16; k++)
					s = s + v[k];
			}
			for (; i < N; i++)
				s = s + probs[i];
			total = s;
		}
		barrier();
	}
	for (uint i = t; i < N; i += 128) {
		float v = GATING == 1 ? div(probs[i], total) : GATING == 2 ? fsigmoid(sel[i]) : sel[i];
		probs[i] = v;
		sel[i] = p.pick != 0 ? v + Floats(p.pick).v[i] : v;
	}
	barrier();
	if (GROUPS > 0) {
		for (uint g = t; g < GROUPS; g += 128) {
			float a = sel[g * SIZE], b = sel[g * SIZE + 1];
			if (b > a) {
				float c = a;
				a = b;
				b = c;
			}
			for (uint i = g * SIZE + 2; i < (g + 1) * SIZE; i++) {
				float x = sel[i];
				if (x > a) {
					b = a;
					a = x;
				} else if (x > b) {
					b = x;
				}
			}
			groups_[g] = a + b;
		}
		barrier();
		for (uint g = t; g < GROUPS; g += 128) {
			uint before = 0;
			for (uint i = 0; i < GROUPS; i++)
				before += groups_[i] > groups_[g] || groups_[i] == groups_[g] && i < g ? 1 : 0;
			kept[g] = before < USED;
		}
		barrier();
	}
	for (uint i = t; i < N; i += 128) {
		if (GROUPS > 0 && !kept[i / SIZE])
			continue;
		float x = sel[i];
		uint before = 0;
		uint j = 0;
		if (GROUPS == 0) {
			for (; j + 16 <= N; j += 16) {
				float v[16];
				[[unroll]] for (uint k = 0; k < 16; k++)
					v[k] = sel[j + k];
				[[unroll]] for (uint k = 0; k < 16; k++)
					before += uint(v[k] > x) + uint(v[k] == x && j + k < i);
			}
		}
		for (; j < N; j++)
			before += (GROUPS == 0 || kept[j / SIZE]) && (sel[j] > x || sel[j] == x && j < i) ? 1 : 0;
		if (before < K) {
			chosen[before] = i;
			by[before] = probs[i];
		}
	}
	barrier();
	bool wrong = bad != 0;
	if (t == 0 && !wrong) {
		float s = 0, best = -INF;
		if (GATING == 3) {
			for (uint k = 0; k < K; k++)
				best = by[k] > best ? by[k] : best;
			if (best == -INF)
				bad = 1;
			for (uint k = 0; k < K; k++) {
				by[k] = fexp(by[k] - best);
				s = s + by[k];
			}
			for (uint k = 0; k < K; k++)
				by[k] = div(by[k], s);
		}
		if ((FLAGS & 16u) != 0) {
			s = 0;
			for (uint i = 0; i < K; i += 8) {
				float v[8];
				[[unroll]] for (uint k = 0; k < 8; k++)
					v[k] = by[min(i + k, K - 1)];
				[[unroll]] for (uint k = 0; k < 8; k++)
					if (i + k < K)
						s = s + v[k];
			}
			s = s > 6.103515625e-5 ? s : 6.103515625e-5;
			total = s;
		}
	}
	barrier();
	for (uint k = t; k < K && !wrong; k += 128) {
		if ((FLAGS & 16u) != 0)
			by[k] = div(by[k], total);
		float w = by[k];
		if (p.scale != 0 && p.scale != 1)
			w = w * p.scale;
		if (p.each_ != 0)
			w = w * Floats(p.each_).v[chosen[k]];
		if (p.factor != 1)
			w = w * p.factor;
		by[k] = w;
	}
	barrier();
	wrong = bad != 0;
	for (uint k = t; k < K; k += 128) {
		uint e = wrong ? 0 : chosen[k], at = row * K + k;
		Words(p.ids).v[at] = wrong ? 0xffffffffu : e;
		Floats(p.weights).v[at] = wrong ? 0 : by[k];
		if (p.jobs == 0) // share.comp makes them
			continue;
		Job j;
		j.rows = 0;
		j.first = at;
		j.n = wrong ? 0 : 1;
		j.act = row;
		j.off = 0;
		j.w = lie(3 * e);
		j.w2 = lie(3 * e + 1);
		j.bias = p.gate != 0 ? p.gate + uint64_t(e) * p.ff * 4 : 0;
		j.bias2 = p.up != 0 ? p.up + uint64_t(e) * p.ff * 4 : 0;
		NewJobs(p.jobs).v[at] = j;
		j.w = j.w2;
		j.bias = j.bias2;
		NewJobs(p.jobs).v[p.rows * K + at] = j;
		j.act = at;
		j.w = lie(3 * e + 2);
		j.bias = p.down != 0 ? p.down + uint64_t(e) * p.out_ * 4 : 0;
		NewJobs(p.jobs).v[2 * p.rows * K + at] = j;
	}
}
