package tiers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"strconv"
	"syscall"

	"terrace/internal/host"
)

// Sums are the checksums of a model's experts: CRC-32C of the exact bytes of gate, up and down, which every processor that
// matters computes in hardware. It finds damage by disks, memory and copying; it is no seal against somebody who means
// harm.
type Sums struct {
	Fingerprint string        // of the model: gguf.File.Fingerprint
	Pieces      [][][3]uint32 // [layer][expert]; 0 where there is no such matrix
}

func sumOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// sumsFormat and sumsVersion begin every file of checksums.
const (
	sumsFormat  = "terrace checksums"
	sumsVersion = 1
)

type sumsFile struct {
	Format      string       `json:"format"`
	Version     int          `json:"version"`
	Hash        string       `json:"hash"`
	Fingerprint string       `json:"fingerprint"`
	Layers      [][][]string `json:"layers"` // gate, up and down of each expert, in hexadecimal
	CRC32C      string       `json:"crc32c"` // of the same document with this field empty
}

func (f *sumsFile) encode() ([]byte, error) {
	f.CRC32C = ""
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	f.CRC32C = fmt.Sprintf("%08x", sumOf(b))
	if b, err = json.Marshal(f); err != nil {
		return nil, err
	}
	return append(bytes.ReplaceAll(b, []byte("]],[["), []byte("]],\n[[")), '\n'), nil
}

// Encode is the checksums as a file: versioned JSON.
func (s *Sums) Encode() ([]byte, error) {
	f := sumsFile{Format: sumsFormat, Version: sumsVersion, Hash: "crc32c", Fingerprint: s.Fingerprint, Layers: make([][][]string, len(s.Pieces))}
	for l, layer := range s.Pieces {
		f.Layers[l] = make([][]string, len(layer))
		for e, p := range layer {
			for _, x := range p {
				f.Layers[l][e] = append(f.Layers[l][e], fmt.Sprintf("%08x", x))
			}
		}
	}
	return f.encode()
}

// DecodeSums reads what Encode wrote and refuses everything else.
func DecodeSums(b []byte) (*Sums, error) {
	var f sumsFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("no checksums: %w", err)
	}
	switch {
	case f.Format != sumsFormat:
		return nil, fmt.Errorf("no checksums: format %q, want %q", f.Format, sumsFormat)
	case f.Version != sumsVersion || f.Hash != "crc32c":
		return nil, fmt.Errorf("checksums of version %d with %q, want %d with crc32c", f.Version, f.Hash, sumsVersion)
	}
	said := f.CRC32C
	if _, err := f.encode(); err != nil {
		return nil, fmt.Errorf("checksums: %w", err)
	}
	if f.CRC32C != said {
		return nil, fmt.Errorf("the checksums are damaged themselves: %s, the file says %q", f.CRC32C, said)
	}
	s := &Sums{Fingerprint: f.Fingerprint, Pieces: make([][][3]uint32, len(f.Layers))}
	for l, layer := range f.Layers {
		s.Pieces[l] = make([][3]uint32, len(layer))
		for e, p := range layer {
			if len(p) != 3 {
				return nil, fmt.Errorf("checksums: expert %d of layer %d has %d, want 3", e, l, len(p))
			}
			for i, x := range p {
				v, err := strconv.ParseUint(x, 16, 32)
				if err != nil {
					return nil, fmt.Errorf("checksums: expert %d of layer %d: %q is none", e, l, x)
				}
				s.Pieces[l][e][i] = uint32(v)
			}
		}
	}
	return s, nil
}

// Fits says whether the checksums are those of a model with this fingerprint and these experts; if not, both values.
func (s *Sums) Fits(fingerprint string, experts [][]Desc) error {
	if s.Fingerprint != fingerprint {
		return fmt.Errorf("the checksums are those of model %s, this is %s", s.Fingerprint, fingerprint)
	}
	if len(s.Pieces) != len(experts) {
		return fmt.Errorf("there are checksums of %d layers, the model has %d", len(s.Pieces), len(experts))
	}
	for l := range experts {
		if len(s.Pieces[l]) != len(experts[l]) {
			return fmt.Errorf("there are checksums of %d experts of layer %d, which has %d", len(s.Pieces[l]), l, len(experts[l]))
		}
	}
	return nil
}

// sumBlock is how much MakeSums reads at a time.
const sumBlock = 4 << 20

// MakeSums reads every expert once, in the order of the files and past the page cache where that is possible. progress,
// which may be nil, is told the bytes done and their total. An error names file, expert, piece and offset.
func MakeSums(ctx context.Context, paths []string, experts [][]Desc, progress func(done, total int64)) (*Sums, error) {
	fs, err := openFiles(paths, true)
	if err != nil {
		return nil, err
	}
	defer fs.close()
	type part struct {
		d     *Desc
		piece int
	}
	s := &Sums{Pieces: make([][][3]uint32, len(experts))}
	var parts []part
	var done, total int64
	for l := range experts {
		s.Pieces[l] = make([][3]uint32, len(experts[l]))
		for e := range experts[l] {
			d := &experts[l][e]
			if err := fs.check(d); err != nil {
				return nil, err
			}
			for i := range d.Pieces {
				if d.Pieces[i].Length > 0 {
					parts = append(parts, part{d, i})
					total += d.Pieces[i].Length
				}
			}
		}
	}
	sort.Slice(parts, func(i, j int) bool {
		a, b := parts[i].d.Pieces[parts[i].piece], parts[j].d.Pieces[parts[j].piece]
		return a.Shard < b.Shard || a.Shard == b.Shard && a.Offset < b.Offset
	})
	buf, err := host.Alloc(sumBlock)
	if err != nil {
		return nil, err
	}
	defer host.Free(buf)
	shard, start, have := -1, int64(0), 0 // what lies in buf: the file, the offset and the length
	for _, x := range parts {
		l := layoutOf(x.d)
		r := &Read{Desc: x.d, layout: &l}
		sum := uint32(0)
		p := x.d.Pieces[x.piece]
		for at := p.Offset; at < p.Offset+p.Length; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if shard != p.Shard || at < start || at >= start+int64(have) {
				// Neighbours come with it: one read serves many small experts.
				shard, start = p.Shard, at&^(host.IOAlign-1)
				last := fs[shard].size - start
				have, err = fs[shard].ReadAt(buf[:min(sumBlock, (last+host.IOAlign-1)&^(host.IOAlign-1))], start)
				if int64(have) <= at-start {
					if errors.Is(err, io.EOF) || have%host.IOAlign != 0 && errors.Is(err, syscall.EINVAL) { // as in NewPread
						err = nil
					}
					return nil, fs.fail(r, x.piece, l.spans[x.piece].skip+int(at-p.Offset), err)
				}
			}
			b := buf[at-start : min(int64(have), p.Offset+p.Length-start)]
			sum = crc32.Update(sum, castagnoli, b)
			at += int64(len(b))
			done += int64(len(b))
			if progress != nil {
				progress(done, total)
			}
		}
		s.Pieces[x.d.ID.Layer][x.d.ID.Expert][x.piece] = sum
	}
	return s, nil
}
