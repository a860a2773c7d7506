package plan

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// FuzzProfile: any bytes are a profile of possible numbers or one line, and a plan for the machine that it describes is finite.
func FuzzProfile(f *testing.F) {
	f.Add([]byte(`{"version":1,"disks":{"a":{"burst_bytes_per_second":3e9,"sustained_bytes_per_second":1e9,"settled":true,"store":"pread"}},"memory":{"bytes_per_second":2e10,"threads":2},"kernels":{"Q4_K":1e10},"gemm":[{"type":"Q4_K","rows":8,"rate":1e9}],"engine_costs":{"efficiency":0.9,"prefill_efficiency":0.8}}`))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":2,"disks":7}`))
	f.Add([]byte(`{"version":1,"disks":{"b\n":{"burst_bytes_per_second":0,"sustained_bytes_per_second":-1}}}`))
	f.Add([]byte(`{"version":1,"memory":{"bytes_per_second":1e400}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodeProfile(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("an error of several lines: %q", err)
			}
			return
		}
		for device := range p.Disks {
			if m := p.Machine(device, 16<<30, 4); !(m.Disk > 0) || !(m.Memory > 0) || math.IsInf(m.Disk, 0) || math.IsInf(m.Memory, 0) || math.IsNaN(m.Scale) || math.IsNaN(m.GemmX) {
				t.Fatalf("machine %+v", m)
			}
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := decodeProfile(again); err != nil {
			t.Fatalf("%s: %v, and it was read as %+v", again, err, q)
		}
	})
}
