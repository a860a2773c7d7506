package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// WriteFile is what Write writes.
type WriteFile struct {
	Version  uint32  // 2 or 3; 0 means 3
	Metadata []Field // in this order; general.alignment among them (a uint32) sets the alignment, 32 bytes without it
	Tensors  []WriteTensor
}

// Field is one metadata pair. Value is a bool, a string, a number of one of the format's widths (uint8 to uint64, int8 to
// int64, float32, float64), a slice of one of these, or a *StringArray.
type Field struct {
	Key   string
	Value any
}

// WriteTensor is one tensor and where its bytes come from: Data, or Fill when Data is nil. Fill must write exactly the
// bytes that type and dimensions ask for. At most four dimensions, the contiguous one first.
type WriteTensor struct {
	Name string
	Type Type
	Dims []uint64
	Data []byte
	Fill func(w io.Writer) error
}

// Write writes a single GGUF file to w: header, padding, and the tensors in order, each padded to the alignment. It refuses
// what the reader would refuse, and then writes nothing.
func Write(w io.Writer, f WriteFile) error {
	head, sizes, alignment, err := encodeHeader(f)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	pad := make([]byte, alignment)
	for i, t := range f.Tensors {
		n := &countWriter{w: w, left: sizes[i]}
		if t.Data != nil || t.Fill == nil {
			_, err = n.Write(t.Data)
		} else {
			err = t.Fill(n)
		}
		if err == nil && n.left != 0 {
			err = fmt.Errorf("wrote %d bytes, want %d", sizes[i]-n.left, sizes[i])
		}
		if err != nil {
			return fmt.Errorf("gguf: tensor %q: %w", t.Name, err)
		}
		if _, err := w.Write(pad[:roundUp(sizes[i], alignment)-sizes[i]]); err != nil {
			return err
		}
	}
	return nil
}

// countWriter refuses more than left bytes.
type countWriter struct {
	w    io.Writer
	left int64
}

func (c *countWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > c.left {
		return 0, fmt.Errorf("%d bytes more than the tensor's size", int64(len(b))-c.left)
	}
	n, err := c.w.Write(b)
	c.left -= int64(n)
	return n, err
}

// Create writes a single GGUF file at path, through a temporary file beside it, so that path is never half written, nor after a crash.
func Create(path string, f WriteFile) error {
	tmp, err := createTemp(path, f)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// Layout is where Write puts things, for writers that leave holes: the bytes up to the first tensor, each tensor's offset
// from the file's begin, and the file's size. A tensor without Data needs a Fill, which is not called.
func Layout(f WriteFile) (head []byte, starts []int64, size int64, err error) {
	head, sizes, alignment, err := encodeHeader(f)
	if err != nil {
		return nil, nil, 0, err
	}
	size = int64(len(head))
	starts = make([]int64, len(sizes))
	for i, n := range sizes {
		starts[i] = size
		size += roundUp(n, alignment)
	}
	return head, starts, size, nil
}

// WriteSplit writes f as n files named by PartPath and answers their paths. place says which part, from 0, holds tensor i;
// nil spreads the tensors evenly in order. Part 0 carries all metadata; the others carry the split keys and the alignment.
// Nothing is left behind when it fails before the last file is complete.
func WriteSplit(prefix string, f WriteFile, n int, place func(i int) int) (paths []string, err error) {
	if n < 2 || n > maxParts {
		return nil, fmt.Errorf("gguf: %s: %d parts, want 2 to %d", prefix, n, maxParts)
	}
	if place == nil {
		place = func(i int) int { return i * n / len(f.Tensors) }
	}
	parts := make([]WriteFile, n)
	parts[0].Metadata = append(parts[0].Metadata, f.Metadata...)
	for _, m := range f.Metadata {
		switch m.Key {
		case keySplitNo, keySplitCount, keySplitTensors:
			return nil, fmt.Errorf("gguf: %s: metadata key %q is set by the split itself", prefix, m.Key)
		case keyAlignment:
			for i := 1; i < n; i++ {
				parts[i].Metadata = append(parts[i].Metadata, m)
			}
		}
	}
	for i, t := range f.Tensors {
		p := place(i)
		if p < 0 || p >= n {
			return nil, fmt.Errorf("gguf: %s: tensor %q placed in part %d of %d", prefix, t.Name, p, n)
		}
		parts[p].Tensors = append(parts[p].Tensors, t)
	}
	temps := make([]string, 0, n)
	defer func() {
		for _, t := range temps {
			err = errors.Join(err, os.Remove(t))
		}
	}()
	for i := range parts {
		parts[i].Version = f.Version
		parts[i].Metadata = append(parts[i].Metadata, Field{keySplitNo, uint16(i)}, Field{keySplitCount, uint16(n)},
			Field{keySplitTensors, int32(len(f.Tensors))})
		tmp, err := createTemp(PartPath(prefix, i, n), parts[i])
		if err != nil {
			return nil, err
		}
		temps = append(temps, tmp)
	}
	for i := range parts {
		path := PartPath(prefix, i, n)
		if err := os.Rename(temps[0], path); err != nil {
			return nil, err
		}
		temps = temps[1:]
		paths = append(paths, path)
	}
	return paths, nil
}

// createTemp writes f to a temporary file beside path and answers its name.
func createTemp(path string, f WriteFile) (string, error) {
	out, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-*")
	if err != nil {
		return "", err
	}
	w := bufio.NewWriterSize(out, 1<<20)
	err = Write(w, f)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		// CreateTemp makes files for their owner alone; a model is for everyone, as os.Create would make it.
		err = out.Chmod(0o644)
	}
	if err == nil {
		err = out.Sync()
	}
	err = errors.Join(err, out.Close())
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, errors.Join(err, os.Remove(out.Name())))
	}
	return out.Name(), nil
}

// encodeHeader is everything before the tensor data, padding included, with the size of each tensor in bytes.
func encodeHeader(f WriteFile) (head []byte, sizes []int64, alignment int64, err error) {
	version := f.Version
	if version == 0 {
		version = 3
	}
	if version != 2 && version != 3 {
		return nil, nil, 0, fmt.Errorf("gguf: cannot write version %d, only 2 and 3", version)
	}
	if len(f.Metadata) > maxPairs || len(f.Tensors) > maxTensors {
		return nil, nil, 0, fmt.Errorf("gguf: %d metadata pairs and %d tensors, over the limits of %d and %d", len(f.Metadata), len(f.Tensors), maxPairs, maxTensors)
	}
	alignment = defaultAlignment
	le := binary.LittleEndian
	b := append(make([]byte, 0, 4096), magic...)
	b = le.AppendUint32(b, version)
	b = le.AppendUint64(b, uint64(len(f.Tensors)))
	b = le.AppendUint64(b, uint64(len(f.Metadata)))
	seen := map[string]bool{}
	for i, m := range f.Metadata {
		why := badKey(m.Key)
		if why == "" && len(m.Key) > maxKeyBytes {
			why = fmt.Sprintf("has %d bytes, over the limit of %d", len(m.Key), maxKeyBytes)
		}
		if why == "" && seen[m.Key] {
			why = "stands twice"
		}
		if why != "" {
			return nil, nil, 0, fmt.Errorf("gguf: metadata pair %d: key %q %s", i, short(m.Key), why)
		}
		seen[m.Key] = true
		b = appendString(b, m.Key)
		if b, err = appendValue(b, m.Value); err != nil {
			return nil, nil, 0, fmt.Errorf("gguf: metadata key %q: %w", m.Key, err)
		}
		if m.Key == keyAlignment {
			a, ok := m.Value.(uint32)
			if why := badAlignment(uint64(a)); !ok || why != "" {
				return nil, nil, 0, fmt.Errorf("gguf: metadata key %q is %v (%T), want a uint32 that is a power of two from %d to %d", m.Key, m.Value, m.Value, minAlignment, maxAlignment)
			}
			alignment = int64(a)
		}
	}
	clear(seen)
	var offset int64
	for i, t := range f.Tensors {
		size, why := t.check()
		if why == "" && seen[t.Name] {
			why = "the name stands twice"
		}
		if why == "" && size > math.MaxInt64-offset-alignment {
			why = fmt.Sprintf("%d bytes at offset %d pass %d", size, offset, int64(math.MaxInt64))
		}
		if why != "" {
			return nil, nil, 0, fmt.Errorf("gguf: tensor %d %q: %s", i, t.Name, why)
		}
		seen[t.Name] = true
		b = appendString(b, t.Name)
		b = le.AppendUint32(b, uint32(len(t.Dims)))
		for _, d := range t.Dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint32(b, uint32(t.Type))
		b = le.AppendUint64(b, uint64(offset))
		sizes = append(sizes, size)
		offset += roundUp(size, alignment)
	}
	if len(b) > maxHeader {
		return nil, nil, 0, fmt.Errorf("gguf: the header has %d bytes, over the limit of %d", len(b), maxHeader)
	}
	return append(b, make([]byte, roundUp(int64(len(b)), alignment)-int64(len(b)))...), sizes, alignment, nil
}

// check is the size of t in bytes, or what is wrong with it.
func (t WriteTensor) check() (size int64, why string) {
	if why := badName(t.Name); why != "" {
		return 0, "name " + why
	}
	if len(t.Name) > maxNameBytes {
		return 0, fmt.Sprintf("name has %d bytes, over the limit of %d", len(t.Name), maxNameBytes)
	}
	if len(t.Dims) > maxDims {
		return 0, fmt.Sprintf("%d dimensions, want at most %d", len(t.Dims), maxDims)
	}
	if !t.Type.Known() {
		return 0, t.Type.String() + " is not written"
	}
	dims := [4]uint64{1, 1, 1, 1}
	copy(dims[:], t.Dims)
	size, why = tensorBytes(t.Type, dims)
	if why != "" {
		return 0, fmt.Sprintf("dimensions %v of type %s: %s", t.Dims, t.Type, why)
	}
	if (t.Data != nil || t.Fill == nil) && int64(len(t.Data)) != size {
		return 0, fmt.Sprintf("%d bytes of data, want %d for dimensions %v of type %s", len(t.Data), size, t.Dims, t.Type)
	}
	return size, ""
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// appendValue appends the type and the value of a pair.
func appendValue(b []byte, v any) ([]byte, error) {
	le := binary.LittleEndian
	kind, n, array := kindOf(v)
	if kind > kindLast {
		return nil, fmt.Errorf("a value of type %T has no place in the format", v)
	}
	if array {
		if n > maxArray {
			return nil, fmt.Errorf("%d elements, over the limit of %d", n, maxArray)
		}
		b = le.AppendUint32(b, uint32(KindArray))
		b = le.AppendUint32(b, uint32(kind))
		b = le.AppendUint64(b, uint64(n))
	} else {
		b = le.AppendUint32(b, uint32(kind))
	}
	switch v := v.(type) {
	case string:
		return appendStrings(b, 1, func(int) string { return v })
	case []string:
		return appendStrings(b, n, func(i int) string { return v[i] })
	case *StringArray:
		return appendStrings(b, n, v.At)
	}
	return binary.Append(b, le, v)
}

func appendStrings(b []byte, n int, at func(int) string) ([]byte, error) {
	for i := range n {
		s := at(i)
		if len(s) > maxValueBytes {
			return nil, fmt.Errorf("a string has %d bytes, over the limit of %d", len(s), maxValueBytes)
		}
		b = appendString(b, s)
	}
	return b, nil
}

// kindOf is the format's type of v, that of the elements when v is a slice, with their number; a kind past the last for
// types that the format lacks.
func kindOf(v any) (kind Kind, n int, array bool) {
	switch v := v.(type) {
	case bool:
		return KindBool, 1, false
	case string:
		return KindString, 1, false
	case uint8:
		return KindUint8, 1, false
	case int8:
		return KindInt8, 1, false
	case uint16:
		return KindUint16, 1, false
	case int16:
		return KindInt16, 1, false
	case uint32:
		return KindUint32, 1, false
	case int32:
		return KindInt32, 1, false
	case uint64:
		return KindUint64, 1, false
	case int64:
		return KindInt64, 1, false
	case float32:
		return KindFloat32, 1, false
	case float64:
		return KindFloat64, 1, false
	case []bool:
		return KindBool, len(v), true
	case []string:
		return KindString, len(v), true
	case *StringArray:
		return KindString, v.Len(), true
	case []uint8:
		return KindUint8, len(v), true
	case []int8:
		return KindInt8, len(v), true
	case []uint16:
		return KindUint16, len(v), true
	case []int16:
		return KindInt16, len(v), true
	case []uint32:
		return KindUint32, len(v), true
	case []int32:
		return KindInt32, len(v), true
	case []uint64:
		return KindUint64, len(v), true
	case []int64:
		return KindInt64, len(v), true
	case []float32:
		return KindFloat32, len(v), true
	case []float64:
		return KindFloat64, len(v), true
	}
	return kindLast + 1, 0, false
}
