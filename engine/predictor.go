package engine

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"unsafe"

	"terrace/compute"
	"terrace/gguf"
	"terrace/kernels"
	"terrace/model"
	"terrace/quant"
	"terrace/router"
)

// The predictor's profile: fitted maps on disk, and how an engine uses them. Layout, little-endian: magic, the model's
// fingerprint (a length and bytes), layers, experts, embd, number of maps; for each map at, target, the type of State and
// its bytes, Prev and Bias as float32; at the end the CRC-32C of everything before.

const predictorMagic = "TERRACE-PREDICTOR-1\n"

// ErrProfile is wrapped by refusals of a predictor profile: damaged, of another version, or of another model.
var ErrProfile = errors.New("predictor profile")

// guessType is how a map's State is kept and multiplied: guesses steer reads only, and Q8_0 costs no measurable recall
// while it takes a quarter of the memory and of the time of float32.
func guessType(embd int) gguf.Type {
	if embd%gguf.Q8_0.BlockSize() == 0 {
		return gguf.Q8_0
	}
	return gguf.F32
}

// WritePredictor writes maps of a model to w.
func WritePredictor(w io.Writer, fingerprint string, c model.Config, maps []router.Map) error {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	out := bufio.NewWriterSize(io.MultiWriter(w, h), 1<<16)
	num := func(v int) { binary.Write(out, binary.LittleEndian, uint32(v)) } // errors stay in out until Flush
	out.WriteString(predictorMagic)
	num(len(fingerprint))
	out.WriteString(fingerprint)
	for _, v := range []int{c.Layers, c.Experts, c.Embd, len(maps)} {
		num(v)
	}
	t := guessType(c.Embd)
	b := make([]byte, t.RowBytes(c.Embd)*c.Experts)
	for i := range maps {
		m := &maps[i]
		if len(m.State) != c.Experts*c.Embd || len(m.Prev) != c.Experts*c.Experts || len(m.Bias) != c.Experts || len(m.Own) != 0 {
			panic("engine: a map to be written is of another shape than the model")
		}
		num(m.At)
		num(m.Target)
		num(int(t))
		if err := quant.Encode(t, b, m.State); err != nil {
			return fmt.Errorf("map from layer %d to %d: %w", m.At, m.Target, err)
		}
		out.Write(b)
		binary.Write(out, binary.LittleEndian, m.Prev)
		binary.Write(out, binary.LittleEndian, m.Bias)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return binary.Write(w, binary.LittleEndian, h.Sum32())
}

// fittedMap is a map as it is used: State stays quantised.
type fittedMap struct {
	router.Map
	state compute.Matrix
}

// readPredictor reads a profile for a model; its errors wrap ErrProfile and name the file, or are those of opening it.
func readPredictor(path, fingerprint string, c model.Config) ([]fittedMap, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", path, ErrProfile, fmt.Sprintf(format, args...))
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	each := int64(guessType(c.Embd).RowBytes(c.Embd)*c.Experts + 4*c.Experts*(c.Experts+1) + 12)
	if most := 2*int64(c.Layers)*each + 4096; !st.Mode().IsRegular() || st.Size() > most {
		return nil, bad("want a regular file of at most %d bytes for %d layers, it has %d", most, c.Layers, st.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) < len(predictorMagic)+4 || string(data[:len(predictorMagic)]) != predictorMagic {
		return nil, bad("does not begin with %q", predictorMagic)
	}
	sum := crc32.Checksum(data[:len(data)-4], crc32.MakeTable(crc32.Castagnoli))
	if want := binary.LittleEndian.Uint32(data[len(data)-4:]); sum != want {
		return nil, bad("checksum %08x, the file says %08x", sum, want)
	}
	in := bytes.NewReader(data[len(predictorMagic) : len(data)-4])
	short := false
	num := func() int {
		var v uint32
		if binary.Read(in, binary.LittleEndian, &v) != nil {
			short = true
		}
		return int(v)
	}
	take := func(n int) []byte {
		if n < 0 || n > in.Len() {
			short = true
			return nil
		}
		b := make([]byte, n)
		io.ReadFull(in, b)
		return b
	}
	if fp := string(take(num())); fp != fingerprint {
		return nil, bad("is of model %q, this one is %q", fp, fingerprint)
	}
	for _, want := range []struct {
		name string
		n    int
	}{{"layers", c.Layers}, {"experts", c.Experts}, {"embedding length", c.Embd}} {
		if n := num(); n != want.n {
			return nil, bad("%s %d, the model has %d", want.name, n, want.n)
		}
	}
	floats := func(n int) []float32 {
		b := take(4 * n)
		out := make([]float32, len(b)/4)
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		return out
	}
	n := num()
	if n > 2*c.Layers {
		return nil, bad("%d maps for %d layers", n, c.Layers)
	}
	var maps []fittedMap
	for range n {
		var f fittedMap
		f.At, f.Target = num(), num()
		t := gguf.Type(num())
		if short || t != guessType(c.Embd) {
			return nil, bad("map %d is of type %d, want %s", len(maps), uint32(t), guessType(c.Embd))
		}
		f.state = compute.Matrix{Type: t, In: c.Embd, Out: c.Experts, Data: take(t.RowBytes(c.Embd) * c.Experts)}
		f.Prev = floats(c.Experts * c.Experts)
		f.Bias = floats(c.Experts)
		maps = append(maps, f)
	}
	if short || in.Len() != 0 {
		return nil, bad("%d bytes are left, or some are missing, after %d maps", in.Len(), len(maps))
	}
	return maps, nil
}

// multiplier is a Linear.Mul over the kernels; not for concurrent use.
func multiplier() func(dst, w, x []float32) {
	var a kernels.Act
	var s kernels.Scratch
	var out []float32
	return func(dst, w, x []float32) {
		if len(out) < len(dst) {
			out = make([]float32, len(dst))
		}
		a.Reset(kernels.ActF32, 1, len(x))
		a.Set(0, x)
		kernels.MatMul(out, len(dst), gguf.F32, unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w)), &a, 0, len(dst), 0, 1, &s)
		for i := range dst {
			dst[i] += out[i]
		}
	}
}
