package tokenizer

import "unicode/utf8"

// decode returns the code point of s that starts at byte i, and its length in bytes. s must be structurally
// sound UTF-8 as repair leaves it: lead bytes are trusted, and surrogates are allowed.
func decode(s string, i int) (rune, int) {
	switch b := s[i]; {
	case b < 0x80:
		return rune(b), 1
	case b < 0xe0:
		return rune(b&0x1f)<<6 | rune(s[i+1]&0x3f), 2
	case b < 0xf0:
		return rune(b&0x0f)<<12 | rune(s[i+1]&0x3f)<<6 | rune(s[i+2]&0x3f), 3
	default:
		return rune(b&0x07)<<18 | rune(s[i+1]&0x3f)<<12 | rune(s[i+2]&0x3f)<<6 | rune(s[i+3]&0x3f), 4
	}
}

// repair appends s to dst as structurally sound UTF-8. A byte that begins no complete sequence becomes U+FFFD;
// overlong forms are shortened; encoded surrogates stay as they are (the reference runtimes do all of this); each byte of
// a sequence beyond U+10FFFF becomes U+FFFD.
func repair(dst []byte, s string) []byte {
	for i := 0; i < len(s); {
		b := s[i]
		n := 0
		switch {
		case b < 0x80:
			n = 1
		case b >= 0xf8 || b < 0xc0: // no lead byte
		case b >= 0xf0:
			n = 4
		case b >= 0xe0:
			n = 3
		default:
			n = 2
		}
		if n == 0 || !continued(s, i, n) {
			dst = append(dst, "\uFFFD"...)
			i++
			continue
		}
		r, _ := decode(s, i)
		switch {
		case r > utf8.MaxRune:
			dst = append(dst, "\uFFFD"...)
			i++
			continue
		case r >= 0xd800 && r < 0xe000:
			dst = append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
		default:
			dst = utf8.AppendRune(dst, r)
		}
		i += n
	}
	return dst
}

// continued reports whether the n-1 bytes after s[i] are there and are continuation bytes.
func continued(s string, i, n int) bool {
	if i+n > len(s) {
		return false
	}
	for k := i + 1; k < i+n; k++ {
		if s[k]&0xc0 != 0x80 {
			return false
		}
	}
	return true
}
