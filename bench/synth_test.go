package bench

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"terrace/engine"
	"terrace/gguf"
)

func TestSynthRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gguf")
	for _, c := range []struct {
		c    SynthConfig
		want string
	}{
		{SynthConfig{}, "no file to write"},
		{SynthConfig{Path: path, Layers: 6}, "6 layers, want a multiple of 4 up to 48"},
		{SynthConfig{Path: path, Experts: 600}, "600 experts, want 10 to 512"},
		{SynthConfig{Path: path, Mix: "q9"}, `mix "q9", want q2_0 or iq4_nl`},
		{SynthConfig{Path: path, Rows: 5}, "a table of 5 rows, want 1024 to 320001536"},
		{SynthConfig{Path: path, Vocab: 7}, "a vocabulary of 7 tokens"},
	} {
		if _, err := Synth(c.c); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.c, err, c.want)
		}
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Synth(SynthConfig{Path: path, Layers: 4, Experts: 10, Vocab: 512}); err == nil {
		t.Error("a file was written over")
	}
	if b, err := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file that was there is %q, %v", b, err)
	}
}

// TestHoles: what stands for zeros takes no room and reads as zeros between what was written.
func TestHoles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "holes"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := &holes{f: f, w: bufio.NewWriter(f)}
	for _, b := range [][]byte{[]byte("head"), hole, hole[:1000], []byte("tail"), hole[:7]} {
		if n, err := h.Write(b); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := h.w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(h.n); err != nil {
		t.Fatal(err)
	}
	want := append([]byte("head"), make([]byte, len(hole)+1000)...)
	want = append(append(want, "tail"...), make([]byte, 7)...)
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil || !bytes.Equal(got, want) || h.n != int64(len(want)) {
		t.Errorf("%d bytes, want %d, counted %d: %v", len(got), len(want), h.n, err)
	}
}

// TestSynth writes half a gigabyte, and is run where TERRACE_SYNTH is set: the file decodes, and the table's rows that the
// benches need have data.
func TestSynth(t *testing.T) {
	if os.Getenv("TERRACE_SYNTH") == "" {
		t.Skip("TERRACE_SYNTH is not set: half a gigabyte is not written")
	}
	for _, mix := range []string{"q2_0", "iq4_nl"} {
		c := SynthConfig{Path: filepath.Join(t.TempDir(), "s.gguf"), Layers: 4, Experts: 10, Vocab: 512, Mix: mix, Tokens: 700}
		w, err := Synth(c)
		if err != nil {
			t.Fatal(err)
		}
		if w.TableRows < 8*700 || w.Holes != 28800138240 {
			t.Errorf("%+v", w)
		}
		r, err := Speed(context.Background(), SpeedConfig{Engine: engine.Options{Path: c.Path, Context: 640, Threads: 2, ExpertRAM: engine.ExpertBudget{Percent: 100}}, Decode: 4, Depth: 8})
		if err != nil {
			t.Fatal(err)
		}
		if r.Decode == nil || r.Stats.Table == nil || r.Stats.Table.Rows != 4*16 {
			t.Errorf("%+v", r.Stats.Table)
		}
		f, err := gguf.Open(c.Path)
		if err != nil {
			t.Fatal(err)
		}
		if x, ok := f.Tensor("per_layer_token_embd.weight"); !ok || x.End() != w.Size {
			t.Errorf("the table ends at %d of %d bytes", x.End(), w.Size)
		}
		os.Remove(c.Path)
	}
}
