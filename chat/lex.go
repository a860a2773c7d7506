package chat

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits on a template's source. They keep the engine's recursive parser and evaluator far from the end of the stack.
const (
	maxSource    = 1 << 20 // bytes
	maxTagTokens = 2048    // tokens of one tag
	maxNesting   = 64      // blocks within blocks, and brackets within brackets
)

type tokenKind uint8

const (
	tokName tokenKind = iota
	tokInt
	tokFloat
	tokString
	tokOp
	tokEnd
)

// token is one token of an expression; text of a string is its value, without quotes and escapes.
type token struct {
	kind tokenKind
	text string
}

type segmentKind uint8

const (
	segText segmentKind = iota
	segOutput
	segStatement
)

// segment is a piece of a template: text after white-space control, or a tag's tokens.
type segment struct {
	kind segmentKind
	text string
	toks []token
	line int
}

// scanner cuts a template into segments by the rules of Jinja2 with trim_blocks and lstrip_blocks, the setting all chat
// templates are written for: a newline right after a block tag goes, so does the indentation before one.
type scanner struct {
	src       string
	pos       int
	lineStart bool // the last thing consumed ended a line
	segs      []segment
}

func scan(src string) ([]segment, error) {
	if len(src) > maxSource {
		return nil, fmt.Errorf("source has %d bytes, the limit is %d", len(src), maxSource)
	}
	if !utf8.ValidString(src) {
		return nil, fmt.Errorf("source is not valid UTF-8")
	}
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.TrimSuffix(src, "\n")
	s := &scanner{src: src, lineStart: true}
	line, counted := 1, 0
	for s.pos < len(src) {
		open := s.pos
		for {
			i := strings.IndexByte(src[open:], '{')
			if i < 0 || open+i+1 >= len(src) {
				open = len(src)
				break
			}
			open += i
			if c := src[open+1]; c == '{' || c == '%' || c == '#' {
				break
			}
			open++
		}
		if open == len(src) {
			s.text(src[s.pos:])
			break
		}
		line += strings.Count(src[counted:open], "\n")
		counted = open
		if err := s.tag(open, line); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	return s.segs, nil
}

func (s *scanner) text(t string) {
	if t != "" {
		s.segs = append(s.segs, segment{kind: segText, text: t})
	}
}

// tag consumes the text before the tag at open and the tag itself.
func (s *scanner) tag(open, line int) error {
	before := s.src[s.pos:open]
	kind := s.src[open+1]
	p := open + 2
	sign := byte(0)
	if p < len(s.src) && (s.src[p] == '-' || s.src[p] == '+' && kind != '{') {
		sign = s.src[p]
		p++
	}
	switch {
	case sign == '-':
		before = strings.TrimRightFunc(before, isSpace)
	case sign == 0 && kind != '{':
		at := strings.LastIndexByte(before, '\n') + 1
		if (at > 0 || s.lineStart) && strings.TrimLeftFunc(before[at:], isSpace) == "" {
			before = before[:at]
		}
	}
	s.text(before)
	if kind == '#' {
		i := strings.Index(s.src[p:], "#}")
		if i < 0 {
			return fmt.Errorf("comment is not closed")
		}
		end := p + i
		s.close(end+2, end > p && s.src[end-1] == '-', end > p && s.src[end-1] == '+')
		return nil
	}
	if kind == '%' {
		if q, minus, ok := keywordTag(s.src, p, "raw"); ok {
			return s.raw(q, minus)
		}
	}
	toks, end, minus, plus, err := s.tokens(p, kind == '{')
	if err != nil {
		return err
	}
	sk := segStatement
	if kind == '{' {
		sk = segOutput
		plus = true // no newline goes after an output tag
	}
	s.segs = append(s.segs, segment{kind: sk, toks: toks, line: line})
	s.close(end, minus, plus)
	return nil
}

// close moves past a tag that ends at end, with the white space its end asks for.
func (s *scanner) close(end int, minus, plus bool) {
	s.pos = end
	switch {
	case minus:
		rest := strings.TrimLeftFunc(s.src[end:], isSpace)
		s.pos = len(s.src) - len(rest)
	case !plus && end < len(s.src) && s.src[end] == '\n':
		s.pos++
	}
	s.lineStart = s.src[s.pos-1] == '\n'
}

// keywordTag reports whether the tag whose inside begins at p holds one keyword only; q is the end of the tag.
func keywordTag(src string, p int, word string) (q int, minus, ok bool) {
	rest := strings.TrimLeftFunc(src[p:], isSpace)
	if !strings.HasPrefix(rest, word) {
		return 0, false, false
	}
	rest = strings.TrimLeftFunc(rest[len(word):], isSpace)
	if minus = strings.HasPrefix(rest, "-"); minus || strings.HasPrefix(rest, "+") {
		rest = rest[1:]
	}
	if !strings.HasPrefix(rest, "%}") {
		return 0, false, false
	}
	return len(src) - len(rest) + 2, minus, true
}

// raw copies everything up to the endraw tag.
func (s *scanner) raw(p int, minus bool) error {
	if minus {
		p = len(s.src) - len(strings.TrimLeftFunc(s.src[p:], isSpace))
	}
	for at := p; ; {
		i := strings.Index(s.src[at:], "{%")
		if i < 0 {
			return fmt.Errorf("raw block is not closed")
		}
		open := at + i
		in := open + 2
		sign := byte(0)
		if in < len(s.src) && (s.src[in] == '-' || s.src[in] == '+') {
			sign = s.src[in]
			in++
		}
		end, endMinus, ok := keywordTag(s.src, in, "endraw")
		if !ok {
			at = open + 2
			continue
		}
		body := s.src[p:open]
		if sign == '-' {
			body = strings.TrimRightFunc(body, isSpace)
		} else if n := strings.LastIndexByte(body, '\n') + 1; sign == 0 && n > 0 && strings.TrimLeftFunc(body[n:], isSpace) == "" {
			body = body[:n]
		}
		s.text(body)
		s.close(end, endMinus, s.src[end-3] == '+')
		return nil
	}
}

// tokens reads a tag's tokens from p to its end.
func (s *scanner) tokens(p int, output bool) (toks []token, end int, minus, plus bool, err error) {
	src := s.src
	closer := "%}"
	if output {
		closer = "}}"
	}
	var open []byte
	for {
		for p < len(src) && isSpace(rune(src[p])) {
			p++
		}
		if p >= len(src) {
			return nil, 0, false, false, fmt.Errorf("tag is not closed")
		}
		if len(open) == 0 {
			rest := src[p:]
			if strings.HasPrefix(rest, closer) {
				return toks, p + 2, false, false, nil
			}
			if (rest[0] == '-' || rest[0] == '+' && !output) && strings.HasPrefix(rest[1:], closer) {
				return toks, p + 3, rest[0] == '-', rest[0] == '+', nil
			}
		}
		if len(toks) == maxTagTokens {
			return nil, 0, false, false, fmt.Errorf("tag has more than %d tokens", maxTagTokens)
		}
		c := src[p]
		start := p
		switch {
		case isNameByte(c) && !isDigit(c):
			for p < len(src) && isNameByte(src[p]) {
				p++
			}
			toks = append(toks, token{tokName, src[start:p]})
		case isDigit(c):
			kind := tokInt
			for p < len(src) && (isDigit(src[p]) || src[p] == '_') {
				p++
			}
			if p+1 < len(src) && src[p] == '.' && isDigit(src[p+1]) {
				kind = tokFloat
				for p++; p < len(src) && isDigit(src[p]); p++ {
				}
			}
			if q := p + 1; p < len(src) && (src[p] == 'e' || src[p] == 'E') {
				if q < len(src) && (src[q] == '+' || src[q] == '-') {
					q++
				}
				if q < len(src) && isDigit(src[q]) {
					kind = tokFloat
					for p = q; p < len(src) && isDigit(src[p]); p++ {
					}
				}
			}
			toks = append(toks, token{kind, strings.ReplaceAll(src[start:p], "_", "")})
		case c == '\'' || c == '"':
			for p++; p < len(src) && src[p] != c; p++ {
				if src[p] == '\\' {
					p++
				}
			}
			if p >= len(src) {
				return nil, 0, false, false, fmt.Errorf("string is not closed")
			}
			p++
			toks = append(toks, token{tokString, unescape(src[start+1 : p-1])})
		default:
			op := src[p : p+1]
			if p+1 < len(src) {
				switch two := src[p : p+2]; two {
				case "**", "//", "==", "!=", "<=", ">=":
					op = two
				}
			}
			switch c {
			case '(', '[', '{':
				if open = append(open, c); len(open) > maxNesting {
					return nil, 0, false, false, fmt.Errorf("brackets nest deeper than %d", maxNesting)
				}
			case ')', ']', '}':
				if len(open) == 0 || open[len(open)-1] != map[byte]byte{')': '(', ']': '[', '}': '{'}[c] {
					return nil, 0, false, false, fmt.Errorf("unexpected %q", string(c))
				}
				open = open[:len(open)-1]
			default:
				if !strings.Contains("+-*/%<>=!~|.,:;", string(rune(c))) || op == "!" || op == ";" {
					r, _ := utf8.DecodeRuneInString(src[p:])
					return nil, 0, false, false, fmt.Errorf("unexpected character %q", r)
				}
			}
			p += len(op)
			toks = append(toks, token{tokOp, op})
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isNameByte(c byte) bool {
	return c == '_' || isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// unescape resolves the escapes of a Python string literal; an unknown one stays as it is. Two halves of a surrogate pair,
// which models write as in JSON, become one character.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'r':
			b.WriteByte('\r')
		case 'a':
			b.WriteByte('\a')
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'v':
			b.WriteByte('\v')
		case '\\', '\'', '"':
			b.WriteByte(c)
		case '\n':
		case '0', '1', '2', '3', '4', '5', '6', '7':
			v := rune(0)
			j := i
			for ; j < len(s) && j < i+3 && '0' <= s[j] && s[j] <= '7'; j++ {
				v = v*8 + rune(s[j]-'0')
			}
			b.WriteRune(v)
			i = j - 1
		case 'x', 'u', 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			v, ok := hex(s, i+1, n)
			if !ok {
				b.WriteByte('\\')
				b.WriteByte(c)
				continue
			}
			i += n
			if v>>10 == 0xD800>>10 && strings.HasPrefix(s[i+1:], `\u`) {
				if low, ok := hex(s, i+3, 4); ok && low>>10 == 0xDC00>>10 {
					v = 0x10000 + (v-0xD800)<<10 + (low - 0xDC00)
					i += 6
				}
			}
			b.WriteRune(v) // half a pair or a number past Unicode becomes U+FFFD
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func hex(s string, at, n int) (rune, bool) {
	if at+n > len(s) {
		return 0, false
	}
	v := rune(0)
	for _, c := range []byte(s[at : at+n]) {
		switch {
		case isDigit(c):
			v = v<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}
