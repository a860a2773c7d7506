package tiers

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestProbeHoles: experts in holes of a file say nothing about its disk.
func TestProbeHoles(t *testing.T) {
	path := t.TempDir() + "/holes"
	const size = 64 << 10
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*size); err != nil {
		t.Fatal(err)
	}
	at := func(n uint16, off int64) Desc {
		return Desc{ID: ExpertID{Expert: n}, Pieces: [3]Piece{{Offset: off, Length: size / 4}, {Offset: off + size/4, Length: size / 4}, {Offset: off + size/2, Length: size / 4}}}
	}
	o := ProbeOptions{Paths: []string{path}, Experts: [][]Desc{{at(0, size), at(1, size+size/4)}}, Time: 30 * time.Millisecond, Bytes: 1 << 30}
	if _, err := Probe(context.Background(), o); err == nil || !strings.Contains(err.Error(), "all 2 experts lie in holes") {
		t.Errorf("holes alone: %v", err)
	}
	read := make(map[int64]int)
	var mu sync.Mutex
	o.Experts[0] = append(o.Experts[0], at(2, 0), at(3, size/2)) // of the last a part is in the hole
	o.Store.readAt = func(f *os.File, b []byte, off int64) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		read[off/size]++
		return f.ReadAt(b, off)
	}
	if _, err := Probe(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if read[0] == 0 || read[1] != 0 {
		t.Errorf("reads of the data and of the hole: %v", read)
	}
}
