package chat

import (
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// disguise carries the origin of text through a template. Each character of input that occurs in some control token is
// replaced, before rendering, by a stand-in: a private-use character that occurs neither in the input nor in the
// template. Stand-ins travel with the text through whatever the template does, one character for one; every function of
// ours that looks at text (comparison, split, startswith, tojson, ...) looks through them, and after rendering they tell
// which characters came from the input.
//
// The zero disguise hides nothing.
type disguise struct {
	alphabet []rune // sorted
	base     rune   // stand-in of alphabet[0]; the others follow
	ascii    [utf8.RuneSelf]rune
}

// privateUse are the three private-use areas.
var privateUse = [][2]rune{{0xE000, 0xF8FF}, {0xF0000, 0xFFFFD}, {0x100000, 0x10FFFD}}

func isPrivate(r rune) bool {
	return r >= 0xE000 && (r <= 0xF8FF || r >= 0xF0000)
}

// newDisguise chooses stand-ins for alphabet beside the characters in taken.
func newDisguise(alphabet []rune, taken map[rune]bool) (*disguise, error) {
	d := &disguise{alphabet: alphabet}
	if len(alphabet) == 0 {
		return d, nil
	}
	for _, area := range privateUse {
		run := 0
		for r := area[0]; r <= area[1]; r++ {
			if run++; taken[r] {
				run = 0
			}
			if run < len(alphabet) {
				continue
			}
			d.base = r - rune(len(alphabet)) + 1
			for i, a := range alphabet {
				if a < utf8.RuneSelf {
					d.ascii[a] = d.base + rune(i)
				}
			}
			return d, nil
		}
	}
	return nil, fmt.Errorf("the input uses so many private-use characters that no %d in a row are free", len(alphabet))
}

// hide gives the stand-in of r, or r.
func (d *disguise) hide(r rune) rune {
	if uint32(r) < utf8.RuneSelf {
		if s := d.ascii[r]; s != 0 {
			return s
		}
		return r
	}
	if n := len(d.alphabet); n > 0 && r <= d.alphabet[n-1] {
		if i := sort.Search(n, func(i int) bool { return d.alphabet[i] >= r }); d.alphabet[i] == r {
			return d.base + rune(i)
		}
	}
	return r
}

// show gives the character behind r.
func (d *disguise) show(r rune) rune {
	if i := r - d.base; i >= 0 && int(i) < len(d.alphabet) {
		return d.alphabet[i]
	}
	return r
}

func (d *disguise) hidden(r rune) bool { i := r - d.base; return i >= 0 && int(i) < len(d.alphabet) }

func (d *disguise) hideAll(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if len(d.alphabet) == 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if d.hidden(r) {
			return utf8.RuneError // only an escape resolved inside the template can make one
		}
		return d.hide(r)
	}, s)
}

func (d *disguise) showAll(s string) string {
	if len(d.alphabet) == 0 || plainASCII(s) {
		return s
	}
	return strings.Map(d.show, s)
}

// any reports whether s holds a stand-in.
func (d *disguise) any(s string) bool {
	return len(d.alphabet) > 0 && !plainASCII(s) && strings.IndexFunc(s, d.hidden) >= 0
}

func plainASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// specials is the set of control-token texts, arranged for finding them.
type specials struct {
	texts    map[string]bool
	lengths  [256][]int // by first byte
	alphabet []rune
}

func newSpecials(texts []string) *specials {
	s := &specials{texts: map[string]bool{}}
	runes := map[rune]bool{}
	for _, t := range texts {
		if t == "" || s.texts[t] {
			continue
		}
		s.texts[t] = true
		for _, r := range t {
			runes[r] = true
		}
		at := &s.lengths[t[0]]
		i := sort.SearchInts(*at, len(t))
		if i == len(*at) || (*at)[i] != len(t) {
			*at = append(*at, 0)
			copy((*at)[i+1:], (*at)[i:])
			(*at)[i] = len(t)
		}
	}
	for r := range runes {
		s.alphabet = append(s.alphabet, r)
	}
	sort.Slice(s.alphabet, func(i, j int) bool { return s.alphabet[i] < s.alphabet[j] })
	return s
}

// parts takes the disguise off rendered text. Wherever the text would spell a control token with the help of a character
// that came from the input, those characters become a User part: cut there, the token cannot be recognised.
func (s *specials) parts(d *disguise, rendered string) []Part {
	if rendered == "" {
		return nil
	}
	if !d.any(rendered) {
		return []Part{{Text: rendered}}
	}
	text := make([]byte, 0, len(rendered))
	from := make([]bool, 0, len(rendered)) // by byte: from the input
	for _, r := range rendered {
		n := len(text)
		text = utf8.AppendRune(text, d.show(r))
		for ; n < len(text); n++ {
			from = append(from, d.hidden(r))
		}
	}
	cut := make([]bool, len(text))
	for i := range text {
		for _, n := range s.lengths[text[i]] {
			if i+n > len(text) {
				break
			}
			if !s.texts[string(text[i:i+n])] {
				continue
			}
			for j := i; j < i+n; j++ {
				cut[j] = cut[j] || from[j]
			}
		}
	}
	var parts []Part
	start := 0
	for i := 1; i <= len(text); i++ {
		if i == len(text) || cut[i] != cut[start] {
			parts = append(parts, Part{Text: string(text[start:i]), User: cut[start]})
			start = i
		}
	}
	return parts
}

// isSpace is Python's str.isspace for one character.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f
}

// clip shortens text of a template for an error message, on one line.
func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "..."
	}
	return fmt.Sprintf("%q", s)
}
