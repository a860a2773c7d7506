package tokenizer

// deepseekSplitter is the pattern of DeepSeek V3 and its descendants. Three patterns, each applied inside the pieces of the
// one before; text between matches is a piece:
//
//	\p{N}{1,3}   then [一-龥぀-ゟ゠-ヿ]+   then
//	A[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// where A is one ASCII character that is neither letter, digit nor control.
type deepseekSplitter struct{}

func (deepseekSplitter) ends(dst []int, s string) []int {
	t := classes()
	for i := 0; i < len(s); {
		c, n := t.at(s, i)
		if c&number != 0 {
			i = digits(t, s, i, 3)
			dst = append(dst, i)
			continue
		}
		to := i + n
		for to < len(s) {
			d, n := t.at(s, to)
			if d&number != 0 || (c^d)&cjk != 0 {
				break
			}
			to += n
		}
		for part := s[:to]; i < to; {
			i = deepseekNext(t, part, i)
			dst = append(dst, i)
		}
	}
	return dst
}

// deepseekNext returns the end of the third pattern's piece that starts at i. s has no numbers from there on.
func deepseekNext(t *classTable, s string, i int) int {
	if i+1 < len(s) && asciiLetter(s[i+1]) && s[i] > ' ' && s[i] < 0x7f && !asciiLetter(s[i]) {
		end := i + 2
		for end < len(s) && asciiLetter(s[end]) {
			end++
		}
		return end
	}
	const word = letter | mark
	c, n := t.at(s, i)
	if c&word != 0 {
		return run(t, s, i+n, word)
	}
	if c&(newline|punct|symbol) == 0 && i+n < len(s) {
		if d, m := t.at(s, i+n); d&word != 0 {
			return run(t, s, i+n+m, word)
		}
	}
	k := i
	if s[i] == ' ' {
		k++
	}
	if end := run(t, s, k, punct|symbol); end > k {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	if c&space != 0 {
		return whitespace(t, s, i, true)
	}
	// No alternative takes code points that are none of all this, unless a word follows: they are a piece together.
	for i += n; i < len(s); i += n {
		c, n = t.at(s, i)
		if c&(word|punct|symbol|space) != 0 {
			break
		}
		if i+n < len(s) {
			if d, _ := t.at(s, i+n); d&word != 0 {
				break
			}
		}
	}
	return i
}

func asciiLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// deepseekLLM is the pattern of the first DeepSeek models and of V2:
//
//	[\r\n]   then \s?[cased]+   then \s?[!-/:-~！-／：-～‘-‟　-。]+   then \s+$   then [一-龥ࠀ-一가-퟿]+   then \p{N}+
var deepseekLLM = &stagedSplitter{
	lineBreaks,
	spaceAnd(func(_ class, r rune) bool { return isCased(r) }),
	spaceAnd(func(_ class, r rune) bool {
		return r >= '!' && r <= '/' || r >= ':' && r <= '~' || r >= 0xff01 && r <= 0xff0f || r >= 0xff1a && r <= 0xff5e ||
			r >= 0x2018 && r <= 0x201f || r >= 0x3000 && r <= 0x3002
	}),
	spaceAtEnd,
	runsOf(wideScript),
	runsOf(isNumber),
}

// deepseekCoder is the pattern of the first DeepSeek coder models:
//
//	[\r\n]   then \s?\p{L}+   then \s?\p{P}+   then [一-龥ࠀ-一가-퟿]+   then \p{N}
var deepseekCoder = &stagedSplitter{
	lineBreaks,
	spaceAnd(func(c class, _ rune) bool { return c&letter != 0 }),
	spaceAnd(func(c class, _ rune) bool { return c&punct != 0 }),
	runsOf(wideScript),
	numbers(1),
}

func wideScript(_ class, r rune) bool {
	return r >= 0x800 && r <= 0x9fa5 || r >= 0xac00 && r <= 0xd7ff
}

// isCased reports whether r is one of the letters that deepseek-llm lists: those with two cases in some version of
// Unicode, without several scripts that have them.
func isCased(r rune) bool {
	lo, hi := 0, len(casedLetters)
	for lo < hi {
		if mid := (lo + hi) / 2; casedLetters[mid][1] < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(casedLetters) && casedLetters[lo][0] <= r
}

var casedLetters = [...][2]rune{
	{0x41, 0x5a}, {0x61, 0x7a}, {0xb5, 0xb5}, {0xc0, 0xd6}, {0xd8, 0xf6}, {0xf8, 0x1ba}, {0x1bc, 0x1bf}, {0x1c4, 0x293},
	{0x295, 0x2af}, {0x370, 0x373}, {0x376, 0x376}, {0x377, 0x377}, {0x37b, 0x37d}, {0x37f, 0x37f}, {0x386, 0x386},
	{0x388, 0x38a}, {0x38c, 0x38c}, {0x38e, 0x3a1}, {0x3a3, 0x3f5}, {0x3f7, 0x481}, {0x48a, 0x52f}, {0x531, 0x556},
	{0x10a0, 0x10c5}, {0x13a0, 0x13f5}, {0x13f8, 0x13fd}, {0x1c90, 0x1cba}, {0x1cbd, 0x1cbf}, {0x1d00, 0x1d2b},
	{0x1d6b, 0x1d77}, {0x1d79, 0x1d9a}, {0x1e00, 0x1f15}, {0x1f18, 0x1f1d}, {0x1f20, 0x1f45}, {0x1f48, 0x1f4d},
	{0x1f50, 0x1f57}, {0x1f59, 0x1f59}, {0x1f5b, 0x1f5b}, {0x1f5d, 0x1f5d}, {0x1f5f, 0x1f7d}, {0x1f80, 0x1fb4},
	{0x1fb6, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4}, {0x1fc6, 0x1fcc}, {0x1fd0, 0x1fd3}, {0x1fd6, 0x1fdb},
	{0x1fe0, 0x1fec}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ffc}, {0x2102, 0x2102}, {0x2107, 0x2107}, {0x210a, 0x2113},
	{0x2115, 0x2115}, {0x2119, 0x211d}, {0x2124, 0x2124}, {0x2126, 0x2126}, {0x2128, 0x2128}, {0x212a, 0x212d},
	{0x212f, 0x2134}, {0x2139, 0x2139}, {0x213c, 0x213f}, {0x2145, 0x2149}, {0x214e, 0x214e}, {0x2183, 0x2183},
	{0x2184, 0x2184}, {0x2c00, 0x2c7b}, {0x2c7e, 0x2ce4}, {0x2ceb, 0x2cee}, {0x2cf2, 0x2cf2}, {0x2cf3, 0x2cf3},
	{0xa640, 0xa66d}, {0xa680, 0xa69b}, {0xa722, 0xa76f}, {0xa771, 0xa787}, {0xa78b, 0xa78e}, {0xab70, 0xabbf},
	{0xfb00, 0xfb06}, {0xfb13, 0xfb17}, {0xff21, 0xff3a}, {0xff41, 0xff5a}, {0x10400, 0x1044f}, {0x104b0, 0x104d3},
	{0x104d8, 0x104fb}, {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df}, {0x1e900, 0x1e943},
}
