package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func ram() (Memory, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	m := Memory{Total: kib(string(text), "MemTotal:"), Available: kib(string(text), "MemAvailable:")}
	if m.Total == 0 {
		return m, fmt.Errorf("/proc/meminfo: no MemTotal")
	}
	return m, nil
}

func rss() (Resident, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return Resident{}, err
	}
	r := Resident{Peak: kib(string(text), "VmHWM:"), Now: kib(string(text), "VmRSS:"), Anon: kib(string(text), "RssAnon:")}
	if r.Peak == 0 {
		return r, fmt.Errorf("/proc/self/status: no VmHWM")
	}
	return r, nil
}

// kib finds the line that begins with key, whose value is in KiB, and answers in bytes; 0 when it is missing.
func kib(text, key string) int64 {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, key)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil || n < 0 || n > 1<<52 {
			return 0
		}
		return n << 10
	}
	return 0
}

// physicalCores counts distinct pairs of package and core among the processors in use.
func physicalCores() int {
	dirs, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology")
	seen := map[string]bool{}
	for _, d := range dirs {
		pkg, err1 := os.ReadFile(filepath.Join(d, "physical_package_id"))
		core, err2 := os.ReadFile(filepath.Join(d, "core_id"))
		if err1 == nil && err2 == nil {
			seen[string(pkg)+"/"+string(core)] = true
		}
	}
	return len(seen)
}
