// Four elements of a row of keys, by KT.
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 v; };

// raw is four elements as they lie there, where they do so as floats or halves.
uvec4 raw(uint64_t key, uint i) {
	if (KT == 0)
		return uvec4(Pairs(key + 2 * i).v, 0, 0);
	if (KT == 1)
		return floatBitsToUint(Quads(key + 4 * i).v);
	return floatBitsToUint(vec4(kvElement(KT, key, i), kvElement(KT, key, i + 1), kvElement(KT, key, i + 2), kvElement(KT, key, i + 3)));
}
vec4 four(uvec4 w) { return KT == 0 ? vec4(widen(w.x & 0xffffu), widen(w.x >> 16), widen(w.y & 0xffffu), widen(w.y >> 16)) : uintBitsToFloat(w); }
