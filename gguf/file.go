// Package gguf reads and writes the headers of GGUF model files: what the metadata says and where the bytes of each tensor lie.
// It never reads tensor data and does not know what the bytes of a block mean; that is the room quant.
//
// The main path: [Open] reads the header of each part of a model (read.go), joins the parts (split.go) and answers a [File].
// Every count, length and offset is checked against the file's size before it is trusted.
package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Errors a caller may branch on with errors.Is.
var (
	// ErrUnsupported marks a well-formed file that this reader does not take: its version, byte order, a tensor type, nested arrays.
	ErrUnsupported = errors.New("gguf: unsupported")
	// ErrCorrupt marks a file whose bytes contradict each other or its size, and a set of parts that do not fit together.
	ErrCorrupt = errors.New("gguf: corrupt")
)

// fileError is one line about one file; kind is the sentinel it belongs to.
type fileError struct {
	msg  string
	kind error
}

func (e *fileError) Error() string { return e.msg }
func (e *fileError) Unwrap() error { return e.kind }

func corrupt(format string, args ...any) error {
	return &fileError{fmt.Sprintf(format, args...), ErrCorrupt}
}

func unsupported(format string, args ...any) error {
	return &fileError{fmt.Sprintf(format, args...), ErrUnsupported}
}

// File is the directory of a model: its metadata and the place of each tensor, over all parts. It holds no open file
// and does not change after Open, so that goroutines may share it.
type File struct {
	Path     string   // as given to Open; any part of a split model
	Version  uint32   // of part 1: 2 or 3
	Shards   []Shard  // the parts in order; one for a model in a single file
	Tensors  []Tensor // in file order, part by part
	Metadata *Metadata

	index map[string]int // tensor name -> place in Tensors
	open  Opener         // where the parts come from; nil for a File of OpenReader
}

// Reader is one file whose header is read. Opener opens it by the path that errors and Shard.Path name.
type (
	Reader interface {
		io.ReaderAt
		io.Closer
		Size() int64 // bytes of the file
	}
	Opener func(path string) (Reader, error)
)

// Shard is one part of a model.
type Shard struct {
	Path      string // as given to Open, with the part's own number
	Size      int64  // bytes of the file
	DataStart int64  // bytes from the start of the file to its data section
	Alignment int64  // bytes; each tensor of the part starts at a multiple of it, counted from DataStart
}

// Extent is a byte range of a model.
type Extent struct {
	Shard  int   // index into File.Shards
	Offset int64 // bytes from the start of that shard's file
	Length int64 // bytes
}

// End is the offset of the first byte after the extent.
func (e Extent) End() int64 { return e.Offset + e.Length }

// Tensor is one entry of the tensor directory. Dims[0] is the contiguous dimension: the weight of y = W x has dims (in, out).
type Tensor struct {
	Name  string
	Type  Type
	NDims int       // dimensions stored in the file, 0 to 4
	Dims  [4]uint64 // missing dimensions are 1
	Extent
}

// Elements is the number of elements of t: the product of its dimensions, which Open has checked to fit an int64.
func (t *Tensor) Elements() uint64 { return t.Dims[0] * t.Dims[1] * t.Dims[2] * t.Dims[3] }

// RowBytes is the number of bytes of one row, that is of Dims[0] elements.
func (t *Tensor) RowBytes() int { return t.Type.RowBytes(int(t.Dims[0])) }

// Slab is the contiguous range of index e in dimension 2 of a tensor of up to three dimensions: for an expert stack
// (in, out, experts), the matrix of expert e. It fails for an index outside the dimension and for a 4-D tensor.
func (t *Tensor) Slab(e int) (Extent, error) {
	if t.Dims[3] != 1 {
		return Extent{}, fmt.Errorf("tensor %q: slab %d asked of a tensor with %d dimensions, want at most 3", t.Name, e, t.NDims)
	}
	if e < 0 || uint64(e) >= t.Dims[2] {
		return Extent{}, fmt.Errorf("tensor %q: slab %d is outside dimension 2 of size %d", t.Name, e, t.Dims[2])
	}
	n := t.Length / int64(t.Dims[2])
	return Extent{Shard: t.Shard, Offset: t.Offset + int64(e)*n, Length: n}, nil
}

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (*Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return nil, false
	}
	return &f.Tensors[i], true
}

// Open reads the header of the GGUF model at path, version 2 or 3. Of a split model path may be any part; the others are
// found by name in the same directory, from the path as given, so that a link farm with readable names works.
// Tensor data is not read, and no file stays open.
func Open(path string) (*File, error) { return OpenFrom(path, openLocal) }

// OpenFrom is Open over files that open answers, such as those of a server: it asks for path and for the other parts by
// the names that follow from it, reads each header and closes each file.
func OpenFrom(path string, open Opener) (*File, error) {
	p, err := openPart(path, open)
	if err != nil {
		return nil, err
	}
	s, err := splitOf(p)
	if err != nil {
		return nil, err
	}
	parts := []*part{p}
	if s.count > 1 {
		if parts, err = openSiblings(path, p, s, open); err != nil {
			return nil, err
		}
	}
	f, err := join(path, parts)
	if err != nil {
		return nil, err
	}
	f.open = open
	return f, nil
}

// OpenReader reads the header of one GGUF file of size bytes from r; name stands for the file in errors and paths.
// It looks for no other parts: of a split model it answers what this part holds.
func OpenReader(r io.ReaderAt, size int64, name string) (*File, error) {
	p, err := readPart(r, size, name)
	if err != nil {
		return nil, err
	}
	if _, err := splitOf(p); err != nil {
		return nil, err
	}
	return join(name, []*part{p})
}

// openPart reads the header of one file and closes it.
func openPart(path string, open Opener) (*part, error) {
	r, err := open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readPart(r, r.Size(), path)
}

// localFile is a Reader of a file of this machine.
type localFile struct {
	*os.File
	size int64
}

func (f localFile) Size() int64 { return f.size }

func openLocal(path string) (Reader, error) {
	// Asked before opening: opening a named pipe would wait for its writer.
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s: is a directory, want a GGUF file", path)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is not a regular file (%s), want a GGUF file", path, st.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if st, err = f.Stat(); err != nil {
		f.Close()
		return nil, err
	}
	return localFile{f, st.Size()}, nil
}

// join makes one directory out of the parts of a model; the first part's metadata is the model's.
func join(path string, parts []*part) (*File, error) {
	f := &File{Path: path, Version: parts[0].version, Metadata: parts[0].meta}
	n := 0
	for _, p := range parts {
		n += len(p.tensors)
	}
	f.Shards = make([]Shard, 0, len(parts))
	f.Tensors = make([]Tensor, 0, n)
	f.index = make(map[string]int, n)
	for i, p := range parts {
		f.Shards = append(f.Shards, p.shard)
		for _, t := range p.tensors {
			if j, dup := f.index[t.Name]; dup {
				return nil, corrupt("%s: tensor %q stands twice: in part %d of %d and in part %d of %d",
					p.shard.Path, t.Name, f.Tensors[j].Shard+1, len(parts), i+1, len(parts))
			}
			t.Shard = i
			f.index[t.Name] = len(f.Tensors)
			f.Tensors = append(f.Tensors, t)
		}
	}
	return f, nil
}
