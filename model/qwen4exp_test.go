package model_test

import (
	"context"
	"errors"
	"math/big"
	"strings"
	"testing"

	"terrace/compute/cpu"
	"terrace/gguf"
	"terrace/model"
)

func init() {
	fixtures = append(fixtures, "qwen4exp", "qwen4exp-q4k")
	recurrentFixtures = append(recurrentFixtures, "qwen4exp")
}

// TestStreamsGoBack: from a checkpoint inside a block of positions, other tokens give the logits of a sequence that never held
// the first ones: neither index keys nor n-grams nor convolutions remember them.
func TestStreamsGoBack(t *testing.T) {
	data := unzip(t, "golden", "qwen4exp", "model.drawn.gz")
	long := readGolden(t, "qwen4exp").Long.Tokens
	for _, save := range []int{60, 61, 62, 63} {
		r := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}, saves: 1})
		ids := append([]int32(nil), long[:save]...)
		r.feed(t, ids, 50)
		r.st.Save()
		r.feed(t, long[save:130], 50)
		if at := r.st.Truncate(90); at != save {
			t.Fatalf("back to %d tokens, the checkpoint is at %d", at, save)
		}
		other := long[200:290]
		got := r.feed(t, other, 13)
		want := newRig(t, data, setup{cpu: cpu.Options{Threads: 2}}).feed(t, append(ids, other...), 512)[save:]
		if i, j, same := sameBits(got, want); !same {
			t.Errorf("checkpoint at %d: token %d, logit %d is %v, want %v", save, i, j, got[i][j], want[i][j])
		}
	}
}

// TestStreamsRefuse: what a file of residual streams, picked blocks and n-grams gets wrong is refused by name.
func TestStreamsRefuse(t *testing.T) {
	key := func(name string, v any) func(f *gguf.WriteFile) {
		return func(f *gguf.WriteFile) { set(f, "qwen4exp."+name, v) }
	}
	for _, c := range []struct {
		spoil func(f *gguf.WriteFile)
		want  string
	}{
		{key("hyper_connection.count", uint32(3)), `tensor "output_hc_norm.weight" is 256, want 192`},
		{key("hyper_connection.low_rank", uint32(9)), `tensor "output_hc_down.weight" is 256 x 8, want 256 x 9`},
		{key("hyper_connection.count", nil), `metadata key "qwen4exp.hyper_connection.count" is missing`},
		{func(f *gguf.WriteFile) { drop(f, "blk.3.hc_ffn_inject.weight") }, `tensor "blk.3.hc_ffn_inject.weight" of 256 x 4 is missing`},
		{func(f *gguf.WriteFile) { extra(f, "blk.1.attn_norm.weight", 64) }, `tensor "blk.1.attn_norm.weight" (64) is not part of qwen4exp`},
		{func(f *gguf.WriteFile) { extra(f, "output_norm.weight", 64) }, `tensor "output_norm.weight" (64) is not part of qwen4exp`},
		{key("attention.compress_ratios", []int32{0, 4, 0}), `metadata key "qwen4exp.attention.compress_ratios" has 3 elements, the model 4 layers`},
		{key("attention.compress_ratios", []int32{0, 4, 0, 8}), `metadata key "qwen4exp.attention.compress_ratios" is 8 for layer 3 and 4 for one before it`},
		{key("attention.compress_ratios", []int32{0, 1, 0, 1}), `metadata key "qwen4exp.attention.compress_ratios" is 1 for layer 1`},
		{key("attention.indexer.top_k", uint32(30)), `metadata key "qwen4exp.attention.indexer.top_k" is 30, want a multiple of the 4`},
		{key("attention.indexer.key_length", uint32(8)), `metadata key "qwen4exp.rope.dimension_count" is 16, and index keys have 8 elements`},
		{key("attention.indexer.head_count", uint32(4)), `tensor "blk.1.indexer.q_proj.weight" is 64 x 128, want 64 x 64`},
		{key("ple.layers", []uint32{1}), `metadata key "qwen4exp.ple.layers" is 1, a layer of attention`},
		{key("ple.layers", []uint32{0, 2}), `metadata key "qwen4exp.ple.layers" has 2 elements, want 1`},
		{key("ple.layers", []uint32{4}), `metadata key "qwen4exp.ple.layers" is 4 at 0, want 0 to 3`},
		{key("ple.ngram_size", uint32(4)), `metadata key "qwen4exp.ple.layer_multipliers" has 3 elements, want 4`},
		{key("ple.head_offsets", []uint64{0, 509}), `metadata key "qwen4exp.ple.head_offsets" has 2 elements, want 8`},
		{key("ple.head_vocab_sizes", []uint64{509, 521, 523, 541, 547, 557, 563, 0}), `metadata key "qwen4exp.ple.head_vocab_sizes" is 0 at 7, want 1`},
		{key("ple.head_vocab_sizes", []uint64{509, 521, 523, 541, 547, 557, 563, 1569}), `head 7 of the n-grams ("qwen4exp.ple.head_offsets", "qwen4exp.ple.head_vocab_sizes") ends at row 5330, tensor "per_layer_token_embd.weight" has 4352`},
		{key("embedding_length_per_layer_input", uint32(16)), `8 rows of 16 elements (metadata key "qwen4exp.embedding_length_per_layer_input") a token, want 64 together`},
		{func(f *gguf.WriteFile) { drop(f, "per_layer_token_embd.weight") }, `tensor "per_layer_token_embd.weight" of 8 x any number of rows is missing`},
		{func(f *gguf.WriteFile) { find(f, "per_layer_token_embd.weight").Dims = []uint64{16, 2176} }, `tensor "per_layer_token_embd.weight" is 16 x 2176, want 8 elements a row`},
		{key("nextn_predict_layers", uint32(4)), `metadata key "qwen4exp.nextn_predict_layers" is 4`},
	} {
		_, err := model.Load(openBytes(t, "bad.gguf", rewritten(t, "qwen4exp", c.spoil)), model.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bad.gguf") || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v\n\twant %s", err, c.want)
		}
		if !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("error %v is not ErrUnsupported", err)
		}
	}
}

// TestStreamsPredictionLayer: a file with the block that predicts further tokens, which block_count includes, is the same model.
// A norm stored as a row a stream is the same norm.
func TestStreamsPredictionLayer(t *testing.T) {
	more := rewritten(t, "qwen4exp", func(f *gguf.WriteFile) {
		set(f, "qwen4exp.block_count", uint32(5))
		set(f, "qwen4exp.nextn_predict_layers", uint32(1))
		set(f, "qwen4exp.attention.compress_ratios", []int32{0, 4, 0, 4, 0})
		for _, x := range f.Tensors {
			if rest, ok := strings.CutPrefix(x.Name, "blk.3."); ok {
				x.Name = "blk.4." + rest
				f.Tensors = append(f.Tensors, x)
			}
		}
		extra(f, "blk.4.nextn.enorm.weight", 64)
		extra(f, "blk.4.nextn.hnorm.weight", 256)
		extra(f, "blk.4.nextn.hc_head_norm.weight", 256)
		find(f, "blk.1.hc_attn_norm.weight").Dims = []uint64{64, 4}
		find(f, "blk.2.ple_norm_query.weight").Dims = []uint64{64, 4}
	})
	ids := readGolden(t, "qwen4exp").Prompt.Tokens
	m := newRig(t, more, exact)
	if n := m.Config().Layers; n != 4 {
		t.Errorf("%d layers, want the 4 of the trunk", n)
	}
	if r, j, same := sameBits(m.feed(t, ids, 48), newRig(t, unzip(t, "golden", "qwen4exp", "model.drawn.gz"), exact).feed(t, ids, 48)); !same {
		t.Errorf("token %d, logit %d differs", r, j)
	}
}

// TestNGramRows compares the rows of a table of the published size with arithmetic on whole numbers.
func TestNGramRows(t *testing.T) {
	mul := []uint64{23703573157769, 20109073645365, 8052911324071}
	sizes := []uint64{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}
	starts := make([]uint64, 16)
	for i := 1; i < 16; i++ {
		starts[i] = starts[i-1] + sizes[i-1]
	}
	const end = 248044
	whole := new(big.Int).Lsh(big.NewInt(1), 64)
	times := func(t int32, m uint64) *big.Int {
		x := new(big.Int).Mul(big.NewInt(int64(t)), new(big.Int).SetUint64(m))
		return x.Mod(x, whole)
	}
	for _, c := range []struct {
		window []int32 // the last tokens, oldest first
		as     [3]int32
	}{
		{[]int32{7}, [3]int32{7, end, end}},
		{[]int32{248319}, [3]int32{248319, end, end}},
		{[]int32{11, 7}, [3]int32{7, 11, end}},
		{[]int32{5, 11, 7}, [3]int32{7, 11, 5}},
		{[]int32{5, end, 7}, [3]int32{7, end, end}}, // an end cuts what lies before it
		{[]int32{end, 11, 7}, [3]int32{7, 11, end}}, // and counts as one itself
		{[]int32{5, 11, end}, [3]int32{end, 11, 5}}, // but not where it is the token itself
		{[]int32{248000, 247000, 246000}, [3]int32{246000, 247000, 248000}},
	} {
		got := model.NGramRows(mul, sizes, starts, 8, end, c.window)
		mix := times(c.as[0], mul[0])
		for n := 1; n <= 2; n++ {
			mix.Xor(mix, times(c.as[n], mul[n]))
			for h := (n - 1) * 8; h < n*8; h++ {
				want := new(big.Int).Mod(mix, new(big.Int).SetUint64(sizes[h])).Int64() + int64(starts[h])
				if got[h] != want {
					t.Errorf("%v: head %d is row %d, want %d", c.window, h, got[h], want)
				}
			}
		}
	}
}

// slowTable fails, or counts its questions.
type slowTable struct {
	model.Table
	err             error
	asked, released int
}

func (s *slowTable) Want(rows []int64) error { s.asked++; return s.Table.Want(rows) }
func (s *slowTable) Release()                { s.released++; s.Table.Release() }
func (s *slowTable) Rows(ctx context.Context) ([][]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	return s.Table.Rows(ctx)
}

// TestTableFails: rows that do not come fail the forward pass and leave the sequence as it was, with the question ended.
func TestTableFails(t *testing.T) {
	data := unzip(t, "golden", "qwen4exp", "model.drawn.gz")
	ids := readGolden(t, "qwen4exp").Prompt.Tokens
	want := newRig(t, data, setup{cpu: cpu.Options{Threads: 1}}).feed(t, ids, 48)
	r := newRig(t, data, setup{cpu: cpu.Options{Threads: 1}})
	d := r.Table()
	inner, err := model.NewResidentTable(d, data[d.Offset:d.End()])
	if err != nil {
		t.Fatal(err)
	}
	s := &slowTable{Table: inner}
	r.SetTable(s)
	first := r.feed(t, ids[:20], 7)
	s.err = errors.New("no row")
	out := make([]float32, r.Config().Vocab)
	err = r.Forward(context.Background(), r.st, model.Batch{Tokens: ids[20:25], Logits: model.LastLogits, Out: out}, r.src)
	if !errors.Is(err, s.err) || r.st.Pos() != 20 || s.asked != s.released {
		t.Errorf("error %v at %d tokens, %d questions and %d ended", err, r.st.Pos(), s.asked, s.released)
	}
	s.err = nil
	if i, j, same := sameBits(append(first, r.feed(t, ids[20:], 9)...), want); !same {
		t.Errorf("after the failure, token %d, logit %d differs", i, j)
	}
	if _, err := model.NewResidentTable(d, data[:5]); err == nil {
		t.Error("a table of 5 bytes was taken")
	}
}
