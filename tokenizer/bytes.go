package tokenizer

import "unicode/utf8"

// Byte-level vocabularies spell each byte as one printable code point: bytes that print in Latin-1 stand for
// themselves, the other 68 follow in ascending order from U+0100 on.

// printable[b] is the code point that stands for byte b.
var printable = func() (p [256]rune) {
	next := rune(0x100)
	for b := range p {
		if b >= 33 && b <= 126 || b >= 161 && b <= 172 || b >= 174 {
			p[b] = rune(b)
		} else {
			p[b] = next
			next++
		}
	}
	return p
}()

// byteOf[r] is the byte that code point r stands for, or -1.
var byteOf = func() (t [0x144]int16) {
	for r := range t {
		t[r] = -1
	}
	for b, r := range printable {
		t[r] = int16(b)
	}
	return t
}()

// appendPrintable appends the printable spelling of the bytes of s.
func appendPrintable(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		dst = utf8.AppendRune(dst, printable[s[i]])
	}
	return dst
}

// appendUnprintable appends the bytes that the printable spelling s stands for. Code points outside the alphabet,
// which well-made vocabularies do not have, are kept as their UTF-8 bytes.
func appendUnprintable(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRune(s[i:])
		if int(r) < len(byteOf) && byteOf[r] >= 0 {
			dst = append(dst, byte(byteOf[r]))
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return dst
}
