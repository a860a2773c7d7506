package tokenizer

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"
)

// replaceBroken is what a whole text should become: U+FFFD for each longest beginning of a character that is not
// carried on, and for each byte that begins none.
func replaceBroken(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		n := 1
		for k := 1; k <= 3 && k <= len(b); k++ {
			if !utf8.FullRune(b[:k]) {
				n = k
			}
		}
		out.WriteString("\uFFFD")
		b = b[n:]
	}
	return out.String()
}

// streamed pushes ids and checks that each output is valid text.
func streamed(t testing.TB, s *Stream, ids []int32) string {
	t.Helper()
	var out strings.Builder
	for _, id := range ids {
		p := s.Push(id)
		if !utf8.Valid(p) {
			t.Errorf("Push(%d) gives %q", id, p)
		}
		out.Write(p)
	}
	out.Write(s.Flush())
	return out.String()
}

func TestStreamGolden(t *testing.T) {
	for _, vocab := range golden {
		s := load(t, vocab).NewStream(false)
		for _, c := range casesOf(t, vocab) {
			want, _ := hex.DecodeString(c.Decoded)
			if got := streamed(t, s.Open(), c.IDs); got != replaceBroken(want) {
				t.Errorf("%s: %q, want %q", c.Name, got, want)
			}
		}
	}
	tok := load(t, qwen3)
	s := tok.NewStream(false)
	if got := streamed(t, tok.NewStream(true), []int32{151644, 64, 151645}); got != "<|im_start|>a<|im_end|>" {
		t.Errorf("with special tokens %q", got)
	}
	if got := streamed(t, s, []int32{151644, 64, 151645, -1, 1 << 30}); got != "a" {
		t.Errorf("without special tokens %q", got)
	}
}

// TestStreamSteps: when each byte of a text comes out, with one token a byte.
func TestStreamSteps(t *testing.T) {
	tok := vocabulary{pre: "qwen2", extra: []string{"<|im_end|>", "<think>"}, kinds: []int32{kindControl, kindUserDefined}}.load(t)
	const bad = "\uFFFD"
	for _, c := range []struct {
		in  string
		out []string // after each byte, then after Flush
	}{
		{"aé", []string{"a", "", "é", ""}},
		{"👍", []string{"", "", "", "👍", ""}},
		{"\x80a", []string{bad, "a", ""}},
		{"\xf8\xff", []string{bad, bad, ""}},
		{"\xc0\xaf", []string{bad, bad, ""}},
		{"\xc3a", []string{"", bad + "a", ""}},
		{"\xe4\xbda", []string{"", "", bad + "a", ""}},
		{"\xe4\xbd", []string{"", "", bad}},
		{"\xf0\x9f\x91", []string{"", "", "", bad}},
		{"\xed\xa0\x80", []string{"", bad + bad, bad, ""}},
		{"\xe0\x80", []string{"", bad + bad, ""}},
		{"\xf4\x90", []string{"", bad + bad, ""}},
		{"\xf0\x9f\xc3\xa9", []string{"", "", bad, "é", ""}},
		{"\ufffd", []string{"", "", "\ufffd", ""}},
	} {
		s := tok.NewStream(false)
		for i := range len(c.in) {
			if got := string(s.Push(int32(c.in[i]))); got != c.out[i] {
				t.Errorf("%q: byte %d gives %q, want %q", c.in, i, got, c.out[i])
			}
		}
		if got := string(s.Flush()); got != c.out[len(c.in)] {
			t.Errorf("%q: Flush gives %q, want %q", c.in, got, c.out[len(c.in)])
		}
		if got := s.Flush(); len(got) != 0 {
			t.Errorf("%q: a second Flush gives %q", c.in, got)
		}
		if want := replaceBroken([]byte(c.in)); strings.Join(c.out, "") != want {
			t.Errorf("%q: the steps give %q, the whole %q", c.in, c.out, want)
		}
	}
	// A control token without text does not come between the bytes of a character, a user-defined one does.
	if got := streamed(t, tok.NewStream(false), []int32{0xc3, 256, 0xa9}); got != "é" {
		t.Errorf("a silent token inside a character gives %q", got)
	}
	if got := streamed(t, tok.NewStream(false), []int32{0xc3, 257, 0xa9}); got != bad+"<think>"+bad {
		t.Errorf("a token with text inside a character gives %q", got)
	}
}

func TestStreamAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, vocab := range golden {
		tok := load(t, vocab)
		ids := tok.Encode(nil, strings.Repeat("Hello, wörld 👨‍👩‍👧‍👦 你好! 🧿", 10), false, false)
		s := tok.NewStream(false)
		var sink bytes.Buffer
		sink.Grow(1 << 16)
		if n := testing.AllocsPerRun(20, func() {
			sink.Reset()
			for _, id := range ids {
				sink.Write(s.Push(id))
			}
			sink.Write(s.Flush())
		}); n != 0 {
			t.Errorf("%s: %v allocations for %d tokens", vocab, n, len(ids))
		}
	}
}
