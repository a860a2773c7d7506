// Package tokenizer turns text into token ids and back, by the vocabulary that a GGUF file carries. It knows no
// chat template, no tensor and no sampling.
package tokenizer

import (
	"math"
	"sync"
)

// The kinds of tokens, as the file numbers them. Tokens of kind undefined and byte are treated like normal ones.
const (
	kindUndefined = iota
	kindNormal
	kindUnknown
	kindControl
	kindUserDefined
	kindUnused
	kindByte
	kindCount

	kindMask = 0x0f
	// guarded marks what text from a user must never become: the file, or the text of the token, says that it controls
	// the model. A correction can make such a token user-defined for the output; the mark stays.
	guarded = 0x80
)

// Tokenizer is one vocabulary. All methods may be called from several goroutines at once.
type Tokenizer struct {
	text     texts  // as the file spells it
	piece    texts  // bytes each token stands for, special ones included
	kind     []byte // kind | guarded
	index    *textIndex
	bpe      bpe
	spm      *spm // merges by score; nil if it is bpe that merges
	split    splitter
	spaced   bool // tokens are spelled in UTF-8, with U+2581 for a space
	prefix   bool // plain text gets a space in front, at the beginning and behind a special token
	special  *matcher
	scratch  sync.Pool
	bos      int32
	eos      int32
	eot      int32
	fim      FIM
	addBOS   bool
	addEOS   bool
	eog      map[int32]bool
	longest  int  // bytes of the longest piece
	lossy    bool // some bytes have no token and can vanish
	warnings []string
}

// Vocab is the number of tokens; ids run from 0 to Vocab()-1.
func (t *Tokenizer) Vocab() int { return t.text.len() }

// MinTokens is a lower bound on the tokens that a text of n bytes makes: so many of the longest token. It costs nothing,
// so that a text that can never fit a context need not be cut up to find out. 0 for a vocabulary that loses bytes.
func (t *Tokenizer) MinTokens(n int) int {
	if t.lossy {
		return 0
	}
	return (n + t.longest - 1) / t.longest
}

// MaxBytes is the longest text that can make n tokens or fewer, math.MaxInt for a vocabulary that loses bytes.
func (t *Tokenizer) MaxBytes(n int) int {
	if t.lossy || n > math.MaxInt/t.longest {
		return math.MaxInt
	}
	return n * t.longest
}

// BOS is the id that begins a sequence, -1 if there is none.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS is the id that ends a sequence, -1 if there is none.
func (t *Tokenizer) EOS() int32 { return t.eos }

// EOT is the id that ends a turn, -1 if there is none. A file that does not name it gets it by its text.
func (t *Tokenizer) EOT() int32 { return t.eot }

// FIM are the tokens by which a text with a gap is told to a model; -1 where the vocabulary has none.
type FIM struct {
	Prefix, Suffix, Middle int32
	Repo, File             int32 // before the name of a repository, and of a file
}

// FIM is the vocabulary's tokens for filling a gap.
func (t *Tokenizer) FIM() FIM { return t.fim }

// AddBOS reports whether a sequence begins with BOS when special tokens are added.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// AddEOS reports whether a sequence ends with EOS when special tokens are added.
func (t *Tokenizer) AddEOS() bool { return t.addEOS }

// IsEOG reports whether id ends the generation: the end of the sequence, of a turn or a message, and the
// tokens that stand for these in known vocabularies.
func (t *Tokenizer) IsEOG(id int32) bool { return t.eog[id] }

// EOG lists the ids that end the generation, in no order.
func (t *Tokenizer) EOG() []int32 {
	ids := make([]int32, 0, len(t.eog))
	for id := range t.eog {
		ids = append(ids, id)
	}
	return ids
}

// IsControl reports whether id is a control or unknown token: one that has no text of its own in the output.
func (t *Tokenizer) IsControl(id int32) bool {
	if !t.known(id) {
		return false
	}
	k := t.kind[id] & kindMask
	return k == kindControl || k == kindUnknown
}

// Text is the token's text as the vocabulary spells it (a space reads "Ġ" there), "" for an id outside the
// vocabulary.
func (t *Tokenizer) Text(id int32) string {
	if !t.known(id) {
		return ""
	}
	return string(t.text.at(id))
}

// Lookup finds a token by the spelling that Text gives.
func (t *Tokenizer) Lookup(text string) (int32, bool) {
	id := t.index.find([]byte(text))
	return max(id, 0), id >= 0
}

// Warnings tells, one line each, what New found odd about the file but could work with.
func (t *Tokenizer) Warnings() []string { return t.warnings }

func (t *Tokenizer) known(id int32) bool { return id >= 0 && int(id) < t.text.len() }

// Piece returns the bytes that id stands for in the output: none for a control, unknown or unused token and for an id
// outside the vocabulary. The bytes may be part of a character, and must not be changed.
func (t *Tokenizer) Piece(id int32) []byte { return t.bytes(id, false) }

func (t *Tokenizer) bytes(id int32, special bool) []byte {
	if !t.known(id) || !special && t.IsControl(id) {
		return nil
	}
	return t.piece.at(id)
}

// Decode returns the bytes that a whole sequence stands for; they need not be whole characters. With special, control and
// unknown tokens give their text, otherwise nothing. Ids outside the vocabulary give nothing. Where the vocabulary has
// Encode put a space in front of a text, the first id loses one.
func (t *Tokenizer) Decode(ids []int32, special bool) []byte {
	n := 0
	for _, id := range ids {
		n += len(t.bytes(id, special))
	}
	out := make([]byte, 0, n)
	for i, id := range ids {
		p := t.bytes(id, special)
		if i == 0 {
			p = t.first(p)
		}
		out = append(out, p...)
	}
	return out
}

// first is the piece p as the beginning of a sequence.
func (t *Tokenizer) first(p []byte) []byte {
	if t.prefix && len(p) > 0 && p[0] == ' ' {
		return p[1:]
	}
	return p
}
