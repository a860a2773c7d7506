package tokenizer

// A splitter cuts text into the pieces within which merges may happen.
type splitter interface {
	// ends appends the end offset of every piece of s to dst. Pieces cover s without gaps, the last end is len(s).
	// s is structurally sound UTF-8 (see repair).
	ends(dst []int, s string) []int
}

// wordSplitter is the pattern shared by the qwen2, llama3 and glm4 families:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// where D is maxDigits. With marks (qwen35) letters are [\p{L}\p{M}], in the word and in the punctuation class. With bare
// (seed-coder) no [\r\n]* follows punctuation. The `\s*[\r\n]` of bailingmoe takes in all line breaks of a run as well.
type wordSplitter struct {
	maxDigits int
	marks     bool
	bare      bool
}

func (w wordSplitter) ends(dst []int, s string) []int {
	t := classes()
	letters := w.letters()
	for i := 0; i < len(s); {
		i = w.next(t, letters, s, i)
		dst = append(dst, i)
	}
	return dst
}

func (w wordSplitter) letters() class {
	if w.marks {
		return letter | mark
	}
	return letter
}

// next returns the end of the piece that starts at i.
func (w wordSplitter) next(t *classTable, letters class, s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	c, n := t.at(s, i)
	if c&letters != 0 {
		// Under marks the optional prefix may be a mark too, but the piece is the same run either way.
		return run(t, s, i+n, letters)
	}
	if c&number != 0 {
		return digits(t, s, i+n, w.maxDigits-1)
	}
	if c&newline == 0 && i+n < len(s) {
		if c2, n2 := t.at(s, i+n); c2&letters != 0 {
			return run(t, s, i+n+n2, letters)
		}
	}
	if end := punctuation(t, s, i, space|number|letters); end > i {
		for !w.bare && end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	return whitespace(t, s, i, true)
}

// digits returns the end of \p{N}{1,most} at i, or i where that does not match.
func digits(t *classTable, s string, i, most int) int {
	for k := 0; k < most && i < len(s); k++ {
		c, n := t.at(s, i)
		if c&number == 0 {
			break
		}
		i += n
	}
	return i
}

// gpt2Splitter is the pattern of GPT-2, where what no alternative takes (a run of white space) is a piece as well:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)
type gpt2Splitter struct{}

func (gpt2Splitter) ends(dst []int, s string) []int { return gpt2Ends(dst, s, 0, len(s)) }

// gpt2Ends splits s[from:to] as if nothing stood around it; the ends count from the start of s.
func gpt2Ends(dst []int, s string, from, to int) []int {
	t := classes()
	s = s[:to]
	for i := from; i < to; {
		i = gpt2Next(t, s, i)
		dst = append(dst, i)
	}
	return dst
}

func gpt2Next(t *classTable, s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	k := i
	if s[i] == ' ' && i+1 < len(s) {
		k++
	}
	switch c, n := t.at(s, k); {
	case c&letter != 0:
		return run(t, s, k+n, letter)
	case c&number != 0:
		return run(t, s, k+n, number)
	case c&space == 0:
		return punctuation(t, s, k, space|number|letter)
	}
	return whitespace(t, s, i, false)
}

// defaultSplitter serves files that name no pre-tokenizer. Four patterns, each applied inside the pieces of the one
// before; text between matches is a piece:
//
//	[\p{P}$+<=>^~|]+   then GPT-2's   then \p{N}+   then [0-9][0-9][0-9]
type defaultSplitter struct{}

func (defaultSplitter) ends(dst []int, s string) []int {
	t := classes()
	for i := 0; i < len(s); {
		end := i
		first := marksDefault(t, s, i)
		for end < len(s) && marksDefault(t, s, end) == first {
			_, n := t.at(s, end)
			end += n
		}
		base := len(dst)
		dst = gpt2Ends(dst, s, i, end)
		// Pieces without digits, nearly all, need no third and fourth pattern.
		outer := dst[base:]
		plain := true
		for from, k := i, 0; k < len(outer) && plain; from, k = outer[k], k+1 {
			plain = !hasNumber(t, s[from:outer[k]])
		}
		if !plain {
			outer = append([]int(nil), outer...)
			dst = dst[:base]
			from := i
			for _, to := range outer {
				dst = numberEnds(dst, t, s, from, to)
				from = to
			}
		}
		i = end
	}
	return dst
}

// marksDefault reports whether the code point at s[i] is one of [\p{P}$+<=>^~|].
func marksDefault(t *classTable, s string, i int) bool {
	switch s[i] {
	case '$', '+', '<', '=', '>', '^', '~', '|':
		return true
	}
	c, _ := t.at(s, i)
	return c&punct != 0
}

func hasNumber(t *classTable, s string) bool {
	for i := 0; i < len(s); {
		c, n := t.at(s, i)
		if c&number != 0 {
			return true
		}
		i += n
	}
	return false
}

// numberEnds splits s[from:to] into runs of numbers and runs of the rest, then cuts three ASCII digits at a time
// out of each run of numbers.
func numberEnds(dst []int, t *classTable, s string, from, to int) []int {
	for i := from; i < to; {
		c, n := t.at(s, i)
		isNum := c & number
		end := i + n
		for end < to {
			c, n = t.at(s, end)
			if c&number != isNum {
				break
			}
			end += n
		}
		if isNum != 0 {
			rest := i // start of what no triple has taken
			for k := i; k+3 <= end; {
				if digit(s[k]) && digit(s[k+1]) && digit(s[k+2]) {
					if rest < k {
						dst = append(dst, k)
					}
					k += 3
					dst = append(dst, k)
					rest = k
				} else {
					_, n := t.at(s, k)
					k += n
				}
			}
			if rest < end {
				dst = append(dst, end)
			}
		} else {
			dst = append(dst, end)
		}
		i = end
	}
	return dst
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

// contraction returns the length of s, t, re, ve, m, ll or d at the start of s, 0 if none stands there. fold takes
// upper case as well.
func contraction(s string, fold bool) int {
	if s == "" {
		return 0
	}
	a := s[0]
	var b byte
	if len(s) > 1 {
		b = s[1]
	}
	if fold { // only ASCII letters can reach the comparisons below
		a |= 0x20
		b |= 0x20
	}
	switch {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 1
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 2
	}
	return 0
}

// run returns the end of the run of code points having one of the properties of set, from i on.
func run(t *classTable, s string, i int, set class) int {
	for i < len(s) {
		if b := s[i]; b < 0x80 {
			if t.ascii[b]&set == 0 {
				break
			}
			i++
			continue
		}
		c, n := t.wide(s, i)
		if c&set == 0 {
			break
		}
		i += n
	}
	return i
}

// punctuation returns the end of " ?[^exclude]+" at i, or i where that does not match.
func punctuation(t *classTable, s string, i int, exclude class) int {
	k := i
	if s[i] == ' ' {
		k++
	}
	end := k
	for end < len(s) {
		c, n := t.at(s, end)
		if c&exclude != 0 {
			break
		}
		end += n
	}
	if end == k {
		return i
	}
	return end
}

// whitespace returns the end of the piece of white space at i: with lines, up to and including the last line break
// of the run if there is one; otherwise all of the run but its last code point, which belongs to the word that
// follows; all of it at the end of the text or when it has one code point only.
func whitespace(t *classTable, s string, i int, lines bool) int {
	end, last, count, brk := i, i, 0, 0
	for end < len(s) {
		c, n := t.at(s, end)
		if c&space == 0 {
			break
		}
		last = end
		end += n
		count++
		if c&newline != 0 {
			brk = end
		}
	}
	switch {
	case lines && brk > 0:
		return brk
	case end < len(s) && count > 1:
		return last
	}
	return end
}
