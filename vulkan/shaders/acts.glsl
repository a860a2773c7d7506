// Activations that are quantised where they are made: n elements of a row lie in chunk, all threads of the workgroup (THREADS) come
// here. The layout is quantise.comp's: codes of all rows, then scales, then sums of 16, two to a word.
#include "int8.glsl"
shared uint actTop[64];
shared int actSum[128];

// acts quantises by blocks of B; row r of so many rows has of elements, of which these are the ones from first on.
void acts(uint64_t q, uint B, uint r, uint rows, uint of, uint first, uint n) {
	uint t = gl_LocalInvocationID.x;
	uint64_t d = q + uint64_t(rows) * of, s = d + uint64_t(rows) * (of / 32) * 4;
	barrier();
	if (t < 64)
		actTop[t] = 0;
	for (uint i = t; i < 128; i += THREADS)
		actSum[i] = 0;
	barrier();
	for (uint i = 4 * t; i < n; i += 4 * THREADS) {
		uint m = 0;
		[[unroll]] for (uint k = 0; k < 4; k++)
			m = max(m, floatBitsToUint(chunk[i + k]) & 0x7fffffffu);
		atomicMax(actTop[i / B], m);
	}
	barrier();
	for (uint i = 4 * t; i < n; i += 4 * THREADS) {
		float scale, inv;
		int8Scale(actTop[i / B], scale, inv);
		uint w = 0;
		int sum = 0;
		if (inv != 0) {
			[[unroll]] for (uint k = 0; k < 4; k++) {
				uint c = int8Code(chunk[i + k], inv);
				w |= c << 8 * k;
				sum += int(c << 24) >> 24;
			}
		}
		atomicAdd(actSum[i / 16], sum);
		Words(q + uint64_t(r) * of + first + i).v[0] = w;
		if (i % B == 0)
			Floats(d).v[uint(uint64_t(r) * (of / B) + (first + i) / B)] = scale;
	}
	barrier();
	for (uint u = t; u < n / 32; u += THREADS)
		Words(s).v[uint(uint64_t(r) * (of / 32) + first / 32 + u)] = uint(actSum[2 * u]) & 0xffffu | uint(actSum[2 * u + 1]) << 16;
}
