package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"terrace/chat"
	"terrace/gguf"
	"terrace/internal/testfile"
	"terrace/sample"
)

// mutant is a changed model file and what may come of it.
type mutant struct {
	what string
	data []byte
	same bool // nothing that counts was changed: the answer is the original's
	cut  bool // bytes are missing that a tensor needs: there must be an error
}

// mutate makes the nth mutant of a file, always the same one.
func mutate(name string, data []byte, n int) mutant {
	seed := fnv.New64a()
	seed.Write([]byte(name))
	r := rand.New(rand.NewPCG(seed.Sum64(), uint64(n)))
	f, err := gguf.OpenReader(bytes.NewReader(data), int64(len(data)), name)
	if err != nil {
		panic(err)
	}
	head := int(f.Shards[0].DataStart)
	b := bytes.Clone(data)
	fields := f.Metadata.Fields()
	// again writes the file anew with a change, if the writer takes it.
	again := func(edit func(w *gguf.WriteFile)) bool {
		w := gguf.WriteFile{Version: f.Version, Metadata: slices.Clone(fields)}
		for _, x := range f.Tensors {
			w.Tensors = append(w.Tensors, gguf.WriteTensor{Name: x.Name, Type: x.Type, Dims: slices.Clone(x.Dims[:x.NDims]), Data: data[x.Offset:x.End()]})
		}
		edit(&w)
		var out bytes.Buffer
		if gguf.Write(&out, w) != nil {
			return false
		}
		b = out.Bytes()
		return true
	}
	// at is where the value of a metadata key begins, its type before it.
	at := func(key string) int {
		head := binary.LittleEndian.AppendUint64(nil, uint64(len(key)))
		return bytes.Index(data, append(head, key...)) + 8 + len(key) + 4
	}
	numbers := []uint64{0, 1, 2, 3, 7, 255, 1 << 15, 1<<16 - 1, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 33, 1<<63 - 1, 1 << 63, math.MaxUint64,
		uint64(math.Float32bits(float32(math.NaN()))), uint64(math.Float32bits(float32(math.Inf(-1)))), math.Float64bits(-1)}
	number := func(to []byte) string {
		v := numbers[r.IntN(len(numbers))]
		if len(to) >= 8 && r.IntN(2) == 0 {
			binary.LittleEndian.PutUint64(to, v)
			return fmt.Sprintf("64 bits %#x", v)
		}
		binary.LittleEndian.PutUint32(to, uint32(v))
		return fmt.Sprintf("32 bits %#x", uint32(v))
	}
	field := fields[r.IntN(len(fields))]
	tensor := func() *gguf.Tensor { return &f.Tensors[r.IntN(len(f.Tensors))] }
	info := func(x *gguf.Tensor) int { // where the description of a tensor goes on after its name
		h := binary.LittleEndian.AppendUint64(nil, uint64(len(x.Name)))
		return bytes.LastIndex(data[:head], append(h, x.Name...)) + 8 + len(x.Name)
	}
	switch n % 15 {
	case 0:
		k := r.IntN(head)
		return mutant{what: fmt.Sprintf("cut at %d of the header's %d bytes", k, head), data: b[:k], cut: true}
	case 1:
		k := head + r.IntN(len(b)-head)
		last := f.Tensors[len(f.Tensors)-1]
		return mutant{what: fmt.Sprintf("cut at %d of %d bytes", k, len(b)), data: b[:k], cut: int64(k) < last.End()}
	case 2:
		what := "header bits"
		for range 1 + r.IntN(4) {
			k := r.IntN(head)
			b[k] ^= 1 << r.IntN(8)
			what += fmt.Sprintf(" %d", k)
		}
		return mutant{what: what, data: b}
	case 3:
		k := 8 + r.IntN(16-7)
		return mutant{what: "a count: " + number(b[k:]), data: b}
	case 4, 5, 6: // most fields are the architecture's
		what := number(b[at(field.Key):])
		return mutant{what: field.Key + ": " + what, data: b}
	case 7:
		binary.LittleEndian.PutUint32(b[at(field.Key)-4:], uint32(r.IntN(14)))
		return mutant{what: "the type of " + field.Key, data: b}
	case 8:
		again(func(w *gguf.WriteFile) {
			w.Metadata = slices.DeleteFunc(w.Metadata, func(x gguf.Field) bool { return x.Key == field.Key })
		})
		return mutant{what: "without " + field.Key, data: b}
	case 9:
		x := tensor()
		k := info(x)
		switch r.IntN(3) {
		case 0: // a dimension or the offset
			return mutant{what: x.Name + ", dimensions: " + number(b[k+4+8*r.IntN(x.NDims+1):]), data: b}
		case 1:
			binary.LittleEndian.PutUint32(b[k+4+8*x.NDims:], uint32(r.IntN(44)))
			return mutant{what: x.Name + ", type", data: b}
		}
		binary.LittleEndian.PutUint32(b[k:], uint32(r.IntN(6)))
		return mutant{what: x.Name + ", number of dimensions", data: b}
	case 10:
		x, y := r.IntN(len(f.Tensors)), r.IntN(len(f.Tensors))
		what := r.IntN(4)
		again(func(w *gguf.WriteFile) {
			switch what {
			case 0:
				w.Tensors = slices.Delete(w.Tensors, x, x+1)
			case 1:
				w.Tensors[x].Name += ".x"
			case 2:
				w.Tensors[x].Name, w.Tensors[y].Name = w.Tensors[y].Name, w.Tensors[x].Name
			default:
				d := w.Tensors[x].Dims
				if len(d) > 1 {
					d[len(d)-1], w.Tensors[x].Data = d[len(d)-1]-1, w.Tensors[x].Data[:uint64(len(w.Tensors[x].Data))/d[len(d)-1]*(d[len(d)-1]-1)]
				}
			}
		})
		return mutant{what: fmt.Sprintf("tensors %s and %s, %d", f.Tensors[x].Name, f.Tensors[y].Name, what), data: b}
	case 11: // weights: any bits are numbers, some of them not finite
		x := tensor()
		if x.Length == 0 {
			return mutant{what: "nothing", data: b, same: true}
		}
		for range 1 + r.IntN(200) {
			b[x.Offset+r.Int64N(x.Length)] = byte(r.Uint32())
		}
		return mutant{what: "the weights of " + x.Name, data: b}
	case 12: // texts: vocabulary, merges, template
		var texts []int
		for i, x := range fields {
			switch x.Value.(type) {
			case string, *gguf.StringArray, []string:
				texts = append(texts, i)
			}
		}
		i := texts[r.IntN(len(texts))]
		junk := []string{"", "\x00", "\xff\xfe", "{{ ", "{% for i in range(1000000000) %}{{ i }}{% endfor %}", "{{ x.y.z }}", "a b c", " ", strings.Repeat("ab", 5000), "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"}
		again(func(w *gguf.WriteFile) {
			switch v := w.Metadata[i].Value.(type) {
			case string:
				w.Metadata[i].Value = junk[r.IntN(len(junk))]
			case *gguf.StringArray:
				var list []string
				for k := range v.Len() {
					list = append(list, v.At(k))
				}
				if r.IntN(3) == 0 {
					list = list[:r.IntN(len(list)+1)]
				}
				for range min(len(list), 1+r.IntN(30)) {
					list[r.IntN(len(list))] = junk[r.IntN(len(junk))]
				}
				w.Metadata[i].Value = list
			}
		})
		return mutant{what: "the text of " + fields[i].Key, data: b}
	case 13: // a piece of the file is put elsewhere
		k := 1 + r.IntN(64)
		from, to := r.IntN(len(b)-k), r.IntN(head-k)
		copy(b[to:to+k], data[from:from+k])
		return mutant{what: fmt.Sprintf("%d bytes of %d at %d", k, from, to), data: b}
	}
	alignment := uint32(32 << r.IntN(4))
	ok := again(func(w *gguf.WriteFile) { // another order and alignment, and keys that are nobody's business
		w.Metadata = slices.DeleteFunc(w.Metadata, func(x gguf.Field) bool { return x.Key == "general.alignment" })
		w.Metadata = append(w.Metadata, gguf.Field{Key: "general.alignment", Value: alignment}, gguf.Field{Key: "general.note", Value: "x"})
		r.Shuffle(len(w.Metadata), func(i, j int) { w.Metadata[i], w.Metadata[j] = w.Metadata[j], w.Metadata[i] })
		r.Shuffle(len(w.Tensors), func(i, j int) { w.Tensors[i], w.Tensors[j] = w.Tensors[j], w.Tensors[i] })
	})
	return mutant{what: "another order", data: b, same: ok}
}

// use asks a model file for all that a run would: a rendered chat and an answer. It gives the hash of the logits.
func use(path string) (hash string, failed error) {
	defer func() {
		if p := recover(); p != nil {
			failed = fmt.Errorf("PANIC %v\n%s", p, debug.Stack())
		}
	}()
	e, err := Open(Options{Path: path, Context: 64, Batch: 7, Threads: 2, RAM: 256 << 20, ExpertRAM: ExpertBudget{Percent: 90}, Lookahead: 1})
	if err != nil {
		return "", err
	}
	defer func() { failed = errors.Join(failed, e.Close()) }()
	h := sha256.New()
	if _, err := e.Chat(chat.Conversation{Messages: []chat.Message{{Role: "user", Content: "hello"}}, AddGenerationPrompt: true}); err != nil && strings.Contains(err.Error(), "\n") {
		return "", err
	}
	s, err := e.NewSession()
	if err != nil {
		return "", err
	}
	defer s.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	vocab := int32(e.Model().Config().Vocab)
	prompt := make([]int32, 12)
	for i := range prompt {
		prompt[i] = int32(i*i*7+3*i+11) % vocab
	}
	if _, err := s.Sync(ctx, prompt); err != nil {
		return "", err
	}
	for _, v := range s.Logits() {
		binary.Write(h, binary.LittleEndian, math.Float32bits(v))
	}
	sm, err := sample.New(sample.Params{Vocab: int(vocab), Samplers: []string{"temperature"}, TypicalP: 1, TopP: 1, RepeatPenalty: 1, EOG: e.Tokenizer().EOG()})
	if err != nil {
		return "", err
	}
	if _, err := s.Generate(ctx, Request{Prompt: prompt, Max: 6, Sampler: sm, Emit: func([]byte) error { return nil }}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// TestMalformedModels: whatever is done to a model's file, there is an error of one line or an answer, never a panic; cut files
// are always refused, and a file that is only written another way answers as the original does. 15 kinds of changes over every
// golden model: one file of each in turn, or with TERRACE_EXACT=whole 300 of each.
func TestMalformedModels(t *testing.T) {
	packed, err := filepath.Glob("../testdata/golden/*/model.drawn.gz")
	if err != nil || len(packed) < 28 {
		t.Fatalf("%d fixtures, %v", len(packed), err)
	}
	each := 2
	if exactWhole {
		each = 300
	}
	dir := t.TempDir()
	refused, answered := map[string]int{}, 0
	for turn, p := range packed {
		name := filepath.Base(filepath.Dir(p))
		t.Run(name, func(t *testing.T) {
			data := testfile.Gunzip(t, p)
			path := filepath.Join(dir, name+".gguf")
			put := func(b []byte) {
				if err := os.WriteFile(path, b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			put(data)
			want, err := use(path)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for i := range each {
				n := i
				if !exactWhole {
					n = turn*each + i
				}
				m := mutate(name, data, n)
				put(m.data)
				start := time.Now()
				got, err := use(path)
				what := fmt.Sprintf("%s, mutant %d (%s)", name, n, m.what)
				switch {
				case err == nil && m.cut:
					t.Errorf("%s: is not refused", what)
				case err == nil && m.same && got != want:
					t.Errorf("%s: logits %s, the original has %s", what, got, want)
				case err != nil && m.same:
					t.Errorf("%s: %v", what, err)
				case err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 1000 || strings.Contains(err.Error(), "runtime error")):
					t.Errorf("%s: unfit error %.4000q", what, err)
				}
				if d := time.Since(start); d > 30*time.Second {
					t.Errorf("%s: took %v", what, d)
				}
				if err == nil {
					answered++
				} else {
					refused[kindOfError(err)]++
				}
			}
			os.Remove(path)
		})
	}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(refused)) {
		total += refused[k]
	}
	t.Logf("%d models, %d malformed files: %d refused %v, %d answered", len(packed), total+answered, total, refused, answered)
}

// kindOfError says who refused.
func kindOfError(err error) string {
	switch {
	case errors.Is(err, gguf.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, gguf.ErrUnsupported):
		return "unsupported format"
	case errors.Is(err, ErrDoesNotFit):
		return "does not fit"
	}
	return "model, tokenizer or template"
}
