// Products of float32 rows in tiles, in the contract's order: element i goes to sum i%16, and the sums join eight, four, two and one
// apart. as_ has rows of one side and bs of the other, PITCH quads each, an odd number so that rows begin in different banks. A block of
// 32 threads has 16 rows by 8 columns, each thread two rows, eight apart, and two columns, four apart: four products.
#define FMA4(to, l, r) to.x = ffma(l.x, r.x, to.x); to.y = ffma(l.y, r.y, to.y); to.z = ffma(l.z, r.z, to.z); to.w = ffma(l.w, r.w, to.w);
#define DOTS_DECLARE vec4 p00, p01, p02, p03, p10, p11, p12, p13, p20, p21, p22, p23, p30, p31, p32, p33;
#define DOTS_CLEAR p00 = p01 = p02 = p03 = p10 = p11 = p12 = p13 = p20 = p21 = p22 = p23 = p30 = p31 = p32 = p33 = vec4(0);
#define DOTS_QUAD(k, q) { \
	vec4 r0 = as_[ra + (q)], r1 = as_[ra + 8 * PITCH + (q)], c0 = bs[ca + (q)], c1 = bs[ca + 4 * PITCH + (q)]; \
	FMA4(p0##k, r0, c0) \
	FMA4(p1##k, r0, c1) \
	FMA4(p2##k, r1, c0) \
	FMA4(p3##k, r1, c1) \
}
// DOTS adds the products of n quads that lie there.
#define DOTS(n) { \
	uint q = 0; \
	for (; q + 4 <= (n); q += 4) { \
		DOTS_QUAD(0, q) \
		DOTS_QUAD(1, q + 1) \
		DOTS_QUAD(2, q + 2) \
		DOTS_QUAD(3, q + 3) \
	} \
	if (q < (n)) \
		DOTS_QUAD(0, q) \
	if (q + 1 < (n)) \
		DOTS_QUAD(1, q + 1) \
	if (q + 2 < (n)) \
		DOTS_QUAD(2, q + 2) \
}
float joined(vec4 a, vec4 b, vec4 c, vec4 d) {
	vec4 s = (a + c) + (b + d);
	return (s.x + s.z) + (s.y + s.w);
}
#define DOTS_RESULT(p) joined(p##0, p##1, p##2, p##3)
