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

// model is what the file's `tokenizer.ggml.model` stands for. Ids are -1 where a file that does not say has none.
type model struct {
	bos, eos, unknown int32
	scored            bool // merges by score instead of by list
	pre               string
}

var models = map[string]model{
	"gpt2":   {bos: 11, eos: 11, unknown: -1},
	"llama":  {bos: 1, eos: 2, unknown: 0, scored: true},
	"gemma4": {bos: -1, eos: -1, unknown: -1, pre: "gemma4"},
}

// New reads the vocabulary of a GGUF file. It supports `gpt2` (byte-level pair merging) with the pre-tokenizers that
// preTokenizers lists, `gemma4` (pair merging of UTF-8 characters) and `llama` (SentencePiece: merging by score). A `gpt2`
// file that names no pre-tokenizer gets the default one and a warning. An error names the file, the
// metadata key and what disagrees.
func New(md *gguf.Metadata) (*Tokenizer, error) {
	f, err := read(md)
	if err != nil {
		return nil, err
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", md.File(), err)
	}
	return t, nil
}

// stringList is a list of texts as a file stores them.
type stringList interface {
	Len() int
	At(i int) string
}

// fields is what the metadata says, before any of it is believed.
type fields struct {
	model  model
	pre    preTokenizer
	tokens stringList
	merges stringList       // nil if absent, which only some may be
	scores []float64        // nil if absent
	types  []int64          // nil if absent
	ids    map[string]int64 // "bos" and so on, those present
	addBOS *bool            // nil if absent
	addEOS *bool
	prefix *bool
	notes  []string
}

func read(md *gguf.Metadata) (*fields, error) {
	f := &fields{ids: map[string]int64{}}
	name, err := md.String(keyPrefix + "model")
	if err != nil {
		return nil, err
	}
	var ok bool
	if f.model, ok = models[name]; !ok {
		return nil, fmt.Errorf("%s: tokenizer: %smodel is %.80q, supported are %s: %w", md.File(), keyPrefix, name,
			strings.Join(slices.Sorted(maps.Keys(models)), " "), errors.ErrUnsupported)
	}
	if f.model.scored {
		f.pre = preTokenizer{spaced: true, addBOS: true}
	} else if err := f.readPre(md); err != nil {
		return nil, err
	}
	if f.tokens, err = md.Strings(keyPrefix + "tokens"); err != nil {
		return nil, err
	}
	if !f.model.scored && (md.Has(keyPrefix+"merges") || !f.pre.ranked) {
		if f.merges, err = md.Strings(keyPrefix + "merges"); err != nil {
			return nil, err
		}
	}
	if md.Has(keyPrefix + "token_type") {
		if f.types, err = md.Ints(keyPrefix + "token_type"); err != nil {
			return nil, err
		}
		if len(f.types) != f.tokens.Len() {
			return nil, fmt.Errorf("%s: tokenizer: %stoken_type has %d entries, %stokens has %d", md.File(), keyPrefix, len(f.types), keyPrefix, f.tokens.Len())
		}
	}
	if md.Has(keyPrefix+"scores") || f.model.scored {
		if f.scores, err = md.Floats(keyPrefix + "scores"); err != nil {
			return nil, err
		}
		if len(f.scores) != f.tokens.Len() {
			return nil, fmt.Errorf("%s: tokenizer: %sscores has %d entries, %stokens has %d", md.File(), keyPrefix, len(f.scores), keyPrefix, f.tokens.Len())
		}
	}
	for _, name := range []string{"bos", "eos", "eot", "eom", "unknown", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"} {
		key := keyPrefix + name + "_token_id"
		if !md.Has(key) {
			continue
		}
		v, err := md.Ints(key) // so that a negative number is just out of range
		if err != nil {
			return nil, err
		}
		if len(v) != 1 {
			return nil, fmt.Errorf("%s: tokenizer: %s has %d entries, want 1", md.File(), key, len(v))
		}
		f.ids[name] = v[0]
	}
	for name, at := range map[string]**bool{"add_bos_token": &f.addBOS, "add_eos_token": &f.addEOS, "add_space_prefix": &f.prefix} {
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

// readPre finds the pre-tokenizer.
func (f *fields) readPre(md *gguf.Metadata) error {
	name, key := f.model.pre, keyPrefix+"pre"
	if name == "" && md.Has(key) {
		var err error
		if name, err = md.String(key); err != nil {
			return err
		}
	} else if name == "" {
		name = "default"
		f.notes = append(f.notes, key+" is missing: the default pre-tokenizer is used, which may not be the one the model was trained with")
	}
	var ok bool
	if f.pre, ok = preTokenizers[name]; !ok {
		return fmt.Errorf("%s: tokenizer: %s is %.80q, supported are %s: %w", md.File(), key, name,
			strings.Join(slices.Sorted(maps.Keys(preTokenizers)), " "), errors.ErrUnsupported)
	}
	return nil
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
	if f.merges != nil && f.merges.Len() > maxMerges {
		return nil, fmt.Errorf("tokenizer: %smerges has %d entries, at most %d are supported", keyPrefix, f.merges.Len(), maxMerges)
	}
	t := &Tokenizer{
		text: newTexts(n), piece: newTexts(n), kind: make([]byte, n),
		split: f.pre.split, spaced: f.pre.spaced, warnings: f.notes, eog: map[int32]bool{},
	}
	t.prefix = f.model.scored && (f.prefix == nil || *f.prefix)
	t.scratch.New = func() any { return new(scratch) }
	if err := t.loadTokens(f); err != nil {
		return nil, err
	}
	unknown := t.assignRoles(f)
	if err := t.spellPieces(); err != nil {
		return nil, err
	}

	var special []int32
	for id := range int32(n) {
		switch t.kind[id] & kindMask {
		case kindControl, kindUnknown, kindUserDefined:
			special = append(special, id)
		}
	}
	t.special = newMatcher(&t.text, special)
	load := t.loadMerges
	if f.model.scored {
		load = func(f *fields) error { return t.loadScores(f, unknown) }
	}
	if err := load(f); err != nil {
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
			return fmt.Errorf("tokenizer: %stokens has %.80q twice, as %d and as %d", keyPrefix, s, old, i)
		}
		kind := int64(kindNormal)
		if f.types != nil {
			kind = f.types[i]
		} else if _, ok := parseByte([]byte(s)); ok && f.pre.spaced {
			kind = kindByte
		}
		if kind < 0 || kind >= kindCount {
			return fmt.Errorf("tokenizer: %stoken_type of token %d (%.80q) is %d, want 0 to %d", keyPrefix, i, s, kind, kindCount-1)
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
