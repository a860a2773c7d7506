// Elements of a KV cache, as kernels.EncodeKV makes them. Who includes this has value(i), element i of a head.
int kvCode(float v, float d, int lo, int hi) {
	if (d == 0 || nan(d))
		return 0;
	float x = div(v, d), t = trunc(x), a = abs(x - t);
	int i = abs(x) > 1000 ? (x > 0 ? 1000 : -1000) : int(t);
	if (a >= 0.5)
		i += x > 0 ? 1 : -1;
	return clamp(i, lo, hi);
}

// storeKV puts element e, or block e of 32, of a head into the cache, where the head begins at to.
void storeKV(uint type, uint64_t to, uint e) {
	if (type == 0) {
		Halves(to).v[e] = uint16_t(narrow(value(e)));
		return;
	}
	if (type == 1) {
		Words(to).v[e] = floatBitsToUint(value(e));
		return;
	}
	uint top = 0, from = 32 * e;
	float m = 0;
	for (uint k = 0; k < 32; k++) {
		float v = value(from + k);
		uint u = floatBitsToUint(v) & 0x7fffffffu;
		if (u > top) {
			top = u;
			m = v;
		}
	}
	if (top > 0x7f7fffffu)
		m = uintBitsToFloat(0x7fc00000u);
	to += e * (type == 2 ? 34 : 18);
	float d = type == 2 ? (nan(m) ? m : div(abs(m), 127)) : m * -0.125;
	uint s = nan(m) ? 0x7e00u : narrow(d);
	if ((s & 0x7fffu) >= 0x7c00u)
		s = 0x7e00u;
	Halves(to).v[0] = uint16_t(s);
	d = widen(s);
	if (type == 2) {
		for (uint k = 0; k < 32; k++)
			Bytes(to + 2).v[k] = uint8_t(kvCode(value(from + k), d, -127, 127) & 255);
		return;
	}
	for (uint k = 0; k < 16; k++)
		Bytes(to + 2).v[k] = uint8_t(kvCode(value(from + k), d, -8, 7) + 8 | kvCode(value(from + k + 16), d, -8, 7) + 8 << 4);
}
