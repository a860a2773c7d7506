// The sum of squares of a run: eight lanes, each with every eighth element, one after the other from zero, then in pairs. Squares are
// made by all threads and wait in `squares`, which has room for SPAN of them, so that a lane has nothing to do but add.
#ifdef FP64
#define SUM double
SUM square(float v) { return double(v) * double(v); } // exact
SUM plus(SUM a, SUM b) { return a + b; }
#else
#define SUM vec2
// plus is a sum as an unevaluated pair: about 48 bits.
SUM plus(SUM a, SUM b) {
	float s = a.x + b.x, t = s - a.x, e = (a.x - (s - t)) + (b.x - t) + (a.y + b.y);
	float r = s + e;
	return vec2(r, e - (r - s));
}
SUM square(float v) {
	float q = v * v;
	return vec2(q, ffma(v, v, -q));
}
#endif
const uint LANE = SPAN / 8 + 2; // apart, so that lanes do not meet in a bank
shared SUM squares[8 * LANE];
shared SUM part[8];
shared float factor;

void putSquare(uint i, float v) { squares[(i & 7u) * LANE + (i >> 3)] = square(v); }

#define SOME(N) for (; i + N <= count; i += N) { \
	SUM v[N]; \
	[[unroll]] for (uint k = 0; k < N; k++) \
		v[k] = squares[at + i + k]; \
	[[unroll]] for (uint k = 0; k < N; k++) \
		s = plus(s, v[k]); \
}
// lane adds those of n squares that are lane l's to s.
void lane(uint l, uint n, inout SUM s) {
	uint count = n > l ? (n - l + 7) / 8 : 0, at = l * LANE, i = 0;
	SOME(32)
	SOME(8)
	SOME(1)
}

// setFactor makes factor 1/sqrt(sum/over + eps), by one thread.
void setFactor(float over, float eps) {
	SUM s = plus(plus(plus(part[0], part[4]), plus(part[2], part[6])), plus(plus(part[1], part[5]), plus(part[3], part[7])));
#ifdef FP64
	factor = rroot(s / double(over) + double(eps));
#else
	float m = div(s.x, over) + eps + div(s.y, over);
	factor = div(1, froot(m));
#endif
}
