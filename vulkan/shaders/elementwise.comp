#version 450
// variants: base
#extension GL_GOOGLE_include_directive : require
// Operations whose every result is one thread's. Which of the fields count depends on OP.
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint OP = 0;
layout(push_constant) uniform Push {
	uint64_t dst, x, y;
	uint n;          // results
	uint cols;       // of a row of results
	uint a, b, c, d; // sizes
	float f, g;
} p;

void main() {
	uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 256 + gl_LocalInvocationID.x;
	if (i >= p.n)
		return;
	Floats dst = Floats(p.dst), x = Floats(p.x), y = Floats(p.y);
	uint r = i / p.cols, j = i % p.cols;
	switch (OP) {
	case 0: // Add
		dst.v[i] = dst.v[i] + x.v[i];
		break;
	case 1: // Mul
		dst.v[i] = dst.v[i] * x.v[i];
		break;
	case 2: // Scale
		dst.v[i] = dst.v[i] * p.f;
		break;
	case 3: // AddBias
		dst.v[i] = dst.v[i] + x.v[j];
		break;
	case 4: // Activate
		dst.v[i] = activate(p.a, x.v[i], p.a == 3 ? 0 : y.v[i]);
		break;
	case 5: // GateRows
		dst.v[i] = dst.v[i] * fsigmoid(x.v[r]);
		break;
	case 6: // Softcap
		dst.v[i] = p.f * ftanh(dst.v[i] * p.g);
		break;
	case 7: { // SplitHeads: the heads of a queries and of a gates apart
		uint at = r * 2 * p.cols + j / p.a * 2 * p.a + j % p.a;
		dst.v[i] = x.v[at];
		y.v[i] = x.v[at + p.a];
		break;
	}
	case 8: { // CopyPart: a elements from b of heads of c to d of heads of as many as cols says; dst and x begin at the parts
		uint heads = p.b, h = j / p.a, e = j % p.a;
		dst.v[r * heads * p.c + h * p.c + e] = x.v[r * heads * p.d + h * p.d + e];
		break;
	}
	case 9: // Spread: rows of a
		dst.v[i] = x.v[r * p.a + j % p.a];
		break;
	case 10: { // Inject: rows of a, streams b
		uint c = j / p.a;
		float f = 2 * fsigmoid(y.v[r * p.b + c] * p.f);
		dst.v[i] = dst.v[i] + f * x.v[r * p.a + j % p.a];
		break;
	}
	case 11: { // SplitGroups: groups a, keys b, values c; a row of results is queries, keys, values and gates
		uint keys = p.a * p.b, vals = p.a * p.c, from = r * 2 * (keys + vals), w = 2 * (p.b + p.c);
		if (j < 2 * keys)
			dst.v[r * (2 * keys + vals) + j] = x.v[from + j % keys / p.b * w + j / keys * p.b + j % p.b];
		else if (j < 2 * keys + vals)
			dst.v[r * (2 * keys + vals) + j] = x.v[from + (j - 2 * keys) / p.c * w + 2 * p.b + (j - 2 * keys) % p.c];
		else
			y.v[r * vals + j - 2 * keys - vals] = x.v[from + (j - 2 * keys - vals) / p.c * w + 2 * p.b + p.c + (j - 2 * keys - vals) % p.c];
		break;
	}
	case 12: { // MixSilu
		float v = dst.v[i] * p.f;
		dst.v[i] = fsilu(v);
		break;
	}
	case 13: { // MixStreams: streams a
		float sum = 0;
		for (uint c = 0; c < p.a; c++) {
			uint at = (r * p.a + c) * p.cols + j;
			sum = sum + p.f * (fsigmoid(y.v[at]) * x.v[at]);
		}
		dst.v[i] = sum;
		break;
	}
	}
}
