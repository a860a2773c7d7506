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
			part := s.Mem[size-40<<20 : size-8<<20]
			for range 3 {
				if err := s.Commit(part); err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(part); i += 512 {
					if runtime.GOOS == "linux" && part[i] != 0 {
						t.Fatalf("byte %d is %d in memory that was given back", i, part[i])
					}
					part[i] = 1
				}
				if n, ok := resident(t, part); ok && n < len(part)*31/32 { // what is short of it was swapped out
					t.Errorf("%d bytes resident of %d that were touched", n, len(part))
				}
				if err := s.Release(part); err != nil {
					t.Fatal(err)
				}
				if n, ok := resident(t, part); ok && n != 0 {
					t.Errorf("%d bytes resident of %d that were given back", n, len(part))
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
