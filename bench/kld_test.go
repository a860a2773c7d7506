package bench

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/engine"
	"terrace/gguf"
	"terrace/quant"
)

// coarser writes the demo model anew, with the tensors that pick chooses in another type.
func coarser(t *testing.T, typ gguf.Type, pick func(name string) bool, change func([]gguf.Field) []gguf.Field) string {
	t.Helper()
	f, err := gguf.Open(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(tinyMoE)
	if err != nil {
		t.Fatal(err)
	}
	w := gguf.WriteFile{Metadata: f.Metadata.Fields()}
	if change != nil {
		w.Metadata = change(w.Metadata)
	}
	for i := range f.Tensors {
		x := &f.Tensors[i]
		data := b[x.Offset:x.End()]
		to := x.Type
		if pick(x.Name) {
			to = typ
			row := int(x.Dims[0])
			v := make([]float32, row)
			out := make([]byte, typ.RowBytes(row)*int(x.Elements()/x.Dims[0]))
			for r := range int(x.Elements()) / row {
				if err := quant.Decode(x.Type, v, data[r*x.RowBytes():(r+1)*x.RowBytes()]); err != nil {
					t.Fatal(err)
				}
				if err := quant.Encode(typ, out[r*typ.RowBytes(row):(r+1)*typ.RowBytes(row)], v); err != nil {
					t.Fatal(err)
				}
			}
			data = out
		}
		w.Tensors = append(w.Tensors, gguf.WriteTensor{Name: x.Name, Type: to, Dims: x.Dims[:x.NDims], Data: data})
	}
	p := filepath.Join(t.TempDir(), "coarse.gguf")
	if err := gguf.Create(p, w); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKLD compares with a direct computation from what Logits gives, for a model some of whose experts are in Q2_K.
func TestKLD(t *testing.T) {
	path := coarser(t, gguf.Q2_K, func(n string) bool { return n == "blk.2.ffn_down_exps.weight" || n == "blk.5.ffn_up_exps.weight" }, nil)
	texts, err := ReadTexts("../testdata/tiny-moe/heldout.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	texts = []string{texts[1][:500], texts[3][:900]}
	e, s := open(t, engine.Options{Path: path, Context: 128, Batch: 50})
	ref, refS := open(t, engine.Options{Path: tinyMoE, Context: 256})
	ctx := context.Background()
	r, err := KLD(ctx, e, ref, s, refS, KLDConfig{Texts: texts, Whole: true})
	if err != nil {
		t.Fatal(err)
	}

	var all []float64
	var nll, refNLL float64
	same := 0
	for _, text := range texts {
		rest := e.Tokenizer().Encode(nil, text, false, false)
		for len(rest) > 0 {
			n := min(len(rest), 127) // the smaller context, less the first token
			ids := append([]int32{0}, rest[:n]...)
			rest = rest[n:]
			var pos []int32
			for i := range n {
				pos = append(pos, int32(i))
			}
			a, err := Logits(ctx, e, s, LogitsConfig{Tokens: ids, Positions: pos})
			if err != nil {
				t.Fatal(err)
			}
			b, err := Logits(ctx, ref, refS, LogitsConfig{Tokens: ids, Positions: pos})
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				q, p := softmax(a.Logits[i]), softmax(b.Logits[i])
				kl := 0.0
				for j := range p {
					kl += p[j] * math.Log(p[j]/q[j])
				}
				all = append(all, kl)
				nll -= math.Log(q[ids[i+1]])
				refNLL -= math.Log(p[ids[i+1]])
				if slices.Index(q, slices.Max(q)) == slices.Index(p, slices.Max(p)) {
					same++
				}
			}
		}
	}
	n := float64(len(all))
	mean := 0.0
	for _, v := range all {
		mean += v / n
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s is %v, directly %v", what, got, want)
		}
	}
	if r.Tokens != len(all) {
		t.Fatalf("%d tokens, want %d", r.Tokens, len(all))
	}
	near("mean", r.Mean, mean)
	near("largest", r.Max, slices.Max(all))
	near("top 1", r.Top1, float64(same)/n)
	near("perplexity", r.PPL, math.Exp(nll/n))
	near("the reference's perplexity", r.RefPPL, math.Exp(refNLL/n))
	near("ratio", r.Ratio, math.Exp((nll-refNLL)/n))
	if !(r.Mean > 0.001 && r.Mean < 0.5) || !(r.Median > 0 && r.Median <= r.P99 && r.P99 <= r.Max) || !(r.Error > 0 && r.Error < r.Mean) || !(r.Top1 > 0.7 && r.Top1 < 1) {
		t.Errorf("%+v", r)
	}
	if p, err := Perplexity(ctx, ref, refS, texts[:1], false); err != nil || p.Tokens == 0 {
		t.Fatal(err)
	}

	// A model differs not at all from itself, and a limit of tokens holds.
	r, err = KLD(ctx, ref, ref, refS, second(t, ref), KLDConfig{Texts: texts, Whole: true, Most: 60})
	if err != nil || r.Tokens != 60 || r.Mean != 0 || r.Max != 0 || r.Top1 != 1 || r.Ratio != 1 {
		t.Errorf("itself: %+v, %v", r, err)
	}
}

func second(t *testing.T, e *engine.Engine) *engine.Session {
	t.Helper()
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// softmax in double precision, directly.
func softmax(v []float32) []float64 {
	out := make([]float64, len(v))
	sum := 0.0
	for i, x := range v {
		out[i] = math.Exp(float64(x))
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// TestKLDVocabulary: models that spell text differently are not compared.
func TestKLDVocabulary(t *testing.T) {
	none := func(string) bool { return false }
	swapped := coarser(t, gguf.F32, none, func(fs []gguf.Field) []gguf.Field {
		for i, f := range fs {
			if f.Key == "tokenizer.ggml.merges" {
				var words []string
				a := f.Value.(*gguf.StringArray)
				for j := range a.Len() {
					words = append(words, a.At(j))
				}
				fs[i].Value = words[:len(words)/2]
			}
		}
		return fs
	})
	e, s := open(t, engine.Options{Path: swapped, Context: 64})
	ref, refS := open(t, engine.Options{Path: tinyMoE, Context: 64})
	_, err := KLD(context.Background(), e, ref, s, refS, KLDConfig{Texts: []string{"The quick brown fox jumps over the lazy dog."}})
	if err == nil || !strings.Contains(err.Error(), "the vocabularies differ") || !strings.Contains(err.Error(), "text 1") {
		t.Error(err)
	}
}
