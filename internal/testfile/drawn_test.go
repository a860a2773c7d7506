package testfile

import (
	"bytes"
	"strings"
	"testing"
)

// TestDrawn packs draws between bytes that are none; a file that is cut or changed is refused.
func TestDrawn(t *testing.T) {
	data := []byte("head")
	for _, m := range []struct {
		stream uint32
		factor float64
	}{{7, 0.25}, {8, 1e-6}} {
		r := NewNormal(3, m.stream)
		for range 500 {
			h := Half(m.factor * r.Next())
			data = append(data, byte(h), byte(h>>8))
		}
		data = append(data, "tail"...)
	}
	d := Drawn{Seed: 3, Matrices: []Draws{{4, 500, 7, 0.25}, {1008, 500, 8, 1e-6}}}
	packed := d.Pack(data)
	got, err := unpack(packed)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back as %d, %v", len(data), len(got), err)
	}
	if len(packed) > 500 {
		t.Errorf("%d bytes packed in %d", len(data), len(packed))
	}
	for what, bad := range map[string][]byte{
		"cut": packed[:len(packed)-5], "SHA-256": append(bytes.Clone(packed[:len(packed)-1]), 'x'), "cut off": packed[:len(magic)+9],
	} {
		if _, err := unpack(bad); err == nil {
			t.Errorf("%s: no error", what)
		} else if what == "SHA-256" && !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := unpack(data); err != nil || !bytes.Equal(got, data) {
		t.Errorf("other bytes do not stay what they are: %v", err)
	}
}

// TestHalf rounds to even, at the border of the subnormal numbers too.
func TestHalf(t *testing.T) {
	for x, want := range map[float64]uint16{
		0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 1.0 / (1 << 24): 1, 1.0 / (1 << 25): 0, 3.0 / (1 << 25): 2, 1.0 / (1 << 14): 0x400,
		1 + 1.0/2048: 0x3c00, 1 + 3.0/2048: 0x3c02, 8187.0 / 8192: 0x3bff, 4095.0 / 4096: 0x3c00, -1023.0 / (1 << 24): 0x83ff,
	} {
		if got := Half(x); got != want {
			t.Errorf("%v is %#04x, want %#04x", x, got, want)
		}
	}
}
