#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Which rows each expert has to do with, of the choices of many rows, and the jobs of the products that follow: an expert's rows lie
// together, C of them a job at most. One workgroup. In which order an expert has its rows is left to chance: no sum knows of it.
#include "common.glsl"
#include "job.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint N = 128; // experts
layout(constant_id = 1) const uint K = 8;   // chosen a row
layout(constant_id = 2) const uint C = 32;
layout(push_constant) uniform Push {
	uint64_t ids, land;      // choices; where the host finds them
	uint64_t list, index;    // rows by expert; of each choice: where its row lies there
	uint64_t jobs, table;    // three lists of jobs; for each expert where gate, up and down lie
	uint64_t gate, up, down; // biases of all experts, 0: none
	uint ff, out_;           // elements of the biases of gate and up, and of down
	uint n, room;            // choices; jobs of a list
} p;
layout(buffer_reference, std430, buffer_reference_align = 8) writeonly buffer NewJobs { Job v[]; };

// So many choices are loaded before any is used.
const uint AHEAD = 8;
#define TAKE(base) \
	[[unroll]] for (uint k = 0; k < AHEAD; k++) \
		v[k] = Words(p.ids).v[min(base + 256 * k, p.n - 1)];

shared uint count[N], first[N];
shared uvec2 sums[256]; // rows and jobs

void main() {
	uint t = gl_LocalInvocationID.x;
	const uint each_ = (N + 255) / 256;
	for (uint e = t; e < N; e += 256)
		count[e] = 0;
	barrier();
	for (uint base = t; base < p.n; base += 256 * AHEAD) {
		uint v[AHEAD];
		TAKE(base)
		[[unroll]] for (uint k = 0; k < AHEAD; k++) {
			uint i = base + 256 * k;
			if (i >= p.n)
				continue;
			Words(p.land).v[i] = v[k];
			if (v[k] < N) // a row that cannot be compared has none
				atomicAdd(count[v[k]], 1);
		}
	}
	barrier();
	uvec2 mine = uvec2(0);
	for (uint e = t * each_; e < min(N, (t + 1) * each_); e++)
		mine += uvec2(count[e], (count[e] + C - 1) / C);
	sums[t] = mine;
	for (uint h = 1; h < 256; h *= 2) {
		barrier();
		uvec2 s = t >= h ? sums[t - h] : uvec2(0);
		barrier();
		sums[t] += s;
	}
	barrier();
	uvec2 at = sums[t] - mine;
	Job j;
	j.off = 0;
	for (uint e = t * each_; e < min(N, (t + 1) * each_); e++) {
		uint left = count[e];
		first[e] = at.x;
		count[e] = 0;
		for (; left > 0; at.y++) {
			j.n = min(left, C);
			j.first = at.x;
			j.rows = p.list + at.x * 4;
			j.act = 0;
			j.w = Longs(p.table).v[3 * e];
			j.w2 = Longs(p.table).v[3 * e + 1];
			j.bias = p.gate != 0 ? p.gate + uint64_t(e) * p.ff * 4 : 0;
			j.bias2 = p.up != 0 ? p.up + uint64_t(e) * p.ff * 4 : 0;
			NewJobs(p.jobs).v[at.y] = j;
			j.w = j.w2;
			j.bias = j.bias2;
			NewJobs(p.jobs).v[p.room + at.y] = j;
			j.rows = 0;
			j.act = at.x;
			j.w = Longs(p.table).v[3 * e + 2];
			j.bias = p.down != 0 ? p.down + uint64_t(e) * p.out_ * 4 : 0;
			NewJobs(p.jobs).v[2 * p.room + at.y] = j;
			left -= j.n;
			at.x += j.n;
		}
	}
	j.n = 0;
	for (uint i = sums[255].y + t; i < p.room; i += 256) {
		NewJobs(p.jobs).v[i] = j;
		NewJobs(p.jobs).v[p.room + i] = j;
		NewJobs(p.jobs).v[2 * p.room + i] = j;
	}
	barrier();
	for (uint base = t; base < p.n; base += 256 * AHEAD) {
		uint v[AHEAD];
		TAKE(base)
		[[unroll]] for (uint k = 0; k < AHEAD; k++) {
			uint i = base + 256 * k, to = 0;
			if (i >= p.n)
				continue;
			if (v[k] < N) {
				to = first[v[k]] + atomicAdd(count[v[k]], 1);
				Words(p.list).v[to] = i / K;
			}
			Words(p.index).v[i] = to;
		}
	}
}
