// Package testfile reads the gzipped fixtures of testdata, for tests of every room.
//
// It is no part of the program.
package testfile

import (
	"compress/gzip"
	"io"
	"os"
	"testing"
)

// Gunzip returns the unpacked bytes of a gzip file, those of a drawn file drawn, and ends the test where it cannot.
func Gunzip(tb testing.TB, path string) []byte {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		tb.Fatal(err)
	}
	if b, err = unpack(b); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return b
}
