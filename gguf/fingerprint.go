package gguf

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
)

// Fingerprint names a model by its headers: 32 hexadecimal digits of a SHA-256 over each part's size, the length of its
// header and the header's bytes (metadata and tensor directory). No tensor data is read, so it costs milliseconds; two
// files that differ in weights only, with equal metadata and sizes, have the same one. A part that is not as it was when
// it was opened is an error with both sizes.
func (f *File) Fingerprint() (string, error) {
	h := sha256.New()
	open := f.open
	if open == nil {
		open = openLocal
	}
	for i := range f.Shards {
		if err := f.Shards[i].hash(h, open); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// hash writes what Fingerprint covers of one part to h.
func (s *Shard) hash(h io.Writer, open Opener) error {
	r, err := open(s.Path)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Size() != s.Size {
		return corrupt("%s: has %d bytes now and had %d when its header was read", s.Path, r.Size(), s.Size)
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(s.Size))
	binary.LittleEndian.PutUint64(b[8:], uint64(s.DataStart))
	h.Write(b[:])
	// A header without tensors may end in padding that the file need not have.
	want := min(s.DataStart, s.Size)
	if n, err := io.Copy(h, io.NewSectionReader(r, 0, want)); err != nil {
		return fmt.Errorf("%s: header: %w", s.Path, err)
	} else if n != want {
		return corrupt("%s: header: wanted %d bytes, got %d", s.Path, want, n)
	}
	return nil
}
