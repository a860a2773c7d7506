package host

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	kernel32             = windows.NewLazySystemDLL("kernel32.dll")
	globalMemoryStatusEx = kernel32.NewProc("GlobalMemoryStatusEx")
	processMemoryInfo    = kernel32.NewProc("K32GetProcessMemoryInfo")
)

// memoryStatus is MEMORYSTATUSEX.
type memoryStatus struct {
	length, load                                                           uint32
	totalPhys, availPhys, totalPage, availPage, totalVirt, availVirt, extd uint64
}

// memoryCounters is PROCESS_MEMORY_COUNTERS.
type memoryCounters struct {
	size, faults                                                           uint32
	peakWorkingSet, workingSet, peakPaged, paged, peakNon, non, pf, peakPf uintptr
}

func ram() (Memory, error) {
	s := memoryStatus{}
	s.length = uint32(unsafe.Sizeof(s))
	if ok, _, err := globalMemoryStatusEx.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
		return Memory{}, fmt.Errorf("GlobalMemoryStatusEx: %w", err)
	}
	return Memory{Total: int64(s.totalPhys), Available: int64(s.availPhys)}, nil
}

func rss() (Resident, error) {
	c := memoryCounters{}
	c.size = uint32(unsafe.Sizeof(c))
	if ok, _, err := processMemoryInfo.Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&c)), uintptr(c.size)); ok == 0 {
		return Resident{}, fmt.Errorf("GetProcessMemoryInfo: %w", err)
	}
	return Resident{Peak: int64(c.peakWorkingSet), Now: int64(c.workingSet)}, nil
}

func physicalCores() int { return 0 }
