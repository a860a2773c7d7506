package tokenizer

import (
	"bytes"
	"strings"
)

// Vocabularies of plain UTF-8 spell a space as U+2581, and have tokens <0x00> to <0xFF> for the bytes of characters they
// lack.
const spaceMark = "\u2581"

// appendSpaced appends s with U+2581 for each space.
func appendSpaced(dst []byte, s string) []byte {
	for {
		k := strings.IndexByte(s, ' ')
		if k < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:k]...), spaceMark...)
		s = s[k+1:]
	}
}

// appendUnspaced appends s with a space for each U+2581.
func appendUnspaced(dst, s []byte) []byte {
	for {
		k := bytes.Index(s, []byte(spaceMark))
		if k < 0 {
			return append(dst, s...)
		}
		dst = append(append(dst, s[:k]...), ' ')
		s = s[k+len(spaceMark):]
	}
}

// parseByte reads the text of a byte token.
func parseByte(text []byte) (byte, bool) {
	if len(text) != 6 || string(text[:3]) != "<0x" || text[5] != '>' {
		return 0, false
	}
	v := byte(0)
	for _, c := range text[3:5] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return 0, false
		}
		v = v<<4 | c
	}
	return v, true
}

// byteText is the text of the token for byte b.
func byteText(b byte) []byte {
	const hex = "0123456789ABCDEF"
	return []byte{'<', '0', 'x', hex[b>>4], hex[b&15], '>'}
}

// symbolLen is the length of the symbol that begins with b, going by b alone: what follows need not be UTF-8.
func symbolLen(b byte) int {
	switch {
	case b < 0xc0:
		return 1
	case b < 0xe0:
		return 2
	case b < 0xf0:
		return 3
	}
	return 4
}

// spacedSplitter cuts text in which U+2581 stands for spaces: with lines, [^\n]+|[\n]+; with words, before each run of
// U+2581 as well, which changes nothing where no token has one behind anything else (see joinsWords).
type spacedSplitter struct {
	lines, words bool
}

func (p spacedSplitter) ends(dst []int, s string) []int {
	if !p.lines && !p.words {
		if s != "" {
			dst = append(dst, len(s))
		}
		return dst
	}
	inMark, inBreak := false, false
	for i, n := 0, 0; i < len(s); i += n {
		n = min(symbolLen(s[i]), len(s)-i)
		mark := s[i:i+n] == spaceMark
		brk := s[i] == '\n'
		if i > 0 && (p.words && mark && !inMark || p.lines && brk != inBreak) {
			dst = append(dst, i)
		}
		inMark, inBreak = mark, brk
	}
	if s != "" {
		dst = append(dst, len(s))
	}
	return dst
}

// joinsWords reports whether text has U+2581 behind anything but U+2581.
func joinsWords(text []byte) bool {
	for bytes.HasPrefix(text, []byte(spaceMark)) {
		text = text[len(spaceMark):]
	}
	return bytes.Contains(text, []byte(spaceMark))
}
