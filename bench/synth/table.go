package synth

import (
	"fmt"
	"math"
	"os"
	"slices"

	"terrace/gguf"
	"terrace/quant"
)

// ngramHash names the rows of an n-gram table: each head of each length of n-gram has one for it.
type ngramHash struct {
	perGram     int
	eos         uint64
	multipliers []uint64 // of the token itself, the one before, and so on
	sizes       []uint64 // rows of each head
	offsets     []uint64 // where they begin
}

func hashOf(s *shape) *ngramHash {
	h := &ngramHash{perGram: s.perGram, eos: uint64(s.eos), multipliers: s.multipliers, sizes: s.headSizes}
	at := uint64(0)
	for _, n := range h.sizes {
		h.offsets = append(h.offsets, at)
		at += n
	}
	return h
}

// rows appends the rows that a sequence of tokens reads, from an empty context on.
func (h *ngramHash) rows(dst []uint64, seq []int32, vocab uint64) ([]uint64, error) {
	for i, id := range seq {
		if id < 0 || uint64(id) >= vocab {
			return nil, fmt.Errorf("token %d of a sequence is %d, the vocabulary has %d", i, id, vocab)
		}
		mix := uint64(id) * h.multipliers[0]
		cut := false
		for k := 1; k < len(h.multipliers); k++ {
			prev := h.eos
			if !cut && i >= k && uint64(seq[i-k]) != h.eos {
				prev = uint64(seq[i-k])
			} else {
				cut = true // what is older than an end of text counts as one too
			}
			mix ^= prev * h.multipliers[k]
			for g := (k - 1) * h.perGram; g < k*h.perGram; g++ {
				dst = append(dst, mix%h.sizes[g]+h.offsets[g])
			}
		}
	}
	return dst, nil
}

// unique sorts rows and drops what stands twice.
func unique(rows []uint64) []uint64 {
	slices.Sort(rows)
	return slices.Compact(rows)
}

// pages is what ascending rows of size bytes from start on take of a disk whose files have pages of 4096 bytes.
func pages(rows []uint64, start, size int64) (n int64) {
	last := int64(-1)
	for _, r := range rows {
		first, end := (start+int64(r)*size)/4096, (start+int64(r+1)*size-1)/4096
		n += end - max(first, last+1) + 1
		last = end
	}
	return n * 4096
}

// rowMaker makes the bytes of table rows, each from its number alone.
type rowMaker struct {
	t     gguf.Type
	seed  uint64
	v     []float32
	bytes []byte
}

func newRowMaker(t gguf.Type, width int, seed uint64) *rowMaker {
	return &rowMaker{t: t, seed: seed, v: make([]float32, width), bytes: make([]byte, t.RowBytes(width))}
}

// row is valid until the next call.
func (m *rowMaker) row(n uint64) ([]byte, error) {
	r := newRandom(m.seed, "row")
	r.state += n * 0xd1342543de82ef95
	for i := range m.v {
		m.v[i] = float32(r.normal())
	}
	return m.bytes, quant.Encode(m.t, m.bytes, m.v)
}

// AddRows writes the rows of the n-gram table that sequences of tokens read into a file that Write made, and answers how
// many rows these are. It refuses every file that does not say that it is synthetic.
func AddRows(path string, seed uint64, seqs [][]int32) (rows int, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	if !f.Metadata.Has(keySynthetic) {
		return 0, fmt.Errorf("%s: no key %q: rows are written into synthetic files alone", path, keySynthetic)
	}
	t, ok := f.Tensor(tableTensor)
	if !ok {
		return 0, fmt.Errorf("%s: tensor %q is missing", path, tableTensor)
	}
	h, vocab, err := readHash(f)
	if err != nil {
		return 0, err
	}
	var list []uint64
	for _, seq := range seqs {
		if list, err = h.rows(list, seq, vocab); err != nil {
			return 0, err
		}
	}
	list = unique(list)
	if n := len(list); n > 0 && list[n-1] >= t.Dims[1] {
		return 0, fmt.Errorf("%s: row %d of tensor %q, which has %d", path, list[n-1], tableTensor, t.Dims[1])
	}
	out, err := os.OpenFile(f.Shards[t.Extent.Shard].Path, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	if err := writeRows(out, t.Type, int(t.Dims[0]), seed, t.Extent.Offset, list); err != nil {
		return 0, err
	}
	return len(list), out.Sync()
}

// FileVocab is the size of the vocabulary of a file that Write made.
func FileVocab(path string) (int, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return 0, err
	}
	arch, err := f.Metadata.String("general.architecture")
	if err != nil {
		return 0, err
	}
	n, err := f.Metadata.Uint(arch + ".vocab_size")
	if err == nil && (n < 1 || n > math.MaxInt32) {
		err = fmt.Errorf("%s: metadata key %q is %d", path, arch+".vocab_size", n)
	}
	return int(n), err
}

const tableTensor = "per_layer_token_embd.weight"

func writeRows(out *os.File, t gguf.Type, width int, seed uint64, start int64, rows []uint64) error {
	m := newRowMaker(t, width, seed)
	for _, n := range rows {
		b, err := m.row(n)
		if err != nil {
			return err
		}
		if _, err := out.WriteAt(b, start+int64(n)*int64(len(b))); err != nil {
			return err
		}
	}
	return nil
}

// readHash takes the rule of a file's table from its metadata.
func readHash(f *gguf.File) (h *ngramHash, vocab uint64, err error) {
	h = &ngramHash{}
	arch, err := f.Metadata.String("general.architecture")
	if err != nil {
		return nil, 0, err
	}
	one := func(key string) uint64 {
		if err != nil {
			return 0
		}
		var v uint64
		v, err = f.Metadata.Uint(arch + "." + key)
		return v
	}
	list := func(key string) []uint64 {
		if err != nil {
			return nil
		}
		var v []int64
		if v, err = f.Metadata.Ints(arch + "." + key); err != nil {
			return nil
		}
		u := make([]uint64, len(v))
		for i, x := range v {
			u[i] = uint64(x)
		}
		return u
	}
	vocab, h.eos, h.perGram = one("vocab_size"), one("ple.eos_token_id"), int(min(one("ple.heads_per_ngram"), math.MaxInt32))
	h.multipliers, h.sizes, h.offsets = list("ple.layer_multipliers"), list("ple.head_vocab_sizes"), list("ple.head_offsets")
	if err != nil {
		return nil, 0, err
	}
	if n := (len(h.multipliers) - 1) * h.perGram; n < 1 || n != len(h.sizes) || n != len(h.offsets) || slices.Contains(h.sizes, 0) {
		return nil, 0, fmt.Errorf("%s: %d multipliers and %d heads an n-gram, but %d sizes and %d offsets of heads", f.Path, len(h.multipliers), h.perGram, len(h.sizes), len(h.offsets))
	}
	return h, vocab, nil
}
