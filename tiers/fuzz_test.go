package tiers

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
)

// resum makes a document's checksum right, as somebody who means harm could.
func resum(b []byte, decode func([]byte) error) []byte {
	_, said, ok := strings.Cut(fmtError(decode(b)), "damaged: checksum ")
	if !ok {
		return b
	}
	at := bytes.LastIndex(b, []byte(`"crc32c":"`))
	if at < 0 || len(b) < at+18 || len(said) < 8 {
		return b
	}
	b = bytes.Clone(b)
	copy(b[at+10:], said[:8])
	return b
}

func fmtError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzHeat: any bytes are a heat profile that can be aged, added up and written again, or one line.
func FuzzHeat(f *testing.F) {
	model := HeatModel{Arch: "toy", TopK: 2, Fingerprint: "abc", Name: "Toy", Base: "toy"}
	h := NewHeat(model, []int{3, 0, 2})
	h.Tokens, h.Recent[0][1], h.Long[2][0] = 5, 1.5, 1e9
	b, err := h.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Add(bytes.Replace(b, []byte("1.5"), []byte("-15"), 1), true)
	f.Add(bytes.Replace(b, []byte("1.5"), []byte("1e99"), 1), true)
	f.Add(bytes.Replace(b, []byte(`"tokens":5`), []byte(`"tokens":-5`), 1), true)
	f.Add(b[:len(b)/2], false)
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = resum(b, func(b []byte) error { _, err := DecodeHeat(b); return err })
		}
		h, err := DecodeHeat(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %q", err)
			}
			return
		}
		if err := h.Fits(model, []int{3, 0, 2}); err == nil {
			sum := NewHeat(model, []int{3, 0, 2})
			h.Age(1000)
			sum.Add(h)
			sum.Add(h)
			for l := range sum.Long {
				for e, v := range sum.Long[l] {
					if !(v >= 0) || math.IsInf(v, 0) {
						t.Fatalf("layer %d, expert %d: %g", l, e, v)
					}
				}
			}
		} else if !errors.Is(err, ErrOtherModel) {
			t.Fatal(err)
		}
		again, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeHeat(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

// FuzzSums: any bytes are checksums that are written again as they are, or one line.
func FuzzSums(f *testing.F) {
	b, err := (&Sums{Fingerprint: "abc", Pieces: [][][3]uint32{{{1, 2, 3}, {4, 5, 6}}, {}}}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-9])
	f.Add([]byte(`{"format":"terrace checksums","version":1,"hash":"crc32c","layers":[[["zz"]]]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSums(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %q", err)
			}
			return
		}
		again, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeSums(again); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
	})
}
