package tokenizer

import (
	"sync"
	"unicode"
)

// The properties of a code point that pre-tokenizer patterns ask for.
const (
	letter  uint8 = 1 << iota // \p{L}
	number                    // \p{N}
	mark                      // \p{M}
	space                     // \s: the Unicode property White_Space
	newline                   // \r or \n
	punct                     // \p{P}
)

// classTable answers the properties of any code point: blocks of 256, equal blocks stored once.
type classTable struct {
	ascii  [256]uint8 // the first block again, for a lookup without bounds checks
	index  [0x1100]uint16
	blocks [][256]uint8
}

func (t *classTable) of(r rune) uint8 { return t.blocks[t.index[r>>8]][r&0xff] }

// at returns the properties and the length in bytes of the code point at s[i].
func (t *classTable) at(s string, i int) (uint8, int) {
	if b := s[i]; b < 0x80 {
		return t.ascii[b], 1
	}
	return t.wide(s, i)
}

func (t *classTable) wide(s string, i int) (uint8, int) {
	r, n := decode(s, i)
	return t.of(r), n
}

// classes is built once a process, from the Unicode tables of the Go library.
var classes = sync.OnceValue(func() *classTable {
	flat := make([]uint8, unicode.MaxRune+1)
	set := func(tab *unicode.RangeTable, bit uint8) {
		for _, r := range tab.R16 {
			for c := int(r.Lo); c <= int(r.Hi); c += int(r.Stride) {
				flat[c] |= bit
			}
		}
		for _, r := range tab.R32 {
			for c := int(r.Lo); c <= int(r.Hi); c += int(r.Stride) {
				flat[c] |= bit
			}
		}
	}
	set(unicode.L, letter)
	set(unicode.N, number)
	set(unicode.M, mark)
	set(unicode.White_Space, space)
	set(unicode.P, punct)
	flat['\n'] |= newline
	flat['\r'] |= newline

	t := new(classTable)
	seen := map[[256]uint8]uint16{}
	for i := range t.index {
		block := [256]uint8(flat[i<<8:])
		k, ok := seen[block]
		if !ok {
			k = uint16(len(t.blocks))
			seen[block] = k
			t.blocks = append(t.blocks, block)
		}
		t.index[i] = k
	}
	t.ascii = t.blocks[t.index[0]]
	return t
})
