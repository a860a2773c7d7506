package bench

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"terrace/internal/host"
	"terrace/kernels"
)

// Machine is where a figure was measured.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"` // logical ones this process may use
	RAM      int64  `json:"ram"`   // bytes; 0 where the system does not tell
	System   string `json:"system"`
	Features string `json:"features"` // instructions that the kernels use
}

// ThisMachine describes the machine the program runs on.
func ThisMachine() Machine {
	m := Machine{CPU: cpuid.CPU.BrandName, Cores: host.LogicalCores(), System: runtime.GOOS + "/" + runtime.GOARCH, Features: kernels.Features()}
	if r, err := host.RAM(); err == nil {
		m.RAM = r.Total
	}
	return m
}

// version is the revision as make found it, for builds without version control information; set by the linker.
var version string

// Commit is the revision the program was built from, "-dirty" behind it when files had changed; "" when the build does not
// say.
func Commit() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if rev == "" {
		return ""
	}
	return rev + dirty
}

// LoadAverage is the system's own figure of how busy the last minute was; "" where there is none.
func LoadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}
