package chat

import (
	"strconv"
	"strings"
)

// jsonScan checks one JSON value that comes in pieces. Its zero value expects the value's first byte.
type jsonScan struct {
	state scanState
	stack []byte // the open { and [
	key   bool   // the string being read is a key
	rest  string // of a literal, or the number of hex digits to come
	wrong bool   // a byte did not belong to it
}

type scanState uint8

const (
	scanValue scanState = iota
	scanFirstKey
	scanKey
	scanColon
	scanFirstItem
	scanNext // a comma or the closing bracket
	scanString
	scanEscape
	scanHex
	scanLiteral
	scanMinus
	scanZero
	scanInt
	scanDot
	scanFraction
	scanE
	scanSign
	scanExponent
	scanDone
)

const scanDepth = 500

func isJSONSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// scan reads in up to the value's end or the first byte that cannot belong to it, and writes what it read to out. Control
// characters in strings, which JSON forbids and models write, are written as escapes. ok is false where in[n] is wrong.
func (s *jsonScan) scan(in string, out *strings.Builder) (n int, done, ok bool) {
	for n < len(in) {
		if s.state == scanDone {
			return n, true, true
		}
		c := in[n]
		if s.state == scanString && c < ' ' && !s.wrong {
			out.WriteString(escapeControl(c))
			n++
			continue
		}
		take, ok := s.byte(c)
		if s.wrong = s.wrong || !ok; s.wrong {
			return n, false, false
		}
		if take {
			out.WriteByte(c)
			n++
		}
	}
	return n, s.state == scanDone, true
}

// end tells whether the value is complete if no more text comes: only a bare number learns of its end so.
func (s *jsonScan) end() bool {
	return s.state == scanDone || len(s.stack) == 0 && (s.state == scanZero || s.state == scanInt || s.state == scanFraction || s.state == scanExponent)
}

func escapeControl(c byte) string {
	switch c {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	return `\u00` + strconv.FormatInt(int64(c)+0x100, 16)[1:]
}

// after is the state behind a complete value.
func (s *jsonScan) after() {
	if s.state = scanNext; len(s.stack) == 0 {
		s.state = scanDone
	}
}

// byte takes one byte; take is false where it only told that a number has ended.
func (s *jsonScan) byte(c byte) (take, ok bool) {
	digit := c >= '0' && c <= '9'
	switch s.state {
	case scanString:
		switch {
		case c == '\\':
			s.state = scanEscape
		case c == '"' && s.key:
			s.state, s.key = scanColon, false
		case c == '"':
			s.after()
		}
		return true, true
	case scanEscape:
		if c == 'u' {
			s.state, s.rest = scanHex, "4444"
			return true, true
		}
		s.state = scanString
		return true, strings.IndexByte(`"\/bfnrt`, c) >= 0
	case scanHex:
		if s.rest = s.rest[1:]; s.rest == "" {
			s.state = scanString
		}
		return true, digit || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	case scanLiteral:
		if c != s.rest[0] {
			return false, false
		}
		if s.rest = s.rest[1:]; s.rest == "" {
			s.after()
		}
		return true, true
	case scanMinus:
		s.state = scanInt
		if c == '0' {
			s.state = scanZero
		}
		return true, digit
	case scanDot:
		s.state = scanFraction
		return true, digit
	case scanE:
		if s.state = scanExponent; c == '+' || c == '-' {
			s.state = scanSign
			return true, true
		}
		return true, digit
	case scanSign:
		s.state = scanExponent
		return true, digit
	case scanZero, scanInt, scanFraction, scanExponent:
		switch {
		case digit && s.state != scanZero:
		case c == '.' && (s.state == scanZero || s.state == scanInt):
			s.state = scanDot
		case (c == 'e' || c == 'E') && s.state != scanExponent:
			s.state = scanE
		default:
			s.after()
			return false, true
		}
		return true, true
	}
	if isJSONSpace(c) {
		return true, true
	}
	return true, s.token(c)
}

// token takes a byte between tokens.
func (s *jsonScan) token(c byte) bool {
	switch s.state {
	case scanFirstKey, scanKey:
		if c == '}' && s.state == scanFirstKey {
			s.pop()
			return true
		}
		s.state, s.key = scanString, true
		return c == '"'
	case scanColon:
		s.state = scanValue
		return c == ':'
	case scanNext:
		switch top := s.stack[len(s.stack)-1]; {
		case c == ',' && top == '{':
			s.state = scanKey
		case c == ',':
			s.state = scanValue
		case c == '}' && top == '{', c == ']' && top == '[':
			s.pop()
		default:
			return false
		}
		return true
	case scanFirstItem:
		if c == ']' {
			s.pop()
			return true
		}
	}
	switch c {
	case '{', '[':
		if len(s.stack) == scanDepth {
			return false
		}
		s.stack = append(s.stack, c)
		if s.state = scanFirstKey; c == '[' {
			s.state = scanFirstItem
		}
	case '"':
		s.state = scanString
	case 't':
		s.state, s.rest = scanLiteral, "rue"
	case 'f':
		s.state, s.rest = scanLiteral, "alse"
	case 'n':
		s.state, s.rest = scanLiteral, "ull"
	case '-':
		s.state = scanMinus
	case '0':
		s.state = scanZero
	default:
		s.state = scanInt
		return c >= '1' && c <= '9'
	}
	return true
}

func (s *jsonScan) pop() {
	s.stack = s.stack[:len(s.stack)-1]
	s.after()
}

// asJSON gives text as a JSON value of the first letter kind ('{', '[', '"', '0', 't', 'n'), control characters in its
// strings escaped, or false.
func asJSON(text string) (value string, kind byte, ok bool) {
	text = strings.TrimSpace(text)
	var s jsonScan
	var b strings.Builder
	n, _, ok := s.scan(text, &b)
	if !ok || n != len(text) || text == "" || !s.end() {
		return "", 0, false
	}
	switch kind = text[0]; {
	case kind == '-' || kind >= '0' && kind <= '9':
		kind = '0'
	case kind == 'f':
		kind = 't'
	}
	return b.String(), kind, true
}

// fresh tells that nothing of the value has come.
func (s *jsonScan) fresh() bool { return s.state == scanValue && len(s.stack) == 0 }
