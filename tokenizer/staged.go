package tokenizer

// A stage is one pattern of several. It returns the first match of s that begins at i or behind it, len(s) twice if there is
// none; text before i is not looked at.
type stage func(t *classTable, s string, i int) (from, to int)

// stagedSplitter applies each stage inside the pieces of the one before. Text between matches is a piece.
type stagedSplitter []stage

func (q *stagedSplitter) ends(dst []int, s string) []int {
	return q.cut(dst, classes(), s, 0, len(s), 0)
}

// cut splits s[from:to] by the stages from k on.
func (q *stagedSplitter) cut(dst []int, t *classTable, s string, from, to, k int) []int {
	if k == len(*q) {
		return append(dst, to)
	}
	find := (*q)[k]
	for part := s[:to]; from < to; {
		a, b := find(t, part, from)
		if from < a {
			dst = q.cut(dst, t, s, from, a, k+1)
		}
		if a < b {
			dst = q.cut(dst, t, s, a, b, k+1)
		}
		from = b
	}
	return dst
}

// is is a set of code points.
type is func(c class, r rune) bool

func (f is) at(t *classTable, s string, i int) (bool, int) {
	r, n := decode(s, i)
	return f(t.of(r), r), n
}

// runsOf is [f]+.
func runsOf(f is) stage {
	return func(t *classTable, s string, i int) (int, int) {
		for i < len(s) {
			ok, n := f.at(t, s, i)
			if !ok {
				i += n
				continue
			}
			end := i + n
			for end < len(s) {
				ok, n := f.at(t, s, end)
				if !ok {
					break
				}
				end += n
			}
			return i, end
		}
		return i, i
	}
}

// spaceAnd is \s?[f]+.
func spaceAnd(f is) stage {
	find := runsOf(f)
	return func(t *classTable, s string, i int) (int, int) {
		from, to := find(t, s, i)
		if from == to {
			return from, to
		}
		// White space stands in front, unless it is in f itself and so in the run: then the run begins with it.
		for k := i; k < from; {
			c, n := t.at(s, k)
			if k+n == from && c&space != 0 {
				return k, to
			}
			k += n
		}
		return from, to
	}
}

// numbers is \p{N}{1,most}.
func numbers(most int) stage {
	return func(t *classTable, s string, i int) (int, int) {
		for i < len(s) {
			c, n := t.at(s, i)
			if c&number != 0 {
				return i, digits(t, s, i, most)
			}
			i += n
		}
		return i, i
	}
}

func isNumber(c class, _ rune) bool { return c&number != 0 }

// lineBreaks is [\r\n].
func lineBreaks(_ *classTable, s string, i int) (int, int) {
	for ; i < len(s); i++ {
		if s[i] == '\r' || s[i] == '\n' {
			return i, i + 1
		}
	}
	return i, i
}

// spaceAtEnd is \s+$.
func spaceAtEnd(t *classTable, s string, i int) (int, int) {
	from := -1
	for i < len(s) {
		c, n := t.at(s, i)
		if c&space == 0 {
			from = -1
		} else if from < 0 {
			from = i
		}
		i += n
	}
	if from < 0 {
		from = i
	}
	return from, i
}

// threeDigits is [0-9][0-9][0-9].
func threeDigits(_ *classTable, s string, i int) (int, int) {
	for ; i+3 <= len(s); i++ {
		if digit(s[i]) && digit(s[i+1]) && digit(s[i+2]) {
			return i, i + 3
		}
	}
	return len(s), len(s)
}

func gpt2Stage(t *classTable, s string, i int) (int, int) { return i, gpt2Next(t, s, i) }

// starcoder is \p{N}, then the pattern of GPT-2.
var starcoder = &stagedSplitter{numbers(1), gpt2Stage}

// falcon is [\p{P}$+<=>^~|`]+, then the pattern of GPT-2, then [0-9][0-9][0-9].
var falcon = &stagedSplitter{
	func(t *classTable, s string, i int) (int, int) {
		in := func(i int) bool { return s[i] == '`' || marksDefault(t, s, i) }
		for i < len(s) && !in(i) {
			_, n := t.at(s, i)
			i += n
		}
		end := i
		for end < len(s) && in(end) {
			_, n := t.at(s, end)
			end += n
		}
		return i, end
	},
	gpt2Stage,
	threeDigits,
}

// miniCPM5 is \p{N}{1,3}, then the pattern of llama3 with \p{N}+.
var miniCPM5 = &stagedSplitter{
	numbers(3),
	func(t *classTable, s string, i int) (int, int) {
		return i, wordSplitter{maxDigits: 3}.next(t, letter, s, i)
	},
}

// lagunaSplitter is [^\n]+|[\n]+, then the pattern of qwen2.
type lagunaSplitter struct{}

func (lagunaSplitter) ends(dst []int, s string) []int {
	t := classes()
	for i := 0; i < len(s); {
		to := lineEnd(s, i)
		for part := s[:to]; i < to; {
			i = wordSplitter{maxDigits: 1}.next(t, letter, part, i)
			dst = append(dst, i)
		}
	}
	return dst
}

// lineEnd returns the end of [^\n]+|[\n]+ at i.
func lineEnd(s string, i int) int {
	first := s[i] == '\n'
	for i++; i < len(s) && (s[i] == '\n') == first; i++ {
	}
	return i
}
