package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func ram() (Memory, error) {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Memory{}, fmt.Errorf("hw.memsize: %w", err)
	}
	m := Memory{Total: int64(n)}
	// Free and speculative pages are what can be had at once; purgeable ones are left out, to be careful.
	free, err1 := unix.SysctlUint32("vm.page_free_count")
	spec, err2 := unix.SysctlUint32("vm.page_speculative_count")
	if err1 == nil && err2 == nil {
		m.Available = (int64(free) + int64(spec)) * int64(PageSize())
	}
	return m, nil
}

func rss() (Resident, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return Resident{}, err
	}
	return Resident{Peak: int64(u.Maxrss)}, nil // bytes on this system
}

func physicalCores() int {
	n, err := unix.SysctlUint32("hw.physicalcpu")
	if err != nil {
		return 0
	}
	return int(n)
}
