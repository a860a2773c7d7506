package tokenizer

import "unicode/utf8"

// Stream turns ids into text as they come, whole characters only: bytes that may still become a character are held
// back, bytes that no longer can become U+FFFD at once, one for each broken sequence. What Push and Flush return is valid
// UTF-8. A Stream is for one goroutine.
type Stream struct {
	t       *Tokenizer
	special bool
	show    map[int32]bool // control tokens that give their text all the same
	opening bool           // the next id begins a sequence
	out     []byte
	held    [utf8.UTFMax]byte // a sound beginning of a character
	nHeld   int
	lo, hi  byte // what the next byte of held must lie within
	missing int  // bytes that held lacks
}

// NewStream begins a text that continues one: what a model answers. With special, control and unknown tokens give their text.
func (t *Tokenizer) NewStream(special bool) *Stream {
	return &Stream{t: t, special: special, out: make([]byte, 0, 256)}
}

// Open says that the next id begins a sequence, and returns s: the text is then the one that Decode gives. It differs where
// the vocabulary has Encode put a space in front.
func (s *Stream) Open() *Stream {
	s.opening = true
	return s
}

// Show makes some control tokens give their text, for whoever reads an answer by its marks, and returns s. The map must not
// change afterwards.
func (s *Stream) Show(ids map[int32]bool) *Stream {
	s.show = ids
	return s
}

// Push returns the text that id completes, often nothing. The bytes are valid until the next call.
func (s *Stream) Push(id int32) []byte {
	s.out = s.out[:0]
	p := s.t.bytes(id, s.special || s.show[id])
	if s.opening {
		p = s.t.first(p)
		s.opening = false
	}
	if s.nHeld == 0 && utf8.Valid(p) {
		s.out = append(s.out, p...)
		return s.out
	}
	for _, b := range p {
		s.add(b)
	}
	return s.out
}

// Flush ends the text: held bytes become U+FFFD. The stream is as new afterwards.
func (s *Stream) Flush() []byte {
	s.out = s.out[:0]
	s.breakOff()
	return s.out
}

func (s *Stream) breakOff() {
	if s.nHeld > 0 {
		s.out = append(s.out, "\uFFFD"...)
		s.nHeld = 0
	}
}

func (s *Stream) add(b byte) {
	if s.nHeld > 0 {
		if b >= s.lo && b <= s.hi {
			s.held[s.nHeld] = b
			s.nHeld++
			s.missing--
			s.lo, s.hi = 0x80, 0xbf
			if s.missing == 0 {
				s.out = append(s.out, s.held[:s.nHeld]...)
				s.nHeld = 0
			}
			return
		}
		s.breakOff()
	}
	s.lo, s.hi = 0x80, 0xbf
	switch {
	case b < 0x80:
		s.out = append(s.out, b)
		return
	case b >= 0xc2 && b <= 0xdf:
		s.missing = 1
	case b >= 0xe0 && b <= 0xef:
		s.missing = 2
		if b == 0xe0 { // shorter forms exist
			s.lo = 0xa0
		} else if b == 0xed { // surrogates
			s.hi = 0x9f
		}
	case b >= 0xf0 && b <= 0xf4:
		s.missing = 3
		if b == 0xf0 {
			s.lo = 0x90
		} else if b == 0xf4 { // beyond U+10FFFF
			s.hi = 0x8f
		}
	default:
		s.out = append(s.out, "\uFFFD"...)
		return
	}
	s.held[0] = b
	s.nHeld = 1
}
