package tokenizer

// casedSplitter is the pattern of the gpt-4o family (o200k), where a word is cut before a capital that follows a small letter:
//
//	[^\r\n\p{L}\p{N}]?[U]*[W]+C?|[^\r\n\p{L}\p{N}]?[U]+[W]*C?|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// with U = \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}, W = \p{Ll}\p{Lm}\p{Lo}\p{M}, C = (?i:'s|'t|'re|'ve|'m|'ll|'d) and D = maxDigits.
// Without contractions (tekken) there is no C, without slash (kimi-k2) no / after the line breaks. Code points of the class
// apart (Han in kimi-k2, else none) are in neither U nor W, and a run of them is a piece before all else.
//
// marks is \p{M}, or nothing: then U and W are without it. The published pattern of o200k has it, but llama.cpp leaves it out
// for gpt-4o, and the ids that the fixtures want of this family are llama.cpp's. Text with combining marks (Hindi, Tamil,
// Thai, vowelled Arabic) is cut finer that way.
type casedSplitter struct {
	contractions bool
	slash        bool
	maxDigits    int
	apart        class
	marks        class
}

func (w casedSplitter) ends(dst []int, s string) []int {
	t := classes()
	for i := 0; i < len(s); {
		i = w.next(t, s, i)
		dst = append(dst, i)
	}
	return dst
}

// next returns the end of the piece that starts at i.
func (w casedSplitter) next(t *classTable, s string, i int) int {
	c, n := t.at(s, i)
	if c&w.apart != 0 {
		return run(t, s, i+n, w.apart)
	}
	// A word may have a code point in front that is no letter, number or line break. The words that end in a W are tried
	// first, with that code point and without; a mark is the one thing that can be either.
	capitals := -1
	if c&(newline|letter|number) == 0 && i+n < len(s) {
		small, all := w.word(t, s, i+n)
		if small > 0 {
			return w.contracted(s, small)
		}
		if all > i+n {
			capitals = all
		}
	}
	if c&(letter|w.marks) != 0 {
		small, all := w.word(t, s, i)
		if small > 0 {
			return w.contracted(s, small)
		}
		if capitals < 0 {
			capitals = all
		}
	}
	if capitals >= 0 {
		return w.contracted(s, capitals)
	}
	if c&number != 0 {
		return digits(t, s, i+n, w.maxDigits-1)
	}
	if end := punctuation(t, s, i, space|number|letter); end > i {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || w.slash && s[end] == '/') {
			end++
		}
		return end
	}
	return whitespace(t, s, i, true)
}

// word returns where [U]*[W]+ at i ends, 0 if it does not match, and where [U]* ends. If no small letter follows the
// longest [U]*, it gives back as much as [W]+ needs: all behind its last code point that is in both.
func (w casedSplitter) word(t *classTable, s string, i int) (small, all int) {
	both := caseless | w.marks
	for i < len(s) {
		c, n := t.at(s, i)
		if c&w.apart != 0 {
			break
		}
		if c&(upper|both) == 0 {
			if c&lower != 0 {
				small = w.smalls(t, s, i+n)
			}
			break
		}
		i += n
		if c&both != 0 {
			small = i
		}
	}
	return small, i
}

// smalls returns the end of [W]* from i on.
func (w casedSplitter) smalls(t *classTable, s string, i int) int {
	if w.apart == 0 {
		return run(t, s, i, lower|caseless|w.marks)
	}
	for i < len(s) {
		c, n := t.at(s, i)
		if c&(lower|caseless|w.marks) == 0 || c&w.apart != 0 {
			break
		}
		i += n
	}
	return i
}

// contracted returns the end of C? at i.
func (w casedSplitter) contracted(s string, i int) int {
	if w.contractions && i < len(s) && s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 {
			return i + 1 + n
		}
	}
	return i
}
