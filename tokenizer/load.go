package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"terrace/gguf"
)

const keyPrefix = "tokenizer.ggml."

// New reads the vocabulary of a GGUF file. It supports `gpt2` (byte-level pair merging) with the pre-tokenizers of the
// gpt-2, qwen2, qwen35, llama3 and glm4 families; a file that names none gets the default one and a warning. An
// error names the metadata key and what disagrees.
func New(md *gguf.Metadata) (*Tokenizer, error) {
	f, err := read(md)
	if err != nil {
		return nil, err
	}
	return f.build()
}

// stringList is a list of texts as a file stores them.
type stringList interface {
	Len() int
	At(i int) string
}

// fields is what the metadata says, before any of it is believed.
type fields struct {
	pre    preTokenizer
	tokens stringList
	merges stringList
	types  []int64          // nil if absent
	ids    map[string]int64 // "bos" and so on, those present
	addBOS *bool            // nil if absent
	addEOS *bool
	notes  []string
}

func read(md *gguf.Metadata) (*fields, error) {
	f := &fields{ids: map[string]int64{}}
	model, err := md.String(keyPrefix + "model")
	if err != nil {
		return nil, err
	}
	if model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: %smodel is %q, supported is \"gpt2\": %w", keyPrefix, model, errors.ErrUnsupported)
	}
	pre := "default"
	if md.Has(keyPrefix + "pre") {
		if pre, err = md.String(keyPrefix + "pre"); err != nil {
			return nil, err
		}
	} else {
		f.notes = append(f.notes, keyPrefix+"pre is missing: the default pre-tokenizer is used, which may not be the one the model was trained with")
	}
	var ok bool
	if f.pre, ok = preTokenizers[pre]; !ok {
		return nil, fmt.Errorf("tokenizer: %spre is %q, supported are %s: %w", keyPrefix, pre,
			strings.Join(slices.Sorted(maps.Keys(preTokenizers)), " "), errors.ErrUnsupported)
	}
	if f.tokens, err = md.Strings(keyPrefix + "tokens"); err != nil {
		return nil, err
	}
	if f.merges, err = md.Strings(keyPrefix + "merges"); err != nil {
		return nil, err
	}
	if md.Has(keyPrefix + "token_type") {
		if f.types, err = md.Ints(keyPrefix + "token_type"); err != nil {
			return nil, err
		}
		if len(f.types) != f.tokens.Len() {
			return nil, fmt.Errorf("tokenizer: %stoken_type has %d entries, %stokens has %d", keyPrefix, len(f.types), keyPrefix, f.tokens.Len())
		}
	}
	if md.Has(keyPrefix + "scores") {
		scores, err := md.Floats(keyPrefix + "scores")
		if err != nil {
			return nil, err
		}
		if len(scores) != f.tokens.Len() {
			return nil, fmt.Errorf("tokenizer: %sscores has %d entries, %stokens has %d", keyPrefix, len(scores), keyPrefix, f.tokens.Len())
		}
	}
	for _, name := range []string{"bos", "eos", "eot", "eom", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"} {
		key := keyPrefix + name + "_token_id"
		if !md.Has(key) {
			continue
		}
		v, err := md.Ints(key) // so that a negative number is just out of range
		if err != nil {
			return nil, err
		}
		if len(v) != 1 {
			return nil, fmt.Errorf("tokenizer: %s has %d entries, want 1", key, len(v))
		}
		f.ids[name] = v[0]
	}
	for name, at := range map[string]**bool{"add_bos_token": &f.addBOS, "add_eos_token": &f.addEOS} {
		if md.Has(keyPrefix + name) {
			v, err := md.Bool(keyPrefix + name)
			if err != nil {
				return nil, err
			}
			*at = &v
		}
	}
	return f, nil
}

const (
	maxTokens = 1 << 24 // far above any vocabulary; keeps symbols within 31 bits
	maxMerges = 1 << 26
	maxText   = 1 << 30 // bytes of the tokens, and of the merges, so that offsets fit
)

func (f *fields) build() (*Tokenizer, error) {
	n := f.tokens.Len()
	if n == 0 || n > maxTokens {
		return nil, fmt.Errorf("tokenizer: %stokens has %d entries, want 1 to %d", keyPrefix, n, maxTokens)
	}
	if f.merges.Len() > maxMerges {
		return nil, fmt.Errorf("tokenizer: %smerges has %d entries, at most %d are supported", keyPrefix, f.merges.Len(), maxMerges)
	}
	t := &Tokenizer{
		text: newTexts(n), piece: newTexts(n), kind: make([]byte, n),
		split: f.pre.split, warnings: f.notes, eog: map[int32]bool{},
	}
	t.scratch.New = func() any { return new(scratch) }
	if err := t.loadTokens(f); err != nil {
		return nil, err
	}
	t.assignRoles(f)
	t.spellPieces()

	var special []int32
	for id := range int32(n) {
		switch t.kind[id] & kindMask {
		case kindControl, kindUnknown, kindUserDefined:
			special = append(special, id)
		}
	}
	t.special = newMatcher(&t.text, special)
	if err := t.loadMerges(f); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tokenizer) warn(format string, args ...any) {
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
}

func (t *Tokenizer) loadTokens(f *fields) error {
	n := f.tokens.Len()
	total := 0
	for i := range n {
		total += len(f.tokens.At(i))
	}
	if total > maxText {
		return fmt.Errorf("tokenizer: %stokens has %d bytes of text, at most %d are supported", keyPrefix, total, maxText)
	}
	t.text.blob = make([]byte, 0, total)
	t.index = newTextIndex(&t.text, n)
	empty := 0
	for i := range n {
		s := f.tokens.At(i)
		if s == "" {
			empty++
			s = "[EMPTY_" + strconv.Itoa(i) + "]"
		}
		t.text.blob = append(t.text.blob, s...)
		t.text.close()
		if old := t.index.add(int32(i)); old >= 0 {
			return fmt.Errorf("tokenizer: %stokens has %q twice, as %d and as %d", keyPrefix, s, old, i)
		}
		kind := int64(kindNormal)
		if f.types != nil {
			kind = f.types[i]
		}
		if kind < 0 || kind >= kindCount {
			return fmt.Errorf("tokenizer: %stoken_type of token %d (%q) is %d, want 0 to %d", keyPrefix, i, s, kind, kindCount-1)
		}
		t.kind[i] = byte(kind)
		if kind == kindControl || kind == kindUnknown {
			t.kind[i] |= guarded
		}
	}
	if empty > 0 {
		t.warn("%stokens has %d empty entries, named [EMPTY_<id>]", keyPrefix, empty)
	}
	return nil
}

// spellPieces fills in the bytes of every token: those of normal tokens from their printable spelling, those of special
// ones verbatim, none for unused ones.
func (t *Tokenizer) spellPieces() {
	t.piece.blob = make([]byte, 0, len(t.text.blob))
	for id := range int32(t.text.len()) {
		switch t.kind[id] & kindMask {
		case kindUnused:
		case kindControl, kindUnknown, kindUserDefined:
			t.piece.blob = append(t.piece.blob, t.text.at(id)...)
		default:
			t.piece.blob = appendUnprintable(t.piece.blob, t.text.at(id))
		}
		t.piece.close()
		t.longest = max(t.longest, len(t.piece.at(id)))
	}
}

// mergeable reports whether plain text may become token id, and whether the token's spelling means the same bytes there
// as it does when decoded (a user-defined token's text is verbatim).
func (t *Tokenizer) mergeable(id int32) bool {
	if t.kind[id]&guarded != 0 {
		return false
	}
	switch t.kind[id] & kindMask {
	case kindUnused:
		return false
	case kindUserDefined:
		for _, b := range t.text.at(id) {
			if b < 33 || b > 126 {
				return false
			}
		}
	}
	return true
}

func (t *Tokenizer) loadMerges(f *fields) error {
	b := &t.bpe
	b.nVocab = int32(t.text.len())
	b.takeAll = f.pre.ignoreMerges
	b.whole = func(piece string, buf []byte) (int32, []byte) {
		buf = appendPrintable(buf, piece)
		if id := t.index.find(buf); id >= 0 && t.mergeable(id) {
			return id, buf
		}
		return -1, buf
	}
	b.cache = newPieceCache()
	b.extra = newTexts(0)
	extra := map[string]int32{}
	var spelling []byte
	symbol := func(s string) int32 {
		spelling = append(spelling[:0], s...)
		if id := t.index.find(spelling); id >= 0 && t.mergeable(id) {
			return id
		}
		id, ok := extra[s]
		if !ok {
			id = b.nVocab + int32(len(extra))
			extra[s] = id
			b.extra.blob = appendUnprintable(b.extra.blob, spelling)
			b.extra.close()
		}
		return id
	}
	lost := 0
	for c := range b.bytes {
		b.bytes[c] = symbol(string(printable[c]))
		if b.bytes[c] >= b.nVocab {
			lost++
		}
	}
	if lost > 0 {
		t.lossy = true
		t.warn("%stokens lacks a token for %d of the 256 bytes: text with these bytes loses them where no merge takes them in", keyPrefix, lost)
	}
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
			return fmt.Errorf("tokenizer: %smerges has %q as entry %d, want two parts with a space between", keyPrefix, s, i)
		}
		joined = append(append(joined[:0], s[:k]...), s[k+1:]...)
		b.merges.add(symbol(s[:k]), symbol(s[k+1:]), symbol(string(joined)), uint32(i))
	}
	return nil
}
