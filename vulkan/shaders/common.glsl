// What all shaders share. Memory is met by address: no descriptors, so no storage range is a limit. Sums and products are
// decorated by the builder (_gen) so that no driver may fuse them: a fused multiply-add stands in ffma alone.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, std430, buffer_reference_align = 1) buffer Bytes { uint8_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Halves { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Longs { uint64_t v[]; };

uint u8(uint64_t a, uint i) { return uint(Bytes(a + i).v[0]); }
uint u16(uint64_t a, uint i) { return uint(Halves(a + i).v[0]); }
// u32 reads a number that lies at an even address.
uint u32(uint64_t a, uint i) { return uint(Halves(a + i).v[0]) | uint(Halves(a + i + 2).v[0]) << 16; }
uint word(uint64_t a, uint i) { return Words(a + i).v[0]; }
// odd reads a number that lies anywhere.
uint bytes4(uint64_t a, uint i) { return u8(a, i) | u8(a, i + 1) << 8 | u8(a, i + 2) << 16 | u8(a, i + 3) << 24; }

// widen is binary16 to float32, exactly; subnormals are normal there. It has no branches, so that loads before it go on together.
float widen(uint h) {
	uint x = (h & 0x7fffu) << 13;
	float small = uintBitsToFloat(x + (113u << 23)) - uintBitsToFloat(113u << 23);
	uint b = mix(x + (112u << 23), x + (224u << 23), x >= 31u << 23);
	return uintBitsToFloat((h & 0x8000u) << 16 | mix(b, floatBitsToUint(small), x < 1u << 23));
}

// narrow is float32 to binary16, ties to even, by integers alone.
uint narrow(float f) {
	uint b = floatBitsToUint(f), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
	if (a > 0x7f800000u)
		return sign | 0x7e00u | a >> 13 & 0x3ffu;
	if (a >= 0x477ff000u)
		return sign | 0x7c00u;
	if (a < 0x38800000u) {
		uint exp = a >> 23;
		if (exp < 102) // below half of the smallest
			return sign;
		uint man = a & 0x7fffffu | 0x800000u, shift = 126 - exp; // in units of 2^-24
		uint q = man >> shift, rest = man & (1u << shift) - 1, half_ = 1u << shift - 1;
		if (rest > half_ || rest == half_ && (q & 1) != 0)
			q++;
		return sign | q;
	}
	a += 0xfffu + (a >> 13 & 1);
	return sign | (a - (112u << 23)) >> 13;
}

bool nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// ffma is a*b+c rounded once. EMU is for devices whose fma is not fused, by the way of internal/fmath.
float ffma(float a, float b, float c) {
#ifdef EMU
	double p = double(a) * double(b), z = double(c), s = p + z;
	uvec2 u = unpackDouble2x32(s);
	uint exp = u.y >> 20 & 0x7ffu;
	if ((u.x & 0x1fffffffu) != 0x10000000u && exp > 1023 - 127 || exp == 0x7ffu)
		return float(s);
	double t = s - p, e = (p - (s - t)) + (z - t);
	if (e != 0 && (u.x & 1) == 0) {
		// To the odd neighbour on e's side: the last bit is clear, so up is one more and down one less with a borrow.
		if ((e > 0) == (s > 0)) {
			u.x++;
		} else {
			if (u.x == 0)
				u.y--;
			u.x--;
		}
		s = packDouble2x32(u);
	}
	return float(s);
#else
	return fma(a, b, c);
#endif
}

// The functions of internal/fmath, step by step.
float fexp(float x) {
	if (nan(x))
		return x;
	if (x < -87.33654)
		return 0;
	if (x > 88.37626)
		x = 88.37626;
	float n = (x * 1.44269504 + 12582912.0) - 12582912.0;
	float r = x - n * 0.693359375;
	r = r - n * -2.12194440e-4;
	float p = 1.9875691500e-4;
	p = p * r + 1.3981999507e-3;
	p = p * r + 8.3334519073e-3;
	p = p * r + 4.1665795894e-2;
	p = p * r + 1.6666665459e-1;
	p = p * r + 5.0000001201e-1;
	float y = p * (r * r) + r;
	y = y + 1;
	return uintBitsToFloat(floatBitsToUint(y) + uint(int(n) << 23));
}

float frecip(float y) {
	float r = uintBitsToFloat(0x7EF311C3u - floatBitsToUint(y));
	r = r * (2 - y * r);
	r = r * (2 - y * r);
	r = r * (2 - y * r);
	return r + r * (1 - y * r);
}

float fsigmoid(float x) {
	if (nan(x))
		return x;
	if (x < -87)
		x = -87;
	return frecip(1 + fexp(-x));
}

float fsilu(float x) { return x * fsigmoid(x); }

float ftanh(float x) {
	float a = x < 0 ? -x : x;
	if (a < 0.625) {
		float z = x * x;
		float p = -5.70498872745e-3;
		p = p * z + 2.06390887954e-2;
		p = p * z - 5.37397155531e-2;
		p = p * z + 1.33314422036e-1;
		p = p * z - 3.33332819422e-1;
		return x + (p * z) * x;
	}
	if (nan(x))
		return x;
	if (a > 9.1)
		a = 9.1;
	float t = 1 - 2 * frecip(fexp(2 * a) + 1);
	return x < 0 ? -t : t;
}

// fmaxf and fminf are Go's max and min but for the sign of zero.
float gomax(float a, float b) { return nan(a) || nan(b) ? uintBitsToFloat(0x7fc00000u) : (a > b ? a : b); }
float gomin(float a, float b) { return nan(a) || nan(b) ? uintBitsToFloat(0x7fc00000u) : (a < b ? a : b); }

// activate is compute.Act.
float activate(uint act, float a, float b) {
	switch (act) {
	case 0:
		return fsilu(a) * b;
	case 1: {
		float cube = a * a * a;
		float t = 1.5957691216057308 * (a + 0.044715 * cube);
		return fsigmoid(t) * a * b;
	}
	case 2: {
		float x = gomin(a, 7);
		return fsigmoid(1.702 * x) * x * (gomax(-7, gomin(b, 7)) + 1);
	}
	case 3: {
		float x = gomax(a, 0);
		return x * x;
	}
	}
	return fsigmoid(a) * b;
}

#ifdef FP64
// root is the square root, correct to a few units of float64 whatever the device's own is.
double root64(double x) {
	if (!(x > 0))
		return x;
	double y = double(inversesqrt(float(x))); // 1/sqrt
	if (isinf(float(y)) || y == 0)
		return sqrt(x);
	[[unroll]] for (int i = 0; i < 4; i++)
		y = y * (1.5 - 0.5 * x * y * y);
	return x * y;
}
// rroot is 1/sqrt(x) rounded to float32.
float rroot(double x) {
	float f = float(x);
	double y = double(inversesqrt(f));
	if (!(x > 0) || isinf(f) || y == 0 || isinf(float(y)))
		return float(1.0LF / sqrt(x));
	[[unroll]] for (int i = 0; i < 4; i++)
		y = y * (1.5 - 0.5 * x * y * y);
	return float(y);
}
float div(float a, float b) { return float(double(a) / double(b)); }
float froot(float x) { return float(root64(double(x))); }
#else
float div(float a, float b) {
	float r = 1 / b;
	r = ffma(ffma(-b, r, 1), r, r);
	float q = a * r;
	return ffma(ffma(-q, b, a), r, q);
}
float froot(float x) {
	if (!(x > 0))
		return x;
	float y = inversesqrt(x), s = x * y;
	return ffma(ffma(-s, s, x), 0.5 * y, s);
}
#endif
