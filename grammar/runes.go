package grammar

import (
	"slices"
	"unicode/utf8"
)

// runeRange is the characters from lo to hi.
type runeRange struct{ lo, hi rune }

// runeSet is a set of characters: sorted ranges that do not touch, without surrogates.
type runeSet []runeRange

var allRunes = runeSet{{0, 0xd7ff}, {0xe000, utf8.MaxRune}}

// newSet makes a set of ranges in any order.
func newSet(ranges ...runeRange) runeSet {
	slices.SortFunc(ranges, func(a, b runeRange) int { return int(a.lo) - int(b.lo) })
	var out runeSet
	add := func(r runeRange) {
		if r.lo > r.hi {
			return
		}
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
			return
		}
		out = append(out, r)
	}
	for _, r := range ranges {
		r.lo, r.hi = max(r.lo, 0), min(r.hi, utf8.MaxRune)
		if r.lo <= 0xdfff && r.hi >= 0xd800 { // without surrogates
			add(runeRange{r.lo, 0xd7ff})
			r.lo = 0xe000
		}
		add(r)
	}
	return out
}

func oneRune(r rune) runeSet { return newSet(runeRange{r, r}) }

func setOf(s string) runeSet {
	var rs []runeRange
	for _, r := range s {
		rs = append(rs, runeRange{r, r})
	}
	return newSet(rs...)
}

func (s runeSet) not() runeSet {
	var out []runeRange
	next := rune(0)
	for _, r := range s {
		out = append(out, runeRange{next, r.lo - 1})
		next = r.hi + 1
	}
	return newSet(append(out, runeRange{next, utf8.MaxRune})...)
}

func (s runeSet) or(o runeSet) runeSet { return newSet(append(slices.Clone(s), o...)...) }

func (s runeSet) and(o runeSet) runeSet {
	var out []runeRange
	for i, j := 0, 0; i < len(s) && j < len(o); {
		out = append(out, runeRange{max(s[i].lo, o[j].lo), min(s[i].hi, o[j].hi)})
		if s[i].hi < o[j].hi {
			i++
		} else {
			j++
		}
	}
	return newSet(out...)
}

func (s runeSet) minus(o runeSet) runeSet { return s.and(o.not()) }

func (s runeSet) has(r rune) bool {
	return slices.ContainsFunc(s, func(x runeRange) bool { return x.lo <= r && r <= x.hi })
}

// byteRange is the bytes from lo to hi.
type byteRange struct{ lo, hi byte }

// encodings gives the UTF-8 encodings of the set's characters as sequences of byte ranges, in order and without overlap.
func (s runeSet) encodings() [][]byteRange {
	var out [][]byteRange
	for _, r := range s {
		for _, limit := range []rune{0x7f, 0x7ff, 0xffff, utf8.MaxRune} {
			if r.lo > limit || r.lo > r.hi {
				continue
			}
			out = splitRange(out, r.lo, min(r.hi, limit))
			r.lo = limit + 1
		}
	}
	return out
}

// splitRange adds the encodings of lo to hi, which have one length.
func splitRange(out [][]byteRange, lo, hi rune) [][]byteRange {
	if lo > hi {
		return out
	}
	for shift := 6; shift <= 18 && hi >= 0x80; shift += 6 {
		m := rune(1)<<shift - 1
		if lo&^m == hi&^m {
			break // they differ in the last bytes only
		}
		if lo&m != 0 {
			out = splitRange(out, lo, lo|m)
			return splitRange(out, (lo|m)+1, hi)
		}
		if hi&m != m {
			out = splitRange(out, lo, hi&^m-1)
			return splitRange(out, hi&^m, hi)
		}
	}
	var a, b [utf8.UTFMax]byte
	n := utf8.EncodeRune(a[:], lo)
	utf8.EncodeRune(b[:], hi)
	enc := make([]byteRange, n)
	for i := range enc {
		enc[i] = byteRange{a[i], b[i]}
	}
	return append(out, enc)
}
