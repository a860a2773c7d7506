package host

import (
	"runtime"
	"testing"
)

// TestSpace takes a range larger than the machine, uses parts of it and gives them back: resident memory follows.
func TestSpace(t *testing.T) {
	size := 64 << 20
	if runtime.GOOS == "linux" {
		m, err := RAM()
		if err != nil {
			t.Fatal(err)
		}
		size = int(3 * m.Total)
	}
	ways := map[string]func(int) (*Space, error){"plain": Reserve}
	for name, f := range moreSpaces() {
		ways[name] = f
	}
	for name, reserve := range ways {
		t.Run(name, func(t *testing.T) {
			s, err := reserve(size)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Free(); err != nil {
					t.Error(err)
				}
			}()
			if len(s.Mem) != size {
				t.Fatalf("%d bytes, want %d", len(s.Mem), size)
			}
			resident := func() int64 {
				r, err := RSS()
				if err != nil {
					t.Skip(err)
				}
				return r.Anon
			}
			part := s.Mem[size-40<<20 : size-8<<20]
			const slack = 4 << 20 // the runtime gives memory back, and takes some, at any time
			for range 3 {
				before := resident()
				if err := s.Commit(part); err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(part); i += 512 {
					if runtime.GOOS == "linux" && part[i] != 0 {
						t.Fatalf("byte %d is %d in memory that was given back", i, part[i])
					}
					part[i] = 1
				}
				if n := resident() - before; runtime.GOOS == "linux" && n < 32<<20-slack {
					t.Errorf("%d bytes more resident after 32 MiB were touched", n)
				}
				if err := s.Release(part); err != nil {
					t.Fatal(err)
				}
				if n := resident() - before; runtime.GOOS == "linux" && n > slack {
					t.Errorf("%d bytes more resident after everything was given back", n)
				}
			}
			if err := AdviseSmall(part); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := Reserve(0); err == nil {
		t.Error("0 bytes were reserved")
	}
}
