package tokenizer

import (
	"sync"
	"unicode"
)

// class is a set of properties that pre-tokenizer patterns ask a code point for.
type class uint16

const (
	letter   class = 1 << iota // \p{L}
	number                     // \p{N}
	mark                       // \p{M}
	space                      // \s: the Unicode property White_Space
	newline                    // \r or \n
	punct                      // \p{P}
	symbol                     // \p{S}
	upper                      // \p{Lu} or \p{Lt}
	lower                      // \p{Ll}
	caseless                   // \p{Lm} or \p{Lo}
	han                        // \p{Han}
	cjk                        // U+4E00 to U+9FA5 and the kana blocks U+3040 to U+30FF
)

// classTable answers the properties of any code point: blocks of 256, equal blocks stored once.
type classTable struct {
	ascii  [256]class // the first block again, for a lookup without bounds checks
	index  [0x1100]uint16
	blocks [][256]class
}

func (t *classTable) of(r rune) class { return t.blocks[t.index[r>>8]][r&0xff] }

// at returns the properties and the length in bytes of the code point at s[i].
func (t *classTable) at(s string, i int) (class, int) {
	if b := s[i]; b < 0x80 {
		return t.ascii[b], 1
	}
	return t.wide(s, i)
}

func (t *classTable) wide(s string, i int) (class, int) {
	r, n := decode(s, i)
	return t.of(r), n
}

// classes is built once a process, from the Unicode tables of the Go library.
var classes = sync.OnceValue(func() *classTable {
	flat := make([]class, unicode.MaxRune+1)
	set := func(tab *unicode.RangeTable, bit class) {
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
	set(unicode.S, symbol)
	set(unicode.Lu, upper)
	set(unicode.Lt, upper)
	set(unicode.Ll, lower)
	set(unicode.Lm, caseless)
	set(unicode.Lo, caseless)
	set(unicode.Han, han)
	for _, r := range [][2]rune{{0x3040, 0x30ff}, {0x4e00, 0x9fa5}} {
		for c := r[0]; c <= r[1]; c++ {
			flat[c] |= cjk
		}
	}
	flat['\n'] |= newline
	flat['\r'] |= newline

	t := new(classTable)
	seen := map[[256]class]uint16{}
	for i := range t.index {
		block := [256]class(flat[i<<8:])
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
