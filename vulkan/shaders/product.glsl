// What the products of matrices share.
#include "job.glsl"
layout(push_constant) uniform Push {
	uint64_t table, q, d, s; // activations; q alone where they are float32
	uint64_t dst, jobs;
	uint in_, out_, stride; // elements of a row, rows of the matrix, bytes of one of its rows
	uint ld;                // elements from row to row of dst
	uint act;               // function of a fused pair
} p;
