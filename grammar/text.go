package grammar

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// A string's content is first a node over its characters, then spelled as the style has it.

// style is a way to write values.
type style uint8

const (
	styleJSON   style = iota
	stylePython       // JSON with True, False and None, and Python's escapes
	styleGemma        // bare keys, strings between quotes of their own and without escapes
	styleRaw          // a string stands bare, up to a closing tag; other values are JSON
)

const gemmaQuote = `<|"|>`

// content spells a string's characters.
func (b *builder) content(n *node) *node {
	memo := map[*node]*node{}
	var spell func(n *node) *node
	spell = func(n *node) *node {
		if s, ok := memo[n]; ok {
			return s
		}
		s := n
		switch n.kind {
		case kSet:
			s = b.spellSet(n.set)
		case kText:
			s = b.spellText(n.text)
		case kSeq, kAlt:
			kids := make([]*node, len(n.kids))
			for i, k := range n.kids {
				kids[i] = spell(k)
			}
			if s = alt(kids...); n.kind == kSeq {
				s = seq(kids...)
			}
		case kRepeat:
			s = repeat(spell(n.kids[0]), n.min, n.max)
		}
		memo[n] = s
		return s
	}
	return spell(n)
}

var (
	quoted    = setOf("\"\\")
	controls  = newSet(runeRange{0, 0x1f})
	plainJSON = quoted.or(controls).not()
	hexSet    = setOf("0123456789abcdefABCDEF")
	hexDigit  = chars(hexSet)
)

// anyChar are the spellings of any character in JSON: plain, with a short escape, or as one or two numbers.
var (
	anyChar   = alt(chars(plainJSON), anyEscape)
	anyEscape = seq(text(`\`), alt(chars(setOf(`"\/bfnrt`)),
		seq(text("u"), alt(
			seq(chars(hexSet.minus(setOf("dD"))), hexDigit, hexDigit, hexDigit),
			seq(chars(setOf("dD")), chars(setOf("01234567")), hexDigit, hexDigit),
			seq(chars(setOf("dD")), chars(setOf("89abAB")), hexDigit, hexDigit, text(`\u`), chars(setOf("dD")), chars(setOf("cdefCDEF")), hexDigit, hexDigit),
		))))
)

// anyPythonChar leaves out what Python does not know.
var anyPythonChar = alt(chars(plainJSON), seq(text(`\`), chars(setOf(`"\bfnrt`))))

func (b *builder) spellSet(s runeSet) *node {
	switch b.style {
	case styleRaw, styleGemma:
		return chars(s.minus(setOf("<")))
	}
	plain := plainJSON
	if b.avoid {
		plain = plain.minus(setOf("<"))
	}
	if len(s) == len(allRunes) && s[0] == allRunes[0] && s[1] == allRunes[1] {
		if b.style == stylePython {
			return anyPythonChar
		}
		if b.avoid {
			return alt(chars(plain), anyEscape)
		}
		return anyChar
	}
	all := []*node{chars(s.and(plain))}
	for _, r := range s.minus(plain) {
		for c := r.lo; c <= r.hi; c++ {
			e := escape(c)
			if c == '<' {
				e = `\u003c`
			}
			all = append(all, text(e))
		}
	}
	return alt(all...)
}

// escape is the spelling of a character within a JSON string.
func escape(c rune) string {
	switch c {
	case '"', '\\':
		return `\` + string(c)
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	}
	if c < ' ' {
		return fmt.Sprintf(`\u%04x`, c)
	}
	return string(c)
}

func (b *builder) spellText(s string) *node {
	switch b.style {
	case styleRaw:
		if strings.Contains(s+b.stop[:len(b.stop)-1], b.stop) {
			return never // it would end the text
		}
		return text(s)
	case styleGemma:
		if strings.Contains(s, gemmaQuote) {
			return never
		}
		return text(s)
	}
	if b.avoid {
		return text(strings.ReplaceAll(quoteText(s), "<", `\u003c`))
	}
	return text(quoteText(s))
}

func quoteText(s string) string {
	var out strings.Builder
	for _, c := range s {
		out.WriteString(escape(c))
	}
	return out.String()
}

// span is the least and the greatest number of characters of n's texts; math.MaxInt if there is no end.
func span(n *node) (least, most int) {
	add := func(a, b int) int {
		if a > math.MaxInt-b {
			return math.MaxInt
		}
		return a + b
	}
	times := func(a, n int) int {
		if n != 0 && a > math.MaxInt/n {
			return math.MaxInt
		}
		return a * n
	}
	switch n.kind {
	case kSet:
		return 1, 1
	case kText:
		k := utf8.RuneCountInString(n.text)
		return k, k
	case kSeq:
		for _, k := range n.kids {
			lo, hi := span(k)
			least, most = add(least, lo), add(most, hi)
		}
	case kAlt:
		least = math.MaxInt
		for _, k := range n.kids {
			lo, hi := span(k)
			least, most = min(least, lo), max(most, hi)
		}
	case kRepeat:
		lo, hi := span(n.kids[0])
		least = times(lo, n.min)
		switch {
		case hi == 0:
		case n.max < 0:
			most = math.MaxInt
		default:
			most = times(hi, n.max)
		}
	}
	return least, most
}

// fit restricts n to texts of least to most characters: to all of those where that is easy, else to some. It gives never
// if it finds none.
func fit(n *node, least, most int) *node {
	lo, hi := span(n)
	switch {
	case n.kind == kNever || lo > most || hi < least:
		return never
	case lo >= least && hi <= most:
		return n
	}
	switch n.kind {
	case kAlt:
		kids := make([]*node, len(n.kids))
		for i, k := range n.kids {
			kids[i] = fit(k, least, most)
		}
		return alt(kids...)
	case kSeq:
		return fitSeq(n, least, most)
	case kRepeat:
		return fitRepeat(n, least, most)
	}
	return never
}

// fitSeq shares the room for characters out among the parts.
func fitSeq(n *node, least, most int) *node {
	lows, highs := make([]int, len(n.kids)), make([]int, len(n.kids))
	low, open := 0, 0
	for i, k := range n.kids {
		lows[i], highs[i] = span(k)
		low += lows[i]
		if highs[i] > lows[i] {
			open++
		}
	}
	// Raise the least lengths first, of the longest part first, then share what is left.
	for low < least {
		best := -1
		for i := range highs {
			if highs[i] > lows[i] && (best < 0 || highs[i]-lows[i] > highs[best]-lows[best]) {
				best = i
			}
		}
		if best < 0 {
			return never
		}
		d := min(least-low, highs[best]-lows[best])
		lows[best] += d
		low += d
	}
	room := most - low
	if most == math.MaxInt {
		room = math.MaxInt
	}
	kids := make([]*node, len(n.kids))
	for i, k := range n.kids {
		if highs[i] > lows[i] {
			take := room
			if room != math.MaxInt {
				take = min(highs[i]-lows[i], (room+open-1)/max(open, 1))
				room -= take
				highs[i] = lows[i] + take
			}
		}
		if lo, hi := span(k); hi > lo {
			open--
		}
		if kids[i] = fit(k, lows[i], highs[i]); kids[i].kind == kNever {
			return never
		}
	}
	return seq(kids...)
}

func fitRepeat(n *node, least, most int) *node {
	kid := n.kids[0]
	lo, hi := span(kid)
	from, to := n.min, n.max
	if to < 0 {
		to = math.MaxInt
	}
	if hi == math.MaxInt || lo < hi && lo == 0 { // rounds of no or no bounded length: as few rounds as there must be
		if from == 0 {
			if from = 1; to == 0 {
				return never
			}
		}
		if most != math.MaxInt && hi > most/from {
			if kid = fit(kid, min(lo, most/from), most/from); kid.kind == kNever {
				return never
			}
			_, hi = span(kid)
		}
		if hi != math.MaxInt || most != math.MaxInt {
			to = from
		}
		if need := (least + from - 1) / from; need > lo {
			if kid = fit(kid, need, hi); kid.kind == kNever {
				return never
			}
		}
		return repeat(kid, from, bounded(to))
	}
	if hi == 0 {
		return never
	}
	if most != math.MaxInt {
		to = min(to, most/hi)
	}
	if lo > 0 {
		from = max(from, (least+lo-1)/lo)
	}
	if from > to {
		if lo < hi { // rounds of one length
			return fitRepeat(&node{kind: kRepeat, kids: []*node{fit(kid, lo, lo)}, min: n.min, max: n.max}, least, most)
		}
		return never
	}
	return repeat(kid, from, bounded(to))
}

func bounded(n int) int {
	if n == math.MaxInt {
		return -1
	}
	return n
}

// textOf is a value as it is spelled; false if the style cannot.
func (b *builder) textOf(v *value) (*node, bool) {
	switch v.kind {
	case 'n':
		return text(b.word("null")), true
	case 't':
		return text(b.word(fmt.Sprint(v.is))), true
	case '0':
		return text(v.text), true
	case '"':
		return b.quote(b.spellText(v.text)), true
	}
	if b.style == styleRaw { // behind the first level all is JSON
		return b.inner().textOf(v)
	}
	var parts []*node
	if v.kind == '[' {
		parts = append(parts, text("["))
	} else {
		parts = append(parts, text("{"))
	}
	for i, e := range v.items {
		if i > 0 {
			parts = append(parts, text(","))
		}
		if v.kind == '{' {
			k, ok := b.key(v.keys[i])
			if !ok {
				return nil, false
			}
			parts = append(parts, k, text(":"))
		}
		n, ok := b.textOf(e)
		if !ok {
			return nil, false
		}
		parts = append(parts, n)
	}
	return seq(append(parts, text(map[byte]string{'[': "]", '{': "}"}[v.kind]))...), true
}

// word is a constant.
func (b *builder) word(w string) string {
	if b.style == stylePython {
		switch w {
		case "null":
			return "None"
		case "true":
			return "True"
		case "false":
			return "False"
		}
	}
	return w
}

// quote puts a spelled content between the quotes of the style.
func (b *builder) quote(n *node) *node {
	switch b.style {
	case styleRaw:
		return n
	case styleGemma:
		return seq(mark(gemmaQuote), n, mark(gemmaQuote))
	}
	return seq(text(`"`), n, text(`"`))
}

// key is a key of an object; false if the style cannot spell it.
func (b *builder) key(k string) (*node, bool) {
	if b.style == styleGemma {
		return text(k), plainName(k)
	}
	return b.quote(b.spellText(k)), true
}

// plainName tells whether k can stand bare where a key ends at a mark of punctuation or at a tag.
func plainName(k string) bool {
	return k != "" && len(k) <= 200 && strings.TrimSpace(k) == k && !strings.ContainsAny(k, "<>\"'`:=,;()[]{}\n\r\t\\")
}

// readsAsJSON tells whether a bare string would be taken for another value.
func readsAsJSON(s string) bool {
	s = strings.TrimSpace(s)
	return json.Valid([]byte(s)) || s == "True" || s == "False" || s == "None"
}
