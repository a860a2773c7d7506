// Elements of a KV cache by type: 0 float16, 1 float32, 2 Q8_0, 3 Q4_0.
uint kvBytes(uint t, uint n) { return t == 1 ? 4 * n : t == 2 ? n / 32 * 34 : t == 3 ? n / 32 * 18 : 2 * n; }

float kvElement(uint t, uint64_t row, uint i) {
	if (t == 0)
		return widen(uint(Halves(row).v[i]));
	if (t == 1)
		return Floats(row).v[i];
	uint k = i & 31u;
	if (t == 2) {
		uint64_t b = row + 34 * (i >> 5);
		return float(int(u8(b, 2 + k) << 24) >> 24) * widen(u16(b, 0));
	}
	uint64_t b = row + 18 * (i >> 5);
	return float(int(u8(b, 2 + (k & 15u)) >> 4 * (k >> 4) & 15u) - 8) * widen(u16(b, 0));
}
