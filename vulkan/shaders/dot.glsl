// Products of four bytes, summed. DOT is for devices with integer dot products; Debian 12's compiler knows them by number only.
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int OpSDot(uint a, uint b, spirv_literal int packed);
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4452)
int OpSUDot(uint a, uint b, spirv_literal int packed);

int dot4(uint a, uint b) { return OpSDot(a, b, 0); }
// dotu takes b's bytes as unsigned.
int dotu(uint a, uint b) { return OpSUDot(a, b, 0); }
#else
int dot4(uint a, uint b) {
	int x = int(a), y = int(b);
	return (x << 24 >> 24) * (y << 24 >> 24) + (x << 16 >> 24) * (y << 16 >> 24) + (x << 8 >> 24) * (y << 8 >> 24) + (x >> 24) * (y >> 24);
}
int dotu(uint a, uint b) {
	int x = int(a);
	return (x << 24 >> 24) * int(b & 255u) + (x << 16 >> 24) * int(b >> 8 & 255u) + (x << 8 >> 24) * int(b >> 16 & 255u) + (x >> 24) * int(b >> 24);
}
#endif
