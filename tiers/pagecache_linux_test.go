package tiers

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"terrace/internal/host"
)

// cachedPages is how many pages of a file lie in the page cache.
func cachedPages(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := host.FileSize(f)
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	in := make([]byte, (int(size)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		t.Skip("mincore: ", e)
	}
	n := 0
	for _, b := range in {
		n += int(b & 1)
	}
	return n
}

// TestPageCacheStaysEmpty: the page cache counts as memory of whoever filled it, so a store that must use it drops what it
// has copied; otherwise a budget would be exceeded by the size of the file.
func TestPageCacheStaysEmpty(t *testing.T) {
	const piece, experts = 100_000, 64 // no whole pages
	path := filepath.Join(t.TempDir(), "m")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 3*piece*experts)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	list := make([]Desc, experts)
	for e := range list {
		list[e].ID = ExpertID{0, uint16(e)}
		for p := range list[e].Pieces {
			list[e].Pieces[p] = Piece{Offset: int64((3*e + p) * piece), Length: piece}
		}
	}
	total := 3 * piece * experts / os.Getpagesize()
	for _, m := range moreStores(t) {
		if strings.HasPrefix(m.name, "uring") {
			continue
		}
		if err := host.DropCached(f, 0, 3*piece*experts); err != nil {
			t.Fatal(err)
		}
		if n := cachedPages(t, path); n > total/10 {
			t.Skipf("%d of %d pages stay in the page cache of this file system", n, total)
		}
		s, err := m.make([]string{path}, StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCache(Options{Store: s, Experts: [][]Desc{list}, Slots: 8, TopK: 4})
		if err != nil {
			t.Fatal(err)
		}
		for e := int32(0); e < experts; e++ {
			q, err := c.Begin(0, []int32{e})
			if err != nil {
				t.Fatal(err)
			}
			if _, ok, err := q.Next(context.Background(), true); !ok || err != nil {
				t.Fatalf("%s: %v, %v", m.name, ok, err)
			}
			q.Close()
		}
		if n := cachedPages(t, path); n > total/10 {
			t.Errorf("%s: %d of the file's %d pages are in the page cache", m.name, n, total)
		} else {
			t.Logf("%s: %d of %d pages", m.name, n, total)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
