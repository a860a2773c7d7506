//go:build cgo && !novulkan

package vulkan

// #include "ext.h"
import "C"

// stamp records a timestamp: when all that was recorded before has run.
func (e *encoder) stamp(n int) { e.list = append(e.list, C.TV_STAMP, uint32(n)) }

// fence records a barrier.
func (e *encoder) fence() { e.list = append(e.list, C.TV_BARRIER) }

// nanoseconds reads the first n timestamps of what has run.
func (e *encoder) nanoseconds(n int) ([]float64, error) {
	ticks := make([]C.uint64_t, n)
	if err := e.b.dev.check("timestamps", C.tv_stamps(e.b.dev.d, 0, C.uint32_t(n), &ticks[0])); err != nil {
		return nil, err
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = float64(ticks[i]-ticks[0]) * float64(e.b.dev.c.f.timestamp_period)
	}
	return out, nil
}
