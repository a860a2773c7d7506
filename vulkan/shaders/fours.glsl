// Four elements of a row of F32, F16 or BF16, by TYPE.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 v; };

// raw is four elements as they lie there.
uvec4 raw(uint64_t row, uint i) {
	if (TYPE == 0)
		return floatBitsToUint(Quads(row + 4 * i).v);
	return uvec4(Pairs(row + 2 * i).v, 0, 0);
}

vec4 four(uvec4 w) {
	if (TYPE == 0)
		return uintBitsToFloat(w);
	uvec4 h = uvec4(w.x & 0xffffu, w.x >> 16, w.y & 0xffffu, w.y >> 16);
	if (TYPE == 1)
		return vec4(widen(h.x), widen(h.y), widen(h.z), widen(h.w));
	return uintBitsToFloat(h << 16);
}
