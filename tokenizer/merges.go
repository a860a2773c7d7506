package tokenizer

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// spellPieces fills in the bytes of every token: those of normal tokens from their spelling, those of special ones verbatim,
// none for unused ones.
func (t *Tokenizer) spellPieces() error {
	t.piece.blob = make([]byte, 0, len(t.text.blob))
	for id := range int32(t.text.len()) {
		text := t.text.at(id)
		switch kind := t.kind[id] & kindMask; {
		case kind == kindUnused:
		case kind == kindControl, kind == kindUnknown, kind == kindUserDefined:
			t.piece.blob = append(t.piece.blob, text...)
		case !t.spaced:
			t.piece.blob = appendUnprintable(t.piece.blob, text)
		case kind == kindByte:
			b, ok := parseByte(text)
			if !ok {
				return fmt.Errorf("tokenizer: %stokens has %.80q as byte token %d, want a text from <0x00> to <0xFF>", keyPrefix, text, id)
			}
			t.piece.blob = append(t.piece.blob, b)
		default:
			t.piece.blob = appendUnspaced(t.piece.blob, text)
		}
		t.piece.close()
		t.longest = max(t.longest, len(t.piece.at(id)))
		if t.spaced {
			t.longest = max(t.longest, len(text)) // U+2581 may stand for itself
		}
	}
	return nil
}

// mergeable reports whether plain text may become token id, and whether the token's spelling means the same bytes there
// as it does when decoded (a user-defined token's text is verbatim, a byte token's is none).
func (t *Tokenizer) mergeable(id int32) bool {
	if t.kind[id]&guarded != 0 {
		return false
	}
	switch t.kind[id] & kindMask {
	case kindUnused:
		return false
	case kindByte:
		return !t.spaced
	case kindUserDefined:
		if t.spaced {
			return !bytes.Contains(t.text.at(id), []byte(spaceMark))
		}
		for _, b := range t.text.at(id) {
			if b < 33 || b > 126 {
				return false
			}
		}
	}
	return true
}

// byteToken returns the token <0xXX> for b, -1 if there is none.
func (t *Tokenizer) byteToken(b byte) int32 {
	id := t.index.find(byteText(b))
	if id < 0 || t.kind[id]&kindMask != kindByte {
		return -1
	}
	return id
}

func (t *Tokenizer) lostBytes(n int, why string) {
	if n > 0 {
		t.lossy = true
		t.warn("%stokens lacks a token for %d of the 256 bytes: text with these bytes loses them where no %s takes them in", keyPrefix, n, why)
	}
}

// symbols numbers what merges work on while they are read.
type symbols struct {
	t        *Tokenizer
	extra    map[string]int32
	spelling []byte
}

// of returns the symbol of text, a new one if need be.
func (y *symbols) of(text string) int32 {
	t, b := y.t, &y.t.bpe
	y.spelling = append(y.spelling[:0], text...)
	if id := t.index.find(y.spelling); id >= 0 && t.mergeable(id) {
		return id
	}
	id, ok := y.extra[text]
	if !ok {
		id = b.nVocab + int32(len(y.extra))
		y.extra[text] = id
		if t.spaced {
			b.extra.blob = append(b.extra.blob, text...)
		} else {
			b.extra.blob = appendUnprintable(b.extra.blob, y.spelling)
		}
		b.extra.close()
	}
	return id
}

func (t *Tokenizer) loadMerges(f *fields) error {
	b := &t.bpe
	b.nVocab = int32(t.text.len())
	b.takeAll = f.pre.ignoreMerges
	b.cache = newPieceCache()
	b.extra = newTexts(0)
	y := &symbols{t: t, extra: map[string]int32{}}
	if t.spaced {
		b.whole = func(piece string, buf []byte) (int32, []byte) { return t.plainToken(t.index.findString(piece)), buf }
	} else {
		b.whole = func(piece string, buf []byte) (int32, []byte) {
			buf = appendPrintable(buf, piece)
			return t.plainToken(t.index.find(buf)), buf
		}
		lost := 0
		for c := range b.bytes {
			b.bytes[c] = y.of(string(printable[c]))
			if b.bytes[c] >= b.nVocab {
				lost++
			}
		}
		b.spare = b.bytes
		t.lostBytes(lost, "merge")
	}
	joinsMarks := false
	if f.merges == nil {
		if err := t.rankMerges(); err != nil {
			return err
		}
	} else {
		n := f.merges.Len()
		b.merges = newPairMap(n)
		total := 0
		var joined []byte
		for i := range n {
			s := f.merges.At(i)
			if total += len(s); total > maxText {
				return fmt.Errorf("tokenizer: %smerges has more than %d bytes of text", keyPrefix, maxText)
			}
			// The left half is never empty, so a space at the very beginning belongs to it.
			k := 0
			if len(s) > 1 {
				k = strings.IndexByte(s[1:], ' ') + 1
			}
			if k == 0 || k == len(s)-1 {
				return fmt.Errorf("tokenizer: %smerges has %.80q as entry %d, want two parts with a space between", keyPrefix, s, i)
			}
			joined = append(append(joined[:0], s[:k]...), s[k+1:]...)
			joinsMarks = joinsMarks || t.spaced && joinsWords(joined)
			b.merges.add(y.of(s[:k]), y.of(s[k+1:]), y.of(string(joined)), uint32(i))
		}
	}
	if t.spaced {
		t.loadCharacters(y)
		t.split = spacedSplitter{lines: true, words: !joinsMarks}
	}
	return nil
}

// plainToken is id if plain text may become it, else -1.
func (t *Tokenizer) plainToken(id int32) int32 {
	if id >= 0 && t.mergeable(id) {
		return id
	}
	return -1
}

// loadCharacters readies the merges for UTF-8 characters. Merges have all been read: a character that is neither a token nor
// part of a merge is left to its bytes.
func (t *Tokenizer) loadCharacters(y *symbols) {
	b := &t.bpe
	chars := map[string]int32{}
	for s, sym := range y.extra {
		if _, n := utf8.DecodeRuneInString(s); n == len(s) {
			chars[s] = sym
		}
	}
	b.wide = func(char string) int32 {
		if id := t.plainToken(t.index.findString(char)); id >= 0 {
			return id
		}
		if sym, ok := chars[char]; ok {
			return sym
		}
		return -1
	}
	b.loose = b.nVocab + int32(b.extra.len())
	lost := 0
	for c := range 256 {
		b.extra.blob = append(b.extra.blob, byte(c))
		b.extra.close()
		b.spare[c] = t.byteToken(byte(c))
		if b.spare[c] < 0 {
			b.spare[c] = math.MaxInt32
			lost++
		}
	}
	for c := range 128 {
		b.bytes[c] = b.wide(string(rune(c)))
		if b.bytes[c] < 0 {
			b.bytes[c] = b.loose + int32(c)
		}
	}
	t.lostBytes(lost, "character")
}

// maxRanked is the longest token, in bytes as spelled, that a file without merges may have.
const maxRanked = 512

// rankMerges derives the merges of a vocabulary whose ids are the ranks: two tokens merge if their joined text is one, those
// with the lowest id first.
func (t *Tokenizer) rankMerges() error {
	type merge struct{ left, right, result int32 }
	var all []merge
	for id := range int32(t.text.len()) {
		if !t.mergeable(id) || t.kind[id]&kindMask != kindNormal {
			continue
		}
		text := t.text.at(id)
		if len(text) > maxRanked {
			return fmt.Errorf("tokenizer: %smerges is missing, and token %d has %d bytes: at most %d can be taken apart", keyPrefix, id, len(text), maxRanked)
		}
		for k := 1; k < len(text); k++ {
			if !utf8.RuneStart(text[k]) {
				continue
			}
			if l := t.plainToken(t.index.find(text[:k])); l >= 0 {
				if r := t.plainToken(t.index.find(text[k:])); r >= 0 {
					all = append(all, merge{l, r, id})
				}
			}
		}
		if len(all) > maxMerges {
			return fmt.Errorf("tokenizer: %smerges is missing, and the tokens come apart in more than %d ways", keyPrefix, maxMerges)
		}
	}
	t.bpe.merges = newPairMap(len(all))
	for _, m := range all {
		t.bpe.merges.add(m.left, m.right, m.result, uint32(m.result))
	}
	return nil
}

// loadScores readies merging by score. Bytes that have no token of their own become unknown.
func (t *Tokenizer) loadScores(f *fields, unknown int32) error {
	m := &spm{index: t.index, order: make([]uint32, t.text.len()), cache: newPieceCache()}
	joinsMarks := false
	for id := range int32(t.text.len()) {
		score := f.scores[id]
		if math.IsNaN(score) {
			return fmt.Errorf("tokenizer: %sscores of token %d (%.80q) is not a number", keyPrefix, id, t.text.at(id))
		}
		m.order[id] = noOrder
		if t.mergeable(id) {
			m.order[id] = scoreOrder(float32(score))
			m.longest = max(m.longest, len(t.text.at(id)))
			joinsMarks = joinsMarks || joinsWords(t.text.at(id))
		}
	}
	lost := 0
	for c := range m.bytes {
		id := t.byteToken(byte(c))
		if id < 0 {
			id = t.plainToken(t.index.find([]byte{byte(c)}))
		}
		if id < 0 {
			id = unknown
		}
		if id < 0 {
			lost++
		}
		m.bytes[c] = id
	}
	t.lostBytes(lost, "token")
	t.spm = m
	t.split = spacedSplitter{words: !joinsMarks}
	return nil
}
