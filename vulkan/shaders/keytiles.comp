#version 450
// variants: base emu
#extension GL_GOOGLE_include_directive : require
// keys.comp for many rows: a block of 64 keys meets the query heads that share it, of ROWS rows, sixteen queries at a time. Keys are widened
// once where all of their elements are in sight.
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KT = 0;
layout(constant_id = 1) const uint KD = 128;
layout(constant_id = 2) const uint GROUP = 8; // query heads that share keys
layout(constant_id = 3) const uint SPAN = 128; // elements in sight
layout(push_constant) uniform Push {
	uint64_t q, k, scores, where; // where: the position of the first row
	uint heads;                   // of queries
	uint window, cells, ld, rows; // ld: scores from head to head
	float scale;
} p;
#include "kvfours.glsl"
const uint ROWS = 8, PITCH = SPAN / 4 + 1, HELD = 16; // HELD queries at a time
shared vec4 as_[64 * PITCH], bs[HELD * PITCH];
#include "dots.glsl"

void main() {
	uint t = gl_LocalInvocationID.x, g = gl_WorkGroupID.y, r0 = gl_WorkGroupID.z * ROWS;
	uint pos = Words(p.where).v[0], rows = min(ROWS, p.rows - r0), n = pos + r0 + rows; // positions before the end of the last row
	uint least = p.window > 0 && pos + r0 + 1 > p.window ? pos + r0 + 1 - p.window : 0;
	uint base = (p.window > 0 && pos + 1 > p.window ? pos + 1 - p.window : 0) / 64, b = base + gl_WorkGroupID.x;
	if (64 * b >= n || 64 * b + 64 <= least)
		return;
	// A ring is whole blocks; where there is none cells is larger than any position.
	uint64_t keys = p.k + (uint64_t(g) * p.cells + 64 * b % p.cells) * kvBytes(KT, KD);
	uint seen = min(64, n - 64 * b); // keys of the block that are there
	uint tile = t / 32, tr = tile % 4 * 16 + (t & 7u), tc = tile / 4 * 8 + (t >> 3 & 3u);
	uint ra = tr * PITCH, ca = tc * PITCH, count = rows * GROUP;
	DOTS_DECLARE
	for (uint i0 = 0; i0 < count; i0 += HELD) {
		DOTS_CLEAR
		for (uint e = 0; e < KD; e += SPAN) {
			uint quads = min(SPAN, KD - e) / 4;
			barrier(); // what was there has been used
			if (KD > SPAN || i0 == 0)
				for (uint i = t; i < 64 * quads; i += 256)
					as_[i / quads * PITCH + i % quads] = four(raw(keys + uint64_t(min(i / quads, seen - 1)) * kvBytes(KT, KD), e + i % quads * 4));
			for (uint i = t; i < HELD * quads; i += 256) {
				uint q = min(i0 + i / quads, count - 1);
				bs[i / quads * PITCH + i % quads] = Quads(p.q + ((uint64_t(r0 + q / GROUP) * p.heads + g * GROUP + q % GROUP) * KD + e + i % quads * 4) * 4).v;
			}
			barrier();
			DOTS(quads)
		}
#define STORE(p_, k, c) { \
	uint key = tr + (k), q = i0 + tc + (c), r = r0 + q / GROUP, end = pos + r + 1, at = 64 * b + key; \
	uint from = p.window > 0 && end > p.window ? end - p.window : 0; \
	if (q < count && at >= from && at < end) \
		Floats(p.scores + ((uint64_t(r) * p.heads + g * GROUP + q % GROUP) * p.ld + gl_WorkGroupID.x * 64 + key) * 4).v[0] = DOTS_RESULT(p_) * p.scale; \
}
		STORE(p0, 0, 0)
		STORE(p1, 0, 4)
		STORE(p2, 8, 0)
		STORE(p3, 8, 4)
	}
}
