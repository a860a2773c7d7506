package gguf

import (
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of the reader. Each lies far above what real files hold and keeps a hostile one from claiming memory.
const (
	maxPairs      = 1 << 16
	maxTensors    = 1 << 20
	maxKeyBytes   = 1<<16 - 1 // the format's own
	maxNameBytes  = 255       // ggml keeps 63
	maxValueBytes = 64 << 20  // of one string; tokenizer.huggingface.json may pass 10 MB
	maxArray      = 1 << 24   // elements of one array
	maxDims       = 4
	maxAlignment  = 1 << 20 // bytes
	minAlignment  = 8       // bytes: the format asks for a multiple of 8

	// The least bytes that one record can take, to check counts by division before anything is allocated.
	minHeaderBytes = 24
	minPairBytes   = 8 + 4 + 1
	minTensorBytes = 8 + 4 + 4 + 8
)

const (
	magic            = "GGUF"
	defaultAlignment = 32
	keyAlignment     = "general.alignment"
)

// part is the header of one file. Its tensors carry absolute offsets and shard 0.
type part struct {
	version uint32
	meta    *Metadata
	tensors []Tensor
	shard   Shard
}

// readPart reads one header from r, a file of size bytes called name.
func readPart(r io.ReaderAt, size int64, name string) (*part, error) {
	c := newCursor(r, size, name)
	p := &part{shard: Shard{Path: name, Size: size}}
	nTensors, nPairs := c.header(p)
	p.meta = c.metadata(nPairs)
	if c.err != nil {
		return nil, c.err
	}
	if err := p.setAlignment(); err != nil {
		return nil, err
	}
	c.directory(p, nTensors)
	if c.err != nil {
		return nil, c.err
	}
	p.shard.DataStart = roundUp(c.pos, p.shard.Alignment)
	if err := p.placeTensors(); err != nil {
		return nil, err
	}
	return p, nil
}

// header reads what stands before the first metadata pair and answers the two counts.
func (c *cursor) header(p *part) (tensors, pairs uint64) {
	if c.size <= 0 {
		c.err = corrupt("%s: the file is empty (0 bytes, a GGUF header has at least %d)", c.name, minHeaderBytes)
		return 0, 0
	}
	if m := c.take(len(magic), "magic"); m != nil && string(m) != magic {
		c.pos = 0
		c.corrupt("the first bytes are %q, want %q: not a GGUF file", m, magic)
	}
	p.version = c.u32("version")
	if c.err != nil {
		return 0, 0
	}
	switch v := p.version; {
	case v == 2 || v == 3:
	case v != 0 && v&0xffff == 0:
		c.unsupported("the version reads as %#08x, byte-swapped %d: a big-endian file, and only little-endian ones are read", v, bits.ReverseBytes32(v))
	default:
		c.unsupported("version %d, and only versions 2 and 3 are read", v)
	}
	tensors = c.count("tensor count", maxTensors, minTensorBytes)
	pairs = c.count("metadata count", maxPairs, minPairBytes)
	return tensors, pairs
}

// count reads the number of records of at least least bytes each that follow.
func (c *cursor) count(field string, limit, least uint64) uint64 {
	n := c.u64(field)
	if c.err != nil {
		return 0
	}
	if n > limit {
		c.corrupt("%s is %d, over the limit of %d", field, n, limit)
		return 0
	}
	if n > c.left()/least {
		c.corrupt("%s is %d, which needs %d bytes, but only %d of the file's %d remain", field, n, n*least, c.left(), c.size)
		return 0
	}
	return n
}

// metadata reads n pairs.
func (c *cursor) metadata(n uint64) *Metadata {
	m := &Metadata{file: c.name, index: map[string]int{}}
	for i := 0; uint64(i) < n && c.err == nil; i++ {
		c.what, c.index, c.owner = "metadata pair", i, ""
		key := c.str("key", maxKeyBytes)
		if c.err != nil {
			break
		}
		if why := badKey(key); why != "" {
			c.corrupt("key %q %s", short(key), why)
			break
		}
		c.owner = key
		if j, dup := m.index[key]; dup {
			c.corrupt("the key stands twice, as pairs %d and %d", j, i)
			break
		}
		v := c.value()
		if c.err == nil {
			m.index[key] = len(m.pairs)
			m.pairs = append(m.pairs, pair{key, v})
		}
	}
	return m
}

// badKey says what is wrong with a metadata key, "" for nothing.
func badKey(key string) string {
	if key == "" {
		return "is empty"
	}
	for i := 0; i < len(key); i++ {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "is not printable ASCII"
		}
	}
	return ""
}

// value reads the type and the value of a pair.
func (c *cursor) value() value {
	kind := Kind(c.u32("value type"))
	if c.err != nil {
		return value{}
	}
	switch {
	case kind == KindString:
		return value{kind: kind, data: c.str("string", maxValueBytes)}
	case kind == KindArray:
		return c.array()
	case kind.size() > 0:
		v := value{kind: kind}
		var w [8]byte
		copy(w[:], c.take(kind.size(), "value"))
		v.bits = binary.LittleEndian.Uint64(w[:])
		if kind == KindBool && v.bits > 1 {
			c.corrupt("a bool is %d, want 0 or 1", v.bits)
		}
		return v
	}
	c.corrupt("value type %d is unknown, the last known is %d", kind, kindLast)
	return value{}
}

// array reads the element type, the count and the elements of an array.
func (c *cursor) array() value {
	v := value{kind: KindArray, elem: Kind(c.u32("array element type"))}
	if c.err != nil {
		return value{}
	}
	least := uint64(v.elem.size())
	switch {
	case v.elem == KindArray:
		c.unsupported("an array of arrays (element type %d), and nested arrays are not read", v.elem)
		return value{}
	case v.elem == KindString:
		least = 8
	case least == 0:
		c.corrupt("array element type %d is unknown, the last known is %d", v.elem, kindLast)
		return value{}
	}
	n := c.count("array length", maxArray, least)
	if c.err != nil {
		return value{}
	}
	v.bits = n
	if v.elem == KindString {
		v.data, v.offs = c.strings(int(n))
		return v
	}
	v.data = c.raw(n*least, "array")
	if v.elem == KindBool {
		for i := 0; i < len(v.data); i++ {
			if v.data[i] > 1 {
				c.corrupt("bool %d of the array is %d, want 0 or 1", i, v.data[i])
				break
			}
		}
	}
	return v
}

// strings reads n strings into one block; string i lies from offs[i] to offs[i+1]. A first pass over the lengths finds
// the size of the block, so that a vocabulary costs two exact allocations.
func (c *cursor) strings(n int) (data string, offs []uint32) {
	start, total := c.pos, uint64(0)
	for range n {
		l := c.length("array string", maxValueBytes)
		if c.err != nil {
			return "", nil
		}
		c.pos += int64(l)
		total += l
	}
	c.pos = start
	var b strings.Builder
	b.Grow(int(total))
	offs = make([]uint32, 1, n+1)
	for range n {
		c.appendTo(&b, c.length("array string", maxValueBytes), "array string")
		if c.err != nil {
			return "", nil
		}
		offs = append(offs, uint32(b.Len())) // fits: the block is smaller than maxHeader
	}
	return b.String(), offs
}

// setAlignment takes general.alignment over into the shard.
func (p *part) setAlignment() error {
	p.shard.Alignment = defaultAlignment
	v, ok := p.meta.find(keyAlignment)
	if !ok {
		return nil
	}
	if v.kind != KindUint32 {
		return corrupt("%s: metadata key %q is %s, want %s", p.shard.Path, keyAlignment, v.typeName(), KindUint32)
	}
	if why := badAlignment(v.bits); why != "" {
		return corrupt("%s: metadata key %q is %d, %s", p.shard.Path, keyAlignment, v.bits, why)
	}
	p.shard.Alignment = int64(v.bits)
	return nil
}

// badAlignment says what an alignment must be when a is not that, "" when it is.
func badAlignment(a uint64) string {
	if a < minAlignment || a > maxAlignment || a&(a-1) != 0 {
		return "want a power of two from 8 to 1048576"
	}
	return ""
}

// directory reads n tensor infos. Offsets stay relative to the data section, whose start is not known yet.
func (c *cursor) directory(p *part, n uint64) {
	seen := map[string]int{}
	for i := 0; uint64(i) < n && c.err == nil; i++ {
		c.what, c.index, c.owner = "tensor", i, ""
		t := Tensor{Name: c.str("name", maxNameBytes)}
		if c.err != nil {
			break
		}
		if why := badName(t.Name); why != "" {
			c.corrupt("name %q %s", t.Name, why)
			break
		}
		c.owner = t.Name
		if j, dup := seen[t.Name]; dup {
			c.corrupt("the name stands twice, as tensors %d and %d", j, i)
			break
		}
		seen[t.Name] = i
		c.shape(&t)
		c.typeAndOffset(&t, p.shard.Alignment)
		if c.err == nil {
			p.tensors = append(p.tensors, t)
		}
	}
	c.what, c.index, c.owner = "header", -1, ""
}

// badName says what is wrong with a tensor name, "" for nothing.
func badName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.IndexByte(name, 0) >= 0:
		return "holds a zero byte"
	}
	return ""
}

// shape reads the dimensions of t.
func (c *cursor) shape(t *Tensor) {
	nd := c.u32("number of dimensions")
	if nd > maxDims {
		c.corrupt("has %d dimensions, want at most %d", nd, maxDims)
	}
	t.Dims = [4]uint64{1, 1, 1, 1}
	for d := 0; d < int(nd) && c.err == nil; d++ {
		t.Dims[d] = c.u64("dimension")
		if t.Dims[d] > math.MaxInt64 {
			c.corrupt("dimension %d is %d, over the limit of %d", d, t.Dims[d], int64(math.MaxInt64))
		}
	}
	t.NDims = int(nd)
}

// typeAndOffset reads the rest of t's info and computes its size.
func (c *cursor) typeAndOffset(t *Tensor, alignment int64) {
	t.Type = Type(c.u32("type"))
	if c.err != nil {
		return
	}
	if !t.Type.Known() {
		if slices.Contains(retired, t.Type) {
			c.unsupported("type %d was retired from the format, and no current writer uses it", uint32(t.Type))
		} else {
			c.unsupported("type %d is unknown, the last known is %d (%s)", uint32(t.Type), uint32(lastType), lastType)
		}
		return
	}
	size, why := tensorBytes(t.Type, t.Dims)
	if why != "" {
		c.corrupt("dimensions %v of type %s: %s", t.Dims[:t.NDims], t.Type, why)
		return
	}
	t.Length = size
	off := c.u64("offset")
	if off > math.MaxInt64 {
		c.corrupt("offset %d, over the limit of %d", off, int64(math.MaxInt64))
	} else if off%uint64(alignment) != 0 {
		c.corrupt("offset %d is not a multiple of the alignment %d", off, alignment)
	}
	t.Offset = int64(off)
}

// tensorBytes is the size of a tensor in bytes, or why it has none. An empty tensor's other dimensions must be sane
// too, so that no product of them overflows later.
func tensorBytes(typ Type, dims [4]uint64) (size int64, why string) {
	block, perBlock := uint64(typ.BlockSize()), uint64(typ.BlockBytes())
	if dims[0]%block != 0 {
		return 0, "the first is not a multiple of the block size " + itoa(block)
	}
	elements, bytes := uint64(1), max(perBlock, 1)
	empty := false
	for i, d := range dims {
		if d == 0 {
			empty = true
			continue
		}
		blocks := d
		if i == 0 {
			blocks = d / block
		}
		var over1, over2 uint64
		over1, elements = bits.Mul64(elements, d)
		over2, bytes = bits.Mul64(bytes, blocks)
		if over1 != 0 || elements > math.MaxInt64 {
			return 0, "the number of elements passes " + itoa(math.MaxInt64)
		}
		if over2 != 0 || bytes > math.MaxInt64 {
			return 0, "the number of bytes passes " + itoa(math.MaxInt64)
		}
	}
	if empty {
		return 0, ""
	}
	return int64(bytes), ""
}

// placeTensors makes the offsets absolute and checks that each tensor lies in the file and none over another.
func (p *part) placeTensors() error {
	s := p.shard
	if len(p.tensors) > 0 && s.DataStart > s.Size {
		return corrupt("%s: the data of %d tensors starts at byte %d, but the file has %d bytes: it is cut short", s.Path, len(p.tensors), s.DataStart, s.Size)
	}
	room := s.Size - s.DataStart
	var outside *Tensor
	for i := range p.tensors {
		t := &p.tensors[i]
		if t.Length > math.MaxInt64-s.DataStart-t.Offset {
			return corrupt("%s: tensor %q: %d bytes at data offset %d end past %d", s.Path, t.Name, t.Length, t.Offset, int64(math.MaxInt64))
		}
		if t.Offset+t.Length > room && (outside == nil || t.Offset+t.Length > outside.End()-s.DataStart) {
			outside = t
		}
		t.Offset += s.DataStart
	}
	if outside != nil {
		return corrupt("%s: tensor %q of %d bytes ends at byte %d, but the file has %d bytes: it is cut short or its header is wrong",
			s.Path, outside.Name, outside.Length, outside.End(), s.Size)
	}
	order := make([]*Tensor, 0, len(p.tensors))
	for i := range p.tensors {
		if p.tensors[i].Length > 0 {
			order = append(order, &p.tensors[i])
		}
	}
	slices.SortFunc(order, func(a, b *Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 1; i < len(order); i++ {
		if a, b := order[i-1], order[i]; a.End() > b.Offset {
			return corrupt("%s: tensor %q begins at byte %d, but tensor %q before it ends at %d: they overlap", s.Path, b.Name, b.Offset, a.Name, a.End())
		}
	}
	return nil
}

// roundUp is the smallest multiple of a, a power of two, that is not below n.
func roundUp(n, a int64) int64 { return (n + a - 1) &^ (a - 1) }
