// Words that begin at any even byte of a quad.
// mix chooses without a branch.
#define TWO(w, k, o) w[k] = mix(w[k], w[(k) + 2], ((o) & 8u) != 0);
#define ONE(w, k, o) w[k] = mix(w[k], w[(k) + 1], ((o) & 4u) != 0);
#define HALF(w, k, o) w[k] = mix(w[k], w[k] >> 16 | w[(k) + 1] << 16, ((o) & 2u) != 0);
#define X4(F, w, k, o) F(w, k, o) F(w, (k) + 1, o) F(w, (k) + 2, o) F(w, (k) + 3, o)
#define X8(F, w, k, o) X4(F, w, k, o) X4(F, w, (k) + 4, o)
#define X16(F, w, k, o) X8(F, w, k, o) X8(F, w, (k) + 8, o)
// SHIFT moves words so that the one with byte o of the first quad comes first; words up to the one numbered 4, 8 or 16 are wanted,
// HALVES by two bytes where o says so.
#define SHIFT4(w, o) X4(TWO, w, 0, o) TWO(w, 4, o) TWO(w, 5, o) X4(ONE, w, 0, o) ONE(w, 4, o)
#define SHIFT8(w, o) X8(TWO, w, 0, o) TWO(w, 8, o) TWO(w, 9, o) X8(ONE, w, 0, o) ONE(w, 8, o)
#define SHIFT16(w, o) X16(TWO, w, 0, o) TWO(w, 16, o) TWO(w, 17, o) X16(ONE, w, 0, o) ONE(w, 16, o)
