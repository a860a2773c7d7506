#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// keys.comp for many rows: a block of 64 keys meets the query heads that share it, of ROWS rows. Keys are widened once; four threads a
// key, each with a quarter of the sixteen sums of the contract for four queries at a time, and then each with the end of one of them.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KT = 0;
layout(constant_id = 1) const uint KD = 128;
layout(constant_id = 2) const uint GROUP = 8; // query heads that share keys
layout(constant_id = 3) const uint ROWS = 8;
layout(push_constant) uniform Push {
	uint64_t q, k, scores, where; // where: the position of the first row
	uint heads;                   // of queries
	uint window, cells, ld, rows; // ld: scores from head to head
	float scale;
} p;
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 v; };
const uint HELD = 16;                    // queries at a time
const uint PITCH = 5, PLANE = 64 * 5 + 2; // of parts, in quads: so that neither way of using them meets a bank twice
shared vec4 query[HELD * KD / 4];
shared vec4 parts[4 * PLANE];

vec4 four(uint64_t key, uint i) {
	if (KT == 0) {
		uvec2 w = Pairs(key + 2 * i).v;
		return vec4(widen(w.x & 0xffffu), widen(w.x >> 16), widen(w.y & 0xffffu), widen(w.y >> 16));
	}
	if (KT == 1)
		return Quads(key + 4 * i).v;
	return vec4(kvElement(KT, key, i), kvElement(KT, key, i + 1), kvElement(KT, key, i + 2), kvElement(KT, key, i + 3));
}

void main() {
	uint t = gl_LocalInvocationID.x, g = gl_WorkGroupID.y, r0 = gl_WorkGroupID.z * ROWS;
	uint pos = Words(p.where).v[0], rows = min(ROWS, p.rows - r0), n = pos + r0 + rows; // positions before the end of the last row
	uint least = p.window > 0 && pos + r0 + 1 > p.window ? pos + r0 + 1 - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, b = base + gl_WorkGroupID.x;
	if (64 * b >= n || 64 * b + 64 <= least)
		return;
	uint key = t >> 2, j = t & 3u, at = 64 * b + key;
	// A ring is whole blocks; where there is none cells is larger than any position.
	uint64_t row = p.k + (uint64_t(g) * p.cells + 64 * b % p.cells + key) * kvBytes(KT, KD);
	bool there = at >= least && at < n; // for some row
	vec4 w[8];
	for (uint i0 = 0; i0 < rows * GROUP; i0 += HELD) {
		barrier();
		for (uint i = t; i < HELD * KD / 4; i += 256) {
			uint q = i0 + i / (KD / 4), r = r0 + min(q / GROUP, rows - 1);
			query[i] = Quads(p.q + ((uint64_t(r) * p.heads + g * GROUP + q % GROUP) * KD + i % (KD / 4) * 4) * 4).v;
		}
		for (uint q0 = 0; q0 < HELD && i0 + q0 < rows * GROUP; q0 += 4) {
			barrier();
			if (there) {
				vec4 a0 = vec4(0), a1 = vec4(0), a2 = vec4(0), a3 = vec4(0);
				for (uint e = 0; e < KD; e += 128) {
					if (KD > 128 || i0 + q0 == 0) // else they are still there
						[[unroll]] for (uint k = 0; k < 8; k++)
							if (e + 16 * k < KD)
								w[k] = four(row, e + 16 * k + 4 * j);
					[[unroll]] for (uint k = 0; k < 8; k++) {
						if (e + 16 * k >= KD)
							continue;
						uint f = q0 * (KD / 4) + e / 4 + 4 * k + j;
						vec4 x0 = query[f], x1 = query[f + KD / 4], x2 = query[f + 2 * (KD / 4)], x3 = query[f + 3 * (KD / 4)];
						[[unroll]] for (uint c = 0; c < 4; c++) {
							a0[c] = ffma(w[k][c], x0[c], a0[c]);
							a1[c] = ffma(w[k][c], x1[c], a1[c]);
							a2[c] = ffma(w[k][c], x2[c], a2[c]);
							a3[c] = ffma(w[k][c], x3[c], a3[c]);
						}
					}
				}
				uint to = key * PITCH + j;
				parts[to] = a0;
				parts[PLANE + to] = a1;
				parts[2 * PLANE + to] = a2;
				parts[3 * PLANE + to] = a3;
			}
			barrier();
			uint q = i0 + q0 + j, r = r0 + q / GROUP, end = pos + r + 1;
			uint from = p.window > 0 && end > p.window ? end - p.window : 0;
			if (q < rows * GROUP && at >= from && at < end) {
				uint of = j * PLANE + key * PITCH;
				// Of sixteen sums first those eight apart, then four, two and one.
				vec4 s = (parts[of] + parts[of + 2]) + (parts[of + 1] + parts[of + 3]);
				float y = (s.x + s.z) + (s.y + s.w);
				Floats(p.scores + ((uint64_t(r) * p.heads + g * GROUP + q % GROUP) * p.ld + gl_WorkGroupID.x * 64 + key) * 4).v[0] = y * p.scale;
			}
		}
	}
}
