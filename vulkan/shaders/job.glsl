// A job is a matrix and the rows of activations it meets; a dense product is one job, the experts of a layer are as many.
struct Job {
	uint64_t w, w2;       // rows of weights; w2: of the second matrix, up
	uint64_t bias, bias2; // 0: none
	uint64_t rows;        // numbers of rows of activations, 0: those from act on
	uint first, n;        // rows of results, and how many
	uint act, off;        // first row of activations; element where results begin
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Jobs { Job v[]; };
