package quant

import "sync"

// The values that the codes of a grid stand for. Those of IQ2 are eighths of a weight, those of IQ3_XXS quarters, in
// units of the sub-block's scale.
var (
	levels2   = [4]uint8{8, 25, 43}
	levels1   = [4]int8{-1, 0, 1}
	levels3   = [8]uint8{4, 12, 20, 28, 36, 44, 52, 62}
	levels3S  = [8]uint8{1, 3, 5, 7, 9, 11, 13, 15}
	grid256   = sync.OnceValue(func() *[256][8]uint8 { g := new([256][8]uint8); expand8(g[:], codes256[:], &levels2); return g })
	grid512   = sync.OnceValue(func() *[512][8]uint8 { g := new([512][8]uint8); expand8(g[:], codes512[:], &levels2); return g })
	grid1024  = sync.OnceValue(func() *[1024][8]uint8 { g := new([1024][8]uint8); expand8(g[:], codes1024[:], &levels2); return g })
	grid1     = sync.OnceValue(func() *[2048][8]int8 { g := new([2048][8]int8); expand8(g[:], codes1x2048[:], &levels1); return g })
	grid3x256 = sync.OnceValue(func() *[256][4]uint8 { g := new([256][4]uint8); expand4(g[:], codes3x256[:], &levels3); return g })
	grid3x512 = sync.OnceValue(func() *[512][4]uint8 { g := new([512][4]uint8); expand4(g[:], codes3x512[:], &levels3S); return g })
)

// Grid256 is the grid of IQ2_XXS, one octet a row. Like all grids it is made once; callers must not write to it.
func Grid256() *[256][8]uint8 { return grid256() }

// Grid512 is the grid of IQ2_XS, one octet a row.
func Grid512() *[512][8]uint8 { return grid512() }

// Grid1024 is the grid of IQ2_S, one octet a row.
func Grid1024() *[1024][8]uint8 { return grid1024() }

// Grid1x2048 is the grid of IQ1_S and IQ1_M, one octet of -1, 0 and 1 a row.
func Grid1x2048() *[2048][8]int8 { return grid1() }

// Grid3x256 is the grid of IQ3_XXS, one quartet a row.
func Grid3x256() *[256][4]uint8 { return grid3x256() }

// Grid3x512 is the grid of IQ3_S, one quartet a row.
func Grid3x512() *[512][4]uint8 { return grid3x512() }

// expand8 unpacks rows of eight two-bit codes.
func expand8[T int8 | uint8](dst [][8]T, codes []uint16, level *[4]T) {
	for k, c := range codes {
		for j := range 8 {
			dst[k][j] = level[c>>(2*j)&3]
		}
	}
}

// expand4 unpacks rows of four three-bit codes.
func expand4(dst [][4]uint8, codes []uint16, level *[8]uint8) {
	for k, c := range codes {
		for j := range 4 {
			dst[k][j] = level[c>>(3*j)&7]
		}
	}
}
