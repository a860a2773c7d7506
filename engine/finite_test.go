package engine

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/gguf"
	"terrace/internal/tinymodel"
	"terrace/model"
)

// TestNotFinite puts one NaN into a weight: the request ends with an error that names the layer and the block, the sequence
// stands where it stood, and a dense model is no exception.
func TestNotFinite(t *testing.T) {
	for _, c := range []struct {
		arch, tensor, says string
	}{
		{tinymodel.Qwen3MoE, "blk.1.attn_output.weight", "layer 1, behind its token mixer"},
		{tinymodel.Qwen3MoE, "blk.2.ffn_down_exps.weight", "layer 2, behind its feed-forward"},
		{tinymodel.Qwen3, "blk.1.ffn_down.weight", "layer 1, behind its feed-forward"},
		{tinymodel.Qwen3, "output.weight", "finite behind every block"},
	} {
		path, err := tinymodel.Write(t.TempDir(), tinymodel.Options{Arch: c.arch, Layers: 3, Experts: 2, TopK: 2})
		if err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(f.Tensors, func(x gguf.Tensor) bool { return x.Name == c.tensor })
		if at < 0 {
			t.Fatalf("no tensor %s in %s", c.tensor, filepath.Base(path))
		}
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		bits := math.Float32bits(float32(math.NaN()))
		_, err = w.WriteAt([]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}, f.Tensors[at].Extent.Offset)
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		e := mustOpen(t, Options{Path: path, Threads: 2, Lookahead: 2})
		s, err := e.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			_, err = s.Sync(context.Background(), []int32{1, 2, 3})
			if !errors.Is(err, model.ErrNotFinite) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") || s.Pos() != 0 {
				t.Errorf("%s: %d tokens, %v; want %q in it", c.tensor, s.Pos(), err, c.says)
			}
		}
		t.Log(err)
		s.Close()
	}
}
