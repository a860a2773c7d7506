package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"

	"terrace/gguf"
	"terrace/internal/tinymodel"
	"terrace/model"
	"terrace/quant"
)

// SynthConfig says what file `bench synth` writes: the geometry of Qwen3.8-Flash-Next with random weights, all of its 512
// experts a layer unless Experts says otherwise, and its whole n-gram table, of which only some rows take room on disk.
type SynthConfig struct {
	Path    string
	Layers  int    // 0: 12; a multiple of 4
	Experts int    // of a layer; 0: 512
	Mix     string // types of experts: "q2_0", or "iq4_nl" for Q4_K and IQ4_NL; "" is iq4_nl
	Rows    int64  // of the table; 0: the published number. With fewer the hash's ranges shrink
	Tokens  int    // the first tokens of the other benches whose rows are written; 0: none
	Vocab   int    // 0: the published 248,320
	Seed    uint64
}

// SynthReport is what was written, in bytes.
type SynthReport struct {
	Path      string `json:"path"`
	Size      int64  `json:"size"`   // of the file, holes included
	Holes     int64  `json:"holes"`  // of the table, before rows were written
	Expert    int64  `json:"expert"` // of one
	Experts   int64  `json:"experts"`
	Dense     int64  `json:"dense"`
	TableRows int    `json:"table_rows"` // that have data
}

// Sizes of Qwen3.8-Flash-Next.
const (
	synthEmbd, synthVocab            = 2560, 248320
	synthStreams, synthRank          = 4, 320
	synthChannels, synthInner        = 10240, 6144
	synthFF, synthGram               = 640, 160
	synthRows, synthTopK, synthEvery = 320001536, 10, 4
)

// synthHeads are the published sizes of the hash's ranges.
var synthHeads = []uint64{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081, 20000093, 20000107, 20000147, 20000153,
	20000159, 20000161, 20000171}

func (c *SynthConfig) check() error {
	if c.Layers == 0 {
		c.Layers = 12
	}
	if c.Experts == 0 {
		c.Experts = 512
	}
	if c.Mix == "" {
		c.Mix = "iq4_nl"
	}
	if c.Rows == 0 {
		c.Rows = synthRows
	}
	if c.Vocab == 0 {
		c.Vocab = synthVocab
	}
	switch {
	case c.Path == "":
		return errors.New("no file to write")
	case c.Layers < synthEvery || c.Layers > 48 || c.Layers%synthEvery != 0:
		return fmt.Errorf("%d layers, want a multiple of %d up to 48", c.Layers, synthEvery)
	case c.Experts < synthTopK || c.Experts > 512:
		return fmt.Errorf("%d experts, want %d to 512", c.Experts, synthTopK)
	case c.Mix != "q2_0" && c.Mix != "iq4_nl":
		return fmt.Errorf("mix %q, want q2_0 or iq4_nl", c.Mix)
	case c.Rows < 1024 || c.Rows > synthRows:
		return fmt.Errorf("a table of %d rows, want 1024 to %d", c.Rows, synthRows)
	case c.Vocab < tinymodel.MinVocab || c.Vocab > synthVocab:
		return fmt.Errorf("a vocabulary of %d tokens, want %d to %d", c.Vocab, tinymodel.MinVocab, synthVocab)
	case c.Tokens < 0:
		return fmt.Errorf("%d tokens", c.Tokens)
	}
	return nil
}

// synth collects a file's tensors.
type synth struct {
	c    SynthConfig
	rng  *rand.Rand
	list []gguf.WriteTensor
	pool map[poolKey][]byte
}

// poolKey says what rows of a pool are like; dev is their elements' deviation.
type poolKey struct {
	t   gguf.Type
	in  int
	dev float64
}

// poolRows is the number of distinct rows: encoding is slow, and a file is drawn from few.
const poolRows = 61

// rows is a pool of encoded rows.
func (s *synth) rows(k poolKey) ([]byte, error) {
	if b := s.pool[k]; b != nil {
		return b, nil
	}
	x := make([]float32, k.in*poolRows)
	for i := range x {
		x[i] = float32(s.rng.NormFloat64() * k.dev)
	}
	b := make([]byte, poolRows*k.t.RowBytes(k.in))
	if err := quant.Encode(k.t, b, x); err != nil {
		return nil, err
	}
	s.pool[k] = b
	return b, nil
}

// matrix adds a tensor of random rows, gain times as large as keeps the size of what it multiplies.
func (s *synth) matrix(name string, t gguf.Type, gain float64, dims ...int) {
	k := poolKey{t, dims[0], gain / math.Sqrt(float64(dims[0]))}
	n := 1
	for _, d := range dims[1:] {
		n *= d
	}
	s.add(name, t, func(w io.Writer) error {
		pool, err := s.rows(k)
		if err != nil {
			return err
		}
		size := t.RowBytes(k.in)
		for range n {
			i := s.rng.IntN(poolRows) * size
			if _, err := w.Write(pool[i : i+size]); err != nil {
				return err
			}
		}
		return nil
	}, dims...)
}

// vector adds an F32 tensor with the elements that at gives.
func (s *synth) vector(name string, at func() float64, dims ...int) {
	n := 1
	for _, d := range dims {
		n *= d
	}
	s.add(name, gguf.F32, func(w io.Writer) error {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(at())
		}
		b := make([]byte, 4*n)
		if err := quant.Encode(gguf.F32, b, x); err != nil {
			return err
		}
		_, err := w.Write(b)
		return err
	}, dims...)
}

func (s *synth) add(name string, t gguf.Type, fill func(w io.Writer) error, dims ...int) {
	x := gguf.WriteTensor{Name: name, Type: t, Fill: fill}
	for _, d := range dims {
		x.Dims = append(x.Dims, uint64(d))
	}
	s.list = append(s.list, x)
}

func (s *synth) norm(name string, n int) {
	s.vector(name, func() float64 { return 1 + 0.2*s.rng.NormFloat64() }, n)
}

func (s *synth) mixer(prefix string, inject bool) {
	const all = synthStreams * synthEmbd
	s.norm(prefix+"_norm.weight", all)
	s.matrix(prefix+"_down.weight", gguf.Q8_0, 2.5, all, synthRank)
	s.matrix(prefix+"_up.weight", gguf.Q8_0, 2, synthRank, all)
	if inject {
		s.matrix(prefix+"_inject.weight", gguf.F32, 3, all, synthStreams)
	}
}

func (s *synth) layer(i int) {
	const all, q8 = synthStreams * synthEmbd, gguf.Q8_0
	name := func(n string) string { return fmt.Sprintf("blk.%d.%s", i, n) }
	s.mixer(name("hc_attn"), true)
	s.mixer(name("hc_ffn"), true)
	if i%synthEvery == synthEvery-1 {
		s.matrix(name("attn_q.weight"), q8, 1, synthEmbd, 2*synthInner)
		s.matrix(name("attn_k.weight"), q8, 1, synthEmbd, 512)
		s.matrix(name("attn_v.weight"), q8, 1, synthEmbd, 512)
		s.matrix(name("attn_output.weight"), q8, 1, synthInner, synthEmbd)
		s.norm(name("attn_q_norm.weight"), 256)
		s.norm(name("attn_k_norm.weight"), 256)
		s.matrix(name("indexer.q_proj.weight"), q8, 1, synthEmbd, 512)
		s.matrix(name("indexer.k_proj.weight"), q8, 1, synthEmbd, 128)
		s.norm(name("indexer.q_norm.weight"), 128)
		s.norm(name("indexer.k_norm.weight"), 128)
	} else {
		s.matrix(name("attn_qkv.weight"), q8, 1, synthEmbd, synthChannels)
		s.matrix(name("attn_gate.weight"), q8, 1, synthEmbd, synthInner)
		s.vector(name("ssm_conv1d.weight"), func() float64 { return 0.5 * s.rng.NormFloat64() }, 4, synthChannels)
		s.vector(name("ssm_dt.bias"), func() float64 { return s.rng.NormFloat64() - 3 }, 48)
		s.vector(name("ssm_a"), func() float64 { return -math.Exp(s.rng.NormFloat64()) }, 48)
		s.matrix(name("ssm_beta.weight"), q8, 1, synthEmbd, 48)
		s.matrix(name("ssm_alpha.weight"), q8, 1, synthEmbd, 48)
		s.norm(name("ssm_norm.weight"), 128)
		s.matrix(name("ssm_out.weight"), q8, 1, synthInner, synthEmbd)
	}
	if i == 1 {
		s.matrix(name("ple_key.weight"), q8, 1, synthEmbd, all)
		s.matrix(name("ple_value.weight"), q8, 1, synthEmbd, synthEmbd)
		for _, n := range []string{"key", "query", "conv"} {
			s.norm(name("ple_norm_"+n+".weight"), all)
		}
		s.vector(name("ple_conv1d.weight"), func() float64 { return 0.5 * s.rng.NormFloat64() }, 4, all)
	}
	gate, down := gguf.Q4_K, gguf.IQ4NL
	if s.c.Mix == "q2_0" {
		gate, down = gguf.Q2_0, gguf.Q2_0
	}
	s.matrix(name("ffn_gate_inp.weight"), gguf.F32, 2, synthEmbd, s.c.Experts)
	s.matrix(name("ffn_gate_exps.weight"), gate, 1, synthEmbd, synthFF, s.c.Experts)
	s.matrix(name("ffn_up_exps.weight"), gate, 1, synthEmbd, synthFF, s.c.Experts)
	s.matrix(name("ffn_down_exps.weight"), down, 1, synthFF, synthEmbd, s.c.Experts)
	s.matrix(name("ffn_gate_inp_shexp.weight"), gguf.F32, 1, synthEmbd)
	s.matrix(name("ffn_gate_shexp.weight"), q8, 1, synthEmbd, synthFF)
	s.matrix(name("ffn_up_shexp.weight"), q8, 1, synthEmbd, synthFF)
	s.matrix(name("ffn_down_shexp.weight"), q8, 1, synthFF, synthEmbd)
}

// metadata describes the model; a smaller table has its heads' ranges in proportion.
func (s *synth) metadata() []gguf.Field {
	c := &s.c
	sizes, starts, ratios := make([]uint64, len(synthHeads)), make([]uint64, len(synthHeads)), make([]int32, c.Layers)
	at := uint64(0)
	for i, n := range synthHeads {
		if c.Rows < synthRows {
			n = uint64(c.Rows) / uint64(len(synthHeads))
		}
		sizes[i], starts[i], at = n, at, at+n
	}
	for i := synthEvery - 1; i < c.Layers; i += synthEvery {
		ratios[i] = 4
	}
	meta := []gguf.Field{{Key: "general.architecture", Value: "qwen4exp"}, {Key: "general.name", Value: fmt.Sprintf("synthetic Qwen3.8-Flash-Next, %d of 48 layers", c.Layers)}}
	for _, x := range []struct {
		key   string
		value any
	}{
		{"block_count", uint32(c.Layers)}, {"context_length", uint32(262144)}, {"embedding_length", uint32(synthEmbd)}, {"feed_forward_length", uint32(synthFF)},
		{"attention.head_count", uint32(24)}, {"attention.head_count_kv", uint32(2)}, {"attention.key_length", uint32(256)}, {"attention.value_length", uint32(256)},
		{"attention.layer_norm_rms_epsilon", float32(1e-6)}, {"rope.dimension_count", uint32(64)}, {"rope.freq_base", float32(1e7)},
		{"rope.dimension_sections", []int32{11, 11, 10, 0}}, {"full_attention_interval", uint32(synthEvery)},
		{"ssm.conv_kernel", uint32(4)}, {"ssm.inner_size", uint32(synthInner)}, {"ssm.state_size", uint32(128)}, {"ssm.time_step_rank", uint32(48)}, {"ssm.group_count", uint32(16)},
		{"expert_count", uint32(c.Experts)}, {"expert_used_count", uint32(synthTopK)}, {"expert_feed_forward_length", uint32(synthFF)},
		{"expert_shared_feed_forward_length", uint32(synthFF)}, {"hyper_connection.count", uint32(synthStreams)}, {"hyper_connection.low_rank", uint32(synthRank)},
		{"attention.indexer.head_count", uint32(4)}, {"attention.indexer.key_length", uint32(128)}, {"attention.indexer.top_k", uint32(2048)},
		{"attention.compress_ratios", ratios}, {"ple.layers", []uint32{1}}, {"ple.ngram_size", uint32(3)}, {"ple.heads_per_ngram", uint32(8)}, {"ple.conv_kernel", uint32(4)},
		{"ple.eos_token_id", uint32(tinymodel.ImEnd)}, {"embedding_length_per_layer_input", uint32(synthGram)},
		{"ple.layer_multipliers", []uint64{23703573157769, 20109073645365, 8052911324071}}, {"ple.head_vocab_sizes", sizes}, {"ple.head_offsets", starts},
	} {
		meta = append(meta, gguf.Field{Key: "qwen4exp." + x.key, Value: x.value})
	}
	return append(meta, tinymodel.Vocabulary(c.Vocab)...)
}

// hole is what stands for zeros that shall not be written.
var hole = make([]byte, 1<<20)

// holes writes to a file, and goes over parts of hole without writing them.
type holes struct {
	f *os.File
	w *bufio.Writer
	n int64 // bytes, holes included
}

func (h *holes) Write(b []byte) (int, error) {
	h.n += int64(len(b))
	if len(b) == 0 || &b[0] != &hole[0] {
		return h.w.Write(b)
	}
	if err := h.w.Flush(); err != nil {
		return 0, err
	}
	_, err := h.f.Seek(int64(len(b)), io.SeekCurrent)
	return len(b), err
}

// Synth writes the file. It does not write over another, and leaves nothing behind when it fails.
func Synth(c SynthConfig) (r *SynthReport, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	s := &synth{c: c, rng: rand.New(rand.NewPCG(c.Seed, 11)), pool: map[poolKey][]byte{}}
	s.matrix("token_embd.weight", gguf.Q8_0, math.Sqrt(synthEmbd), synthEmbd, c.Vocab)
	s.matrix("output.weight", gguf.Q8_0, 1, synthEmbd, c.Vocab)
	s.mixer("output_hc", false)
	for i := range c.Layers {
		s.layer(i)
	}
	size := int64(gguf.IQ4NL.RowBytes(synthGram)) * c.Rows
	s.add("per_layer_token_embd.weight", gguf.IQ4NL, func(w io.Writer) error {
		for left := size; left > 0; left -= int64(len(hole)) {
			if _, err := w.Write(hole[:min(left, int64(len(hole)))]); err != nil {
				return err
			}
		}
		return nil
	}, synthGram, int(c.Rows))
	f, err := os.OpenFile(c.Path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			r, err = nil, errors.Join(err, os.Remove(c.Path))
		}
	}()
	h := &holes{f: f, w: bufio.NewWriterSize(f, 4<<20)}
	if err := gguf.Write(h, gguf.WriteFile{Metadata: s.metadata(), Tensors: s.list}); err != nil {
		return nil, err
	}
	if err := errors.Join(h.w.Flush(), f.Truncate(h.n)); err != nil {
		return nil, err
	}
	return s.fill(f, size)
}

// fill writes the rows of the table that the first tokens of the other benches need, and reports what the file holds.
func (s *synth) fill(f *os.File, size int64) (*SynthReport, error) {
	g, err := gguf.Open(s.c.Path)
	if err != nil {
		return nil, err
	}
	m, err := model.Load(g, model.Options{})
	if err != nil {
		return nil, err
	}
	p := m.Footprint()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r := &SynthReport{Path: s.c.Path, Size: st.Size(), Holes: size, Expert: p.LargestExpert, Experts: p.Experts, Dense: p.Dense}
	pool, err := s.rows(poolKey{gguf.IQ4NL, synthGram, 1})
	if err != nil {
		return nil, err
	}
	t := m.Table()
	n := int64(gguf.IQ4NL.RowBytes(synthGram))
	done := map[int64]bool{}
	var window []int32
	for rng := benchRand(); s.c.Tokens > 0; s.c.Tokens-- {
		window = append(window, int32(rng.IntN(s.c.Vocab)))
		window = window[max(0, len(window)-3):]
		for _, row := range m.TableRows(window) {
			if done[row] {
				continue
			}
			done[row] = true
			i := row % poolRows * n // a row's bytes do not depend on the order
			if _, err := f.WriteAt(pool[i:i+n], t.Offset+row*n); err != nil {
				return nil, err
			}
		}
	}
	r.TableRows = len(done)
	return r, nil
}
