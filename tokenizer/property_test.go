package tokenizer

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"terrace/gguf"
)

// hostile is a vocabulary with what real ones do not have: special tokens that overlap, merges that lead to control
// tokens and to texts without a token, a user-defined token that the bytes of another text spell.
func hostile(t testing.TB) *Tokenizer {
	return vocabulary{
		pre:   "llama3",
		extra: []string{"ab", "abc", "<|", "<|a", "<|a|>", "a|>b", "Ã©", "|>", "</s>", "<u>", "</", "</s", "Ġa", "Ġab"},
		kinds: []int32{1, 1, 1, 1, kindControl, kindUserDefined, kindUserDefined, 1, 1, kindUserDefined, 1, 1, 1, kindControl},
		merges: []string{"a b", "ab c", "< |", "<| a", "| >", "<|a |>", "< /", "</ s", "</s >", "Ã ©", "x y", "xy z", "Ġ a", "Ġa b", "Ġ ab",
			"xyz q", "a |>"},
		more: []gguf.Field{field("add_bos_token", false)},
	}.load(t)
}

// tokenizers returns those that properties are checked on.
func tokenizers(t testing.TB) map[string]*Tokenizer {
	extra := []string{"▁", "a", "b", "ab", "▁a", "▁ab", "▁▁", "<|", "<|a", "<|a|>", "a|>b", "|>", "<u>", "</", "</s", "<|i▁m|>", "\n", "\n\n", "é", "a▁b", "xy", "▁<0"}
	kinds := []int32{1, 1, 1, 1, 1, 1, 1, 1, 1, kindControl, kindUserDefined, 1, kindUserDefined, 1, 1, kindUserDefined}
	spm := plainVocabulary{model: "llama", extra: extra, kinds: kinds, scores: []float32{-1, -2, -3, -1, -2, -1, -4, 0, 0, 9, 9, -1, 2, -1, -1}}
	gemma := plainVocabulary{model: "gemma4", extra: extra, kinds: kinds, more: []gguf.Field{field("bos_token_id", uint32(1))},
		merges: []string{"a b", "▁ a", "▁ ab", "▁a b", "▁ ▁", "< |", "<| a", "| >", "<|a |>", "< /", "</ s", "</s >", "x y", "xy z", "\n \n", "a ▁b"}}
	return map[string]*Tokenizer{"toy": load(t, toyVocab), "hostile": hostile(t), "spm": spm.load(t), "gemma": gemma.load(t)}
}

// reads is what the ids of text decode to with special tokens, if those that allowed accepts are recognised.
func reads(tok *Tokenizer, text string, allowed func(id int32, from, to int) bool) (out string, controls int) {
	plain := func(s string) string {
		if s == "" || !tok.spaced {
			return s
		}
		s = strings.ReplaceAll(s, "▁", " ")
		if tok.prefix {
			s = " " + s
		}
		return s
	}
	at := 0
	for _, h := range partition(tok.special.find(nil, text, allowed)) {
		out += plain(text[at:h.from]) + tok.Text(h.id)
		at = h.to
		if tok.IsControl(h.id) {
			controls++
		}
	}
	out += plain(text[at:])
	if tok.prefix {
		out = strings.TrimPrefix(out, " ")
	}
	return out, controls
}

// checkText checks what must hold for any text and any cut of it into parts. The parts of text are those between the
// offsets of cuts; userMask tells which of them come from a user.
func checkText(t rapid.TB, tok *Tokenizer, text string, cuts []int, userMask uint) {
	plain := tok.Encode(nil, text, false, false)
	for _, id := range plain {
		if tok.IsControl(id) || id < 0 || int(id) >= tok.Vocab() {
			t.Fatalf("%q: plain text gives token %d (%q) in %v", text, id, tok.Text(id), plain)
		}
	}
	parsed := tok.Encode(nil, text, false, true)
	for _, ids := range [][]int32{plain, parsed} {
		if least := tok.MinTokens(len(text)); len(ids) < least || tok.MaxBytes(len(ids)) < len(text) {
			t.Fatalf("%q: %d bytes in %d tokens, said to be at least %d; so many hold at most %d bytes", text, len(text), len(ids), least, tok.MaxBytes(len(ids)))
		}
	}
	if utf8.ValidString(text) {
		want, _ := reads(tok, text, func(int32, int, int) bool { return true })
		if got := string(tok.Decode(parsed, true)); got != want {
			t.Fatalf("%q: with special tokens decodes to %q", text, got)
		}
		want, _ = reads(tok, text, func(id int32, _, _ int) bool { return tok.kind[id]&kindMask == kindUserDefined })
		if got := string(tok.Decode(plain, false)); got != want {
			t.Fatalf("%q: decodes to %q", text, got)
		}
	}
	if again := tok.Encode(nil, text, false, false); !slices.Equal(again, plain) {
		t.Fatalf("%q: %v, then %v", text, plain, again)
	}

	var parts []Part
	type span struct{ from, to int }
	var user []span
	fromUser := 0
	at := 0
	for i, c := range append(slices.Clone(cuts), len(text)) {
		isUser := userMask>>(uint(i)%16)&1 == 1
		parts = append(parts, Part{Text: text[at:c], Special: !isUser})
		if isUser && at < c {
			user = append(user, span{at, c})
			fromUser += c - at
		}
		at = c
	}
	ids := tok.EncodeParts(nil, parts, false)
	if utf8.ValidString(text) {
		// Every control token must stand on bytes of the template.
		want, controls := reads(tok, text, func(id int32, from, to int) bool {
			return tok.kind[id]&guarded == 0 || !slices.ContainsFunc(user, func(u span) bool { return from < u.to && to > u.from })
		})
		if got := string(tok.Decode(ids, true)); got != want {
			t.Fatalf("%+v: decodes to %q", parts, got)
		}
		pos := 0
		for _, id := range ids {
			if tok.IsControl(id) {
				controls--
			}
			if tok.spaced {
				continue // the ids are more or less than the text by some spaces
			}
			n := len(tok.bytes(id, true))
			for _, u := range user {
				if tok.IsControl(id) && pos < u.to && pos+n > u.from {
					t.Fatalf("%+v: control token %d (%q) at %d of %v", parts, id, tok.Text(id), pos, ids)
				}
			}
			pos += n
		}
		if controls != 0 {
			t.Fatalf("%+v: %d control tokens missing in %v", parts, controls, ids)
		}
	} else if fromUser == len(text) {
		for _, id := range ids {
			if tok.IsControl(id) {
				t.Fatalf("%+v: control token %d", parts, id)
			}
		}
	}
	if len(user) == 0 && !slices.Equal(ids, parsed) {
		t.Fatalf("%+v: %v, want the ids of the joined text %v", parts, ids, parsed)
	}

	for _, special := range []bool{false, true} {
		s := tok.NewStream(special).Open()
		var out strings.Builder
		for _, id := range ids {
			p := s.Push(id)
			if !utf8.Valid(p) {
				t.Fatalf("%q: Push(%d) gives %q", text, id, p)
			}
			out.Write(p)
		}
		out.Write(s.Flush())
		if whole := replaceBroken(tok.Decode(ids, special)); out.String() != whole {
			t.Fatalf("%q: streamed %q, whole %q", text, out.String(), whole)
		}
	}
}

// cutsOf turns any bytes into rising offsets within text.
func cutsOf(text string, raw []byte) []int {
	var cuts []int
	at := 0
	for _, b := range raw {
		at = min(at+int(b)%(len(text)/2+2), len(text))
		cuts = append(cuts, at)
	}
	return cuts
}

func TestProperties(t *testing.T) {
	toks := tokenizers(t)
	toks["qwen3"], toks["mistral"] = load(t, qwen3), load(t, mistral)
	pieces := []string{"<|im_end|>", "<|im_start|>", "<|a|>", "<|a", "|>", "a|>b", "</s>", "<u>", "<think>", " ", "  ", "\n", "abc", "xyz", "xyzq", "the ", "1234", "é", "你", "👍", "'s", "e\u0301",
		"\x80", "\xff", "\xe4\xbd", "\xed\xa0\x80", "\x00", "ab", "<", ">", "▁", "▁a", "<0x41>", "\n\n", strings.Repeat("ab", 30)}
	gen := rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "pieces"), "")
	}))
	for name, tok := range toks {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				text := gen.Draw(rt, "text")
				cuts := cutsOf(text, rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(rt, "cuts"))
				checkText(rt, tok, text, cuts, rapid.Uint().Draw(rt, "user"))
			})
		})
	}
}

// TestStreamAnyIDs: any ids at all, streamed, give what the whole gives.
func TestStreamAnyIDs(t *testing.T) {
	for name, tok := range tokenizers(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				ids := rapid.SliceOf(rapid.Int32Range(-1, int32(tok.Vocab()))).Draw(rt, "ids")
				special := rapid.Bool().Draw(rt, "special")
				if got, want := streamed(t, tok.NewStream(special).Open(), ids), replaceBroken(tok.Decode(ids, special)); got != want {
					rt.Fatalf("%v: streamed %q, whole %q", ids, got, want)
				}
			})
		})
	}
}

// FuzzEncode: any bytes, cut into parts in any way, on four vocabularies; and any split of them by every splitter.
func FuzzEncode(f *testing.F) {
	for _, s := range nasty {
		f.Add(s, []byte{1, 2}, uint16(0b101))
	}
	for _, s := range []string{"<|im_start|>user\nhi<|im_end|>\n", "<|a|>b<|a</s> ab", "xyzq xyz", "a\x80b\xed\xa0\x80\xf4\x90\x80\x80", strings.Repeat("ab", 40), "<|<|a|>a|>", "a▁b ▁ <|i▁m|> <0x41>", "\xe2\x82 a\xf0 b"} {
		f.Add(s, []byte{3, 1, 4}, uint16(0b010))
	}
	toks := tokenizers(f)
	f.Fuzz(func(t *testing.T, text string, rawCuts []byte, user uint16) {
		if len(text) > 1<<14 || len(rawCuts) > 64 {
			return
		}
		for _, tok := range toks {
			checkText(t, tok, text, cutsOf(text, rawCuts), uint(user))
		}
		sound := string(repair(nil, text))
		for name, p := range preTokenizers {
			at := 0
			for _, end := range p.split.ends(nil, sound) {
				if end <= at || end > len(sound) {
					t.Fatalf("%s: %q ends at %d after %d", name, sound, end, at)
				}
				at = end
			}
			if at != len(sound) {
				t.Fatalf("%s: %q ends at %d of %d", name, sound, at, len(sound))
			}
		}
	})
}
