package grammar

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Character classes, as far as all kinds of regular expressions agree on them.
var (
	digitSet   = newSet(runeRange{'0', '9'})
	wordSet    = newSet(runeRange{'0', '9'}, runeRange{'A', 'Z'}, runeRange{'a', 'z'}, runeRange{'_', '_'})
	spaceSet   = setOf(" \t\n\r\f")
	spaceLike  = setOf(" \t\n\r\f\v\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff\u0085")
	lineBreaks = setOf("\n\r\u2028\u2029\u0085")
	noWordSet  = newSet(runeRange{0, 0x7f}).minus(wordSet)
	digitLike  = tableSet(unicode.Nd)
	anyText    = repeat(chars(allRunes), 0, -1)
)

func tableSet(t *unicode.RangeTable) runeSet {
	var all []runeRange
	add := func(lo, hi, stride rune) {
		for ; lo <= hi; lo += stride {
			all = append(all, runeRange{lo, lo})
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return newSet(all...)
}

// parseRegexp reads a regular expression of the dialect that JSON Schema uses and gives the texts in which it is found:
// those that it matches, with anything before and behind where it has no anchor.
//
// It knows characters, classes, groups, alternatives, counts (lazy ones too) and the anchors ^ and $ at the ends of
// alternatives. Where dialects disagree on what \d, \w, \s, their opposites or the dot are, it takes what is so in all.
func parseRegexp(src string) (*node, error) {
	p := &regex{src: src}
	n, err := p.top()
	if err != nil {
		return nil, err
	}
	return n, nil
}

// pattern is parseRegexp of a text that is known to be one, matched as a whole.
func pattern(src string) *node {
	n, err := parseRegexp("^(?:" + src + ")$")
	if err != nil {
		panic("grammar: " + src + ": " + err.Error())
	}
	return n
}

type regex struct {
	src string
	at  int
	// most: classes are what they are in some dialect, not in all, because their opposite is asked for
	most bool
}

func (p *regex) either(least, most runeSet) (runeSet, bool, error) {
	if p.most {
		return most, false, nil
	}
	return least, false, nil
}

func (p *regex) fail(format string, args ...any) error {
	return fmt.Errorf("at character %d: %s", 1+utf8.RuneCountInString(p.src[:min(p.at, len(p.src))]), fmt.Sprintf(format, args...))
}

func (p *regex) peek() byte {
	if p.at < len(p.src) {
		return p.src[p.at]
	}
	return 0
}

func (p *regex) has(s string) bool { return strings.HasPrefix(p.src[p.at:], s) }

// top reads alternatives, each of which may have anchors.
func (p *regex) top() (*node, error) {
	var all []*node
	for {
		before, behind := anyText, anyText
		if p.peek() == '^' {
			p.at++
			before = empty
		}
		n, err := p.sequence(0)
		if err != nil {
			return nil, err
		}
		if p.peek() == '$' {
			p.at++
			behind = empty
		}
		all = append(all, seq(before, n, behind))
		switch {
		case p.at == len(p.src):
			return alt(all...), nil
		case p.peek() == '|':
			p.at++
		default:
			return nil, p.fail("%q cannot stand here", p.src[p.at])
		}
	}
}

func (p *regex) alternatives(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, p.fail("groups are nested more than %d deep", maxDepth)
	}
	var all []*node
	for {
		n, err := p.sequence(depth)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
		if p.peek() != '|' {
			return alt(all...), nil
		}
		p.at++
	}
}

func (p *regex) sequence(depth int) (*node, error) {
	var items []*node
	for p.at < len(p.src) {
		var item *node
		var err error
		switch c := p.peek(); c {
		case '|', ')':
			return seq(items...), nil
		case '^', '$':
			if depth == 0 && c == '$' && (p.at+1 == len(p.src) || p.src[p.at+1] == '|') {
				return seq(items...), nil
			}
			return nil, p.fail("an anchor within the expression is not supported")
		case '(':
			p.at++
			switch {
			case p.has("?:"):
				p.at += 2
			case p.has("?<") && !p.has("?<=") && !p.has("?<!"):
				i := strings.IndexByte(p.src[p.at:], '>')
				if i < 0 {
					return nil, p.fail("a group's name has no end")
				}
				p.at += i + 1
			case p.has("?"):
				return nil, p.fail("groups that begin with (? are not supported, but for (?: and (?<name>")
			}
			if item, err = p.alternatives(depth + 1); err == nil && p.peek() != ')' {
				err = p.fail("a group is not closed")
			}
			p.at++
		case '[':
			item, err = p.class()
		case '.':
			p.at++
			item = chars(lineBreaks.not())
		case '*', '+', '?':
			err = p.fail("%c has nothing before it to repeat", c)
		default:
			var s runeSet
			if s, _, err = p.char(false); err == nil {
				item = chars(s)
			}
		}
		if err == nil {
			item, err = p.counts(item)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return seq(items...), nil
}

func (p *regex) counts(item *node) (*node, error) {
	least, most := 0, -1
	switch p.peek() {
	case '*':
	case '+':
		least = 1
	case '?':
		most = 1
	case '{':
		end := strings.IndexByte(p.src[p.at:], '}')
		if end < 0 {
			return item, nil // a brace is a character then
		}
		lo, hi, two := strings.Cut(p.src[p.at+1:p.at+end], ",")
		ok := false
		if least, ok = count(lo); !ok {
			return nil, p.fail("{%.20s} is no count, or one above %d", p.src[p.at+1:p.at+end], maxRepeat)
		}
		if most = least; two {
			if most = -1; hi != "" {
				if most, ok = count(hi); !ok || most < least {
					return nil, p.fail("{%.20s} is no count, or one above %d", p.src[p.at+1:p.at+end], maxRepeat)
				}
			}
		}
		p.at += end
	default:
		return item, nil
	}
	p.at++
	if p.peek() == '?' { // lazy: the same texts
		p.at++
	}
	if c := p.peek(); c == '*' || c == '+' || c == '?' {
		return nil, p.fail("%c has nothing before it to repeat", c)
	}
	return repeat(item, least, most), nil
}

func count(s string) (int, bool) {
	n := 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int(c-'0'); n > maxRepeat {
			return 0, false
		}
	}
	return n, s != ""
}

func (p *regex) class() (*node, error) {
	p.at++
	negated := p.peek() == '^'
	if negated {
		p.at++
	}
	p.most = negated
	defer func() { p.most = false }()
	var all runeSet
	for p.peek() != ']' {
		if p.at >= len(p.src) {
			return nil, p.fail("a class is not closed")
		}
		lo, one, err := p.char(true)
		if err != nil {
			return nil, err
		}
		if p.peek() == '-' && p.at+1 < len(p.src) && p.src[p.at+1] != ']' {
			p.at++
			hi, one2, err := p.char(true)
			if err != nil {
				return nil, err
			}
			if !one || !one2 || hi[0].lo < lo[0].lo {
				return nil, p.fail("a range goes backwards, or has a class at its end")
			}
			lo = newSet(runeRange{lo[0].lo, hi[0].lo})
		}
		all = all.or(lo)
	}
	p.at++
	if negated {
		all = all.not()
	}
	if len(all) == 0 {
		return nil, p.fail("a class has no characters")
	}
	return chars(all), nil
}

// char reads a character or an escape; one tells that it stands for a single character.
func (p *regex) char(class bool) (s runeSet, one bool, err error) {
	r, n := utf8.DecodeRuneInString(p.src[p.at:])
	p.at += n
	if r != '\\' {
		return oneRune(r), true, nil
	}
	if p.at >= len(p.src) {
		return nil, false, p.fail("an escape has no character")
	}
	r, n = utf8.DecodeRuneInString(p.src[p.at:])
	p.at += n
	digits := 0
	switch r {
	case 'd':
		return p.either(digitSet, digitLike)
	case 'D':
		return p.either(digitLike.not(), digitSet.not())
	case 'w':
		return p.either(wordSet, noWordSet.not())
	case 'W':
		return p.either(noWordSet, wordSet.not())
	case 's':
		return p.either(spaceSet, spaceLike)
	case 'S':
		return p.either(spaceLike.not(), spaceSet.not())
	case 'n':
		return setOf("\n"), true, nil
	case 'r':
		return setOf("\r"), true, nil
	case 't':
		return setOf("\t"), true, nil
	case 'f':
		return setOf("\f"), true, nil
	case 'v':
		return setOf("\v"), true, nil
	case '0':
		if c := p.peek(); c >= '0' && c <= '9' {
			return nil, false, p.fail("octal escapes are not supported")
		}
		return oneRune(0), true, nil
	case 'x':
		digits = 2
	case 'u':
		digits = 4
		if p.peek() == '{' {
			i := strings.IndexByte(p.src[p.at:], '}')
			if i < 2 || i > 8 {
				return nil, false, p.fail("\\u{ has no digits or no end")
			}
			p.at++
			if s, one, err = p.hex(i - 1); err == nil {
				p.at++
			}
			return s, one, err
		}
	case 'b':
		if class {
			return setOf("\b"), true, nil
		}
		return nil, false, p.fail("\\b is not supported")
	default:
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return nil, false, p.fail("\\%c is not supported", r)
		}
		return oneRune(r), true, nil
	}
	return p.hex(digits)
}

func (p *regex) hex(digits int) (runeSet, bool, error) {
	v := rune(0)
	for range digits {
		c := p.peek() | 0x20
		d := strings.IndexByte("0123456789abcdef", c)
		if p.at >= len(p.src) || d < 0 || d < 10 && p.peek() < '0' {
			return nil, false, p.fail("an escape lacks hexadecimal digits")
		}
		v = v<<4 | rune(d)
		p.at++
	}
	if !utf8.ValidRune(v) {
		return nil, false, p.fail("%X is no character", v)
	}
	return oneRune(v), true, nil
}

// Formats of strings. Where a format has odd corners, those are left out: what is written is of the format.
var formats = map[string]*node{}

func init() {
	const (
		clock    = `(?:[01]\d|2[0-3]):[0-5]\d`
		timeText = clock + `:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-]` + clock + `)`
		dateText = `(?:[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))` +
			`|(?:[1-9]\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)` // leap years
		hex      = `[0-9a-fA-F]`
		label    = `[A-Za-z0-9]{1,12}(?:-[A-Za-z0-9]{1,12})?`
		domain   = `(?:` + label + `\.){0,3}[A-Za-z]{2,12}`
		octet    = `(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
		word     = `[A-Za-z0-9._~-]`
		uriText  = `https?://` + domain + `(?::[1-9]\d{0,3})?(?:/` + word + `{0,40}){0,8}(?:\?` + `[A-Za-z0-9._~=&-]{0,60})?(?:#` + word + `{0,40})?`
		duration = `P(?:\d{1,4}W|\d{1,4}Y(?:\d{1,2}M(?:\d{1,2}D)?)?|\d{1,4}D(?:T\d{1,2}H(?:\d{1,2}M(?:\d{1,2}S)?)?)?` +
			`|T(?:\d{1,4}H(?:\d{1,2}M(?:\d{1,2}S)?)?|\d{1,4}M(?:\d{1,2}S)?|\d{1,4}S))`
		email   = `[A-Za-z0-9_+-]{1,20}(?:\.[A-Za-z0-9_+-]{1,20}){0,2}@` + label + `(?:\.[A-Za-z]{2,12}){1,3}`
		pointer = `(?:/[A-Za-z0-9_-]{1,20}){0,8}`
	)
	for name, src := range map[string]string{
		"date": dateText, "time": timeText, "date-time": dateText + "T" + timeText, "duration": duration,
		"uuid":  hex + `{8}(?:-` + hex + `{4}){3}-` + hex + `{12}`,
		"email": email, "idn-email": email, "hostname": domain, "idn-hostname": domain,
		"ipv4": octet + `(?:\.` + octet + `){3}`,
		"ipv6": `(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|::(?:[0-9a-f]{1,4})?)`,
		"uri":  uriText, "uri-reference": uriText, "iri": uriText, "iri-reference": uriText, "uri-template": uriText,
		"json-pointer": pointer, "relative-json-pointer": `(?:0|[1-9]\d{0,2})` + pointer, "regex": `[A-Za-z0-9 ]{0,40}`,
	} {
		formats[name] = pattern(src)
	}
}
