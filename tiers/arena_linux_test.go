package tiers

import (
	"context"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"terrace/internal/host"
)

// residentBytes is how many bytes of b, whole pages, are in memory. The process's own counters would lag behind and count what
// the runtime takes and gives back meanwhile.
func residentBytes(t *testing.T, b []byte) (n int64) {
	t.Helper()
	in := make([]byte, len(b)/host.PageSize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		t.Skip("mincore: ", e)
	}
	for _, p := range in {
		n += int64(p & 1)
	}
	return n * int64(host.PageSize())
}

// TestArenaMemory follows resident memory through shrinking and growing, with slots smaller and larger than huge pages.
func TestArenaMemory(t *testing.T) {
	for _, size := range []int64{300 << 10, 3<<20 + 100<<10, 4 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const n = 12
			experts := make([][]Desc, 2)
			for l := range experts {
				for e := range n {
					d := Desc{ID: ExpertID{uint16(l), uint16(e)}}
					d.Pieces[0].Length = size + int64(l)*size/8 // two sizes
					experts[l] = append(experts[l], d)
				}
			}
			s, err := NewMem(Mem{Fill: func(_ *Desc, _ int, dst []byte) error {
				for i := 0; i < len(dst); i += 4096 {
					dst[i] = 1
				}
				if n := len(dst); n > 0 {
					dst[n-1] = 1
				}
				return nil
			}}, StoreOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c, err := NewCache(Options{Store: s, Experts: experts, Slots: 2 * n, TopK: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer closeCache(t, c)
			all := make([]int32, n)
			for e := range all {
				all[e] = int32(e)
			}
			resident := func() int64 { return residentBytes(t, c.arena.space.Mem) }
			use := func() {
				t.Helper()
				for l := range experts {
					r, err := c.Begin(l, all)
					if err != nil {
						t.Fatal(err)
					}
					for r.Left() > 0 {
						l, _, err := r.Next(context.Background(), true)
						if err != nil {
							t.Fatal(err)
						}
						l.Release()
						_, live := c.Arena()
						if got := resident(); got > live {
							t.Fatalf("%d bytes resident, %d live", got, live)
						}
					}
					r.Close()
				}
			}
			use()
			if got := resident(); got < c.MaxBytes()*9/10 {
				t.Errorf("%d bytes resident with every expert of %d", got, c.MaxBytes())
			}
			for _, part := range []int64{3, 2, 1, 4, 2} {
				live := c.Resize(c.MaxBytes() * part / 4)
				if got := resident(); got > live {
					t.Errorf("%d bytes resident, %d live after a resize to %d/4", got, live, part)
				}
				use()
			}
		})
	}
}
