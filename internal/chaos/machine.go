// Package chaos is what seeded runs with faults share: which seeds are to be run, the file that tells which were, a look for what
// they leave behind, and a machine whose memory becomes less. It is for tests alone; what goes wrong is package fault's.
package chaos

import (
	"fmt"
	"io/fs"
	"sync"
	"testing/fstest"
	"time"
)

// Machine is the kernel's files of a machine with a control group (fault.Plan.Machine). It may change while it is read.
type Machine struct {
	mu    sync.Mutex
	limit int64 // bytes that the group may hold
	stall time.Duration
}

// NewMachine is a machine without pressure whose group may hold limit bytes.
func NewMachine(limit int64) *Machine { return &Machine{limit: limit} }

// Set makes limit what the group may hold, and adds time that all its tasks waited for memory.
func (m *Machine) Set(limit int64, stalled time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit, m.stall = limit, m.stall+stalled
}

// Open implements fs.FS.
func (m *Machine) Open(name string) (fs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := int64(64 << 20)
	us := m.stall.Microseconds()
	psi := fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", us, us)
	return fstest.MapFS{
		"proc/self/cgroup":                  {Data: []byte("0::/box\n")},
		"proc/self/status":                  {Data: fmt.Appendf(nil, "VmRSS: %d kB\nRssAnon: %d kB\nRssShmem: 0 kB\n", held>>10, held>>10)},
		"proc/meminfo":                      {Data: []byte("MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")},
		"proc/self/mountinfo":               {Data: []byte("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"proc/pressure/memory":              {Data: []byte(psi)},
		"sys/fs/cgroup/box/cgroup.type":     {Data: []byte("domain\n")},
		"sys/fs/cgroup/box/memory.max":      {Data: fmt.Appendf(nil, "%d\n", m.limit)},
		"sys/fs/cgroup/box/memory.current":  {Data: fmt.Appendf(nil, "%d\n", held)},
		"sys/fs/cgroup/box/memory.pressure": {Data: []byte(psi)},
	}.Open(name)
}
