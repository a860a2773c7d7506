package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Part is a span of a prompt. Special tells where it comes from: true for the template's own text, in which the texts of
// control tokens stand for these tokens; false for text from outside, in which they are plain text.
type Part struct {
	Text    string
	Special bool
}

// Encode appends the ids of text to dst. User-defined tokens are always recognised in it, control and unknown tokens only
// with parseSpecial. With addSpecial, BOS goes in front and EOS behind as the file asks. Bytes that are not UTF-8 are
// read as U+FFFD, one each, except by `llama` vocabularies, which have tokens for them; characters are not normalised.
func (t *Tokenizer) Encode(dst []int32, text string, addSpecial, parseSpecial bool) []int32 {
	if addSpecial && t.addBOS {
		dst = append(dst, t.bos)
	}
	dst = t.encode(dst, text, func(id int32, _, _ int) bool {
		return parseSpecial || t.kind[id]&kindMask == kindUserDefined
	})
	if addSpecial && t.addEOS {
		dst = append(dst, t.eos)
	}
	return dst
}

// EncodeParts appends the ids of a prompt made of parts. The ids are those of the joined text: a word that one part
// begins and the next ends is tokenised as one word, so cutting a prompt into parts changes nothing by itself. The one
// thing that parts change is which special tokens are recognised: no occurrence that touches a byte of a part that is not
// Special becomes a control or unknown token, or a token that the file marks as one (the vocabulary's corrections turn
// some of these user-defined). Other user-defined tokens are recognised everywhere.
//
// With addSpecial, BOS and EOS are added as the file asks unless the prompt begins or ends with them already, as rendered
// chat templates do.
func (t *Tokenizer) EncodeParts(dst []int32, parts []Part, addSpecial bool) []int32 {
	type span struct {
		from, to int
	}
	var user []span // bytes from outside, by rising position, neighbours joined
	var joined strings.Builder
	for _, p := range parts {
		from := joined.Len()
		joined.WriteString(p.Text)
		if p.Special || p.Text == "" {
			continue
		}
		if n := len(user); n > 0 && user[n-1].to == from {
			user[n-1].to = joined.Len()
		} else {
			user = append(user, span{from, joined.Len()})
		}
	}
	base := len(dst)
	if addSpecial && t.addBOS {
		dst = append(dst, t.bos)
	}
	start := len(dst)
	dst = t.encode(dst, joined.String(), func(id int32, from, to int) bool {
		if t.kind[id] == kindUserDefined {
			return true
		}
		for len(user) > 0 && user[0].to <= from {
			user = user[1:]
		}
		return len(user) == 0 || user[0].from >= to
	})
	if start > base && len(dst) > start && dst[start] == t.bos && t.kind[t.bos]&guarded != 0 {
		dst = append(dst[:base], dst[start:]...)
		start = base
	}
	if addSpecial && t.addEOS && (len(dst) == start || dst[len(dst)-1] != t.eos || t.kind[t.eos]&guarded == 0) {
		dst = append(dst, t.eos)
	}
	return dst
}

// encode cuts text at the special tokens that allowed accepts and merges what stands between them.
func (t *Tokenizer) encode(dst []int32, text string, allowed func(id int32, from, to int) bool) []int32 {
	w := t.scratch.Get().(*scratch)
	w.hits = t.special.find(w.hits[:0], text, allowed)
	at := 0
	for _, h := range partition(w.hits) {
		dst = t.plain(dst, text[at:h.from], w)
		dst = append(dst, h.id)
		at = h.to
	}
	dst = t.plain(dst, text[at:], w)
	w.trim()
	t.scratch.Put(w)
	return dst
}

// plain appends the ids of text without special tokens.
func (t *Tokenizer) plain(dst []int32, s string, w *scratch) []int32 {
	if s == "" {
		return dst
	}
	if t.spm == nil && !utf8.ValidString(s) {
		w.sound = repair(w.sound[:0], s)
		s = string(w.sound)
	}
	if t.spaced {
		w.sound = w.sound[:0]
		if t.prefix {
			w.sound = append(w.sound, spaceMark...)
		}
		w.sound = appendSpaced(w.sound, s)
		s = string(w.sound)
	}
	w.ends = t.split.ends(w.ends[:0], s)
	at := 0
	if t.spm != nil {
		for _, end := range w.ends {
			dst = t.spm.encode(dst, s[at:end], w)
			at = end
		}
		return dst
	}
	for _, end := range w.ends {
		dst = t.bpe.encode(dst, s[at:end], w)
		at = end
	}
	return dst
}
