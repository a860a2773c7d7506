// int8Scale is how a block of activations becomes int8: top is the bits of its largest magnitude; codes are value times inv rounded
// to even, and stand for code times d.
void int8Scale(uint top, out float d, out float inv) {
	d = 0;
	inv = 0;
	if (top >= 0x7f800000u) {
		d = uintBitsToFloat(0x7fc00000u);
	} else if (top >= (127u - 100u) << 23) {
		float f = frecip(uintBitsToFloat(top & 0x7fffffu | 0x3f800000u)) * 127;
		inv = uintBitsToFloat(floatBitsToUint(f) + 0x3f800000u - (top & 0x7f800000u));
		d = uintBitsToFloat(top) * uintBitsToFloat(0x3c010204u); // 1/127
	}
}
uint int8Code(float v, float inv) { return floatBitsToUint(v * inv + 12582912.0) & 255u; }
