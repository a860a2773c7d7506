package host

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func moreSpaces() map[string]func(int) (*Space, error) {
	return map[string]func(int) (*Space, error){"strict": reserveStrict}
}

// resident is how many bytes of b, whole pages, are in memory. The process's own counters lag behind and count what the
// runtime takes and gives back meanwhile.
func resident(t *testing.T, b []byte) (n int, ok bool) {
	t.Helper()
	in := make([]byte, len(b)/PageSize())
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		t.Skip("mincore: ", e)
	}
	for _, p := range in {
		n += int(p&1) * PageSize()
	}
	return n, true
}
