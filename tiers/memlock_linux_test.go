package tiers

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropMemlock lets this process lock no more than limit bytes and takes the privilege to pass over that.
func dropMemlock(limit int) error {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: uint64(limit), Max: uint64(limit)}); err != nil {
		return fmt.Errorf("memlock: %w", err)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	// Capabilities belong to threads. The test goes on in goroutines of other threads, so all must drop them.
	if err := allThreadsCapset(&hdr, &none[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

func allThreadsCapset(hdr *unix.CapUserHeader, data *unix.CapUserData) error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(hdr)), uintptr(unsafe.Pointer(data)), 0); errno != 0 {
		return errno
	}
	return nil
}
