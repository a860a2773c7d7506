package vulkan

import (
	"fmt"
	"log/slog"
)

// Options configure a Backend. The zero value takes the best device.
type Options struct {
	// Device is a number of Devices, counted from 1; 0: the best one that can be used.
	Device int
	// Exact keeps activations float32 for every weight type: quantised rows are decoded instead.
	Exact bool
	// Memory bounds the bytes of device memory that are taken; 0: what the device offers.
	Memory int64
	// CacheFile keeps compiled pipelines from run to run. Empty: nothing is kept.
	CacheFile string
	// Validate turns Khronos' validation layer on, where it is installed: it is for tests.
	Validate bool
	// Mask takes features away that the device has, by the names of DeviceInfo.Lacks, so that other paths are taken: it is
	// for tests.
	Mask []string
	// Fault has the device fail, for tests; nil: it does not.
	Fault *Fault
	Log   *slog.Logger // nil: silent

	apart   bool      // nothing is held back to become one dispatch with the next, in tests
	staging int       // bytes of the upload ring, in tests; 0: defaultStaging
	shape   vecShape  // of matrix-vector products, in tests
	tile    tileShape // of products of many rows, in tests; rows below 0: not in tiles
}

// Kind says what sort of device it is.
type Kind uint8

// The kinds, from the least to the most wanted.
const (
	OtherKind Kind = iota
	Software       // a driver that computes on the CPU
	Virtual
	Integrated
	Discrete
)

func (k Kind) String() string {
	return [...]string{"other", "software", "virtual", "integrated", "discrete"}[k]
}

// DeviceInfo describes a device.
type DeviceInfo struct {
	Number  int // for Options.Device
	Name    string
	Driver  string
	API     string // version of Vulkan
	Kind    Kind
	Memory  int64 // bytes of its own memory
	Free    int64 // of these, what may be used now; 0 where the device does not tell
	Refused string
	// Lacks names optional features that the device does not have, each with the path that is taken instead.
	Lacks []string
}

// Usable reports whether a backend can be opened on the device; Refused says why not.
func (d *DeviceInfo) Usable() bool { return d.Refused == "" }

func (d *DeviceInfo) String() string {
	return fmt.Sprintf("%d: %s (%s, Vulkan %s, %s)", d.Number, d.Name, d.Kind, d.API, d.Driver)
}

// Numerics says where the results of a device have the bits of the CPU's fast mode. Quantised products and all of an
// expert's feed-forward have them on every device. Numbers below 2^-125 are outside of this where Subnormals is not set: a device may
// take them as zero.
type Numerics struct {
	// Fused: F32, F16 and BF16 weights, attention, convolutions and recurrences have them; otherwise they round twice where the
	// CPU rounds once.
	Fused bool
	// Double: norms and the steps of recurrent layers have them; otherwise they are good to about a unit in the last place.
	Double bool
	// Subnormals: numbers below the smallest normal one are kept.
	Subnormals bool
	// Emulated: fused operations are computed in float64 because the device's are not fused.
	Emulated bool
}

// Stats counts what a backend did.
type Stats struct {
	Dispatches, Barriers, Submits, Waits int64
	Uploaded                             int64 // bytes of weights and experts
	Fallbacks                            int64 // decisions left to the CPU: which blocks of a cache are picked
	Memory                               int64 // bytes of device memory held
	Pipelines                            int
	Hits                                 int64 // of experts that the device kept
	Replayed                             int64 // submissions that were not recorded anew
	Routed                               int64 // layers whose experts the device chose
}

// TierStats are about the experts that the device keeps.
type TierStats struct {
	Experts     int
	ExpertBytes int64 // of these, alignment not counted
	Bytes       int64 // of the segments they lie in
	Target      int64 // that these may have
	Segments    int
	Puts, Drops int64
	PutBytes    int64
	Shrinks     int64 // that memory was asked for elsewhere, or refused
	// Unified: device and host have one memory, and experts are computed from where they lie there, in Imports pieces. Copied of
	// them had to be copied all the same, because of Refused where that is not "".
	Unified bool
	Imports int
	Copied  int64
	Refused string
}

// vecShape is how shaders/matvec.comp cuts its work: threads of a workgroup, and how many rows each of them meets at a time. alone has a
// thread make an accumulator by itself; MXFP4 knows it only.
type vecShape struct {
	threads, rows int
	alone         bool
}

// tileShape is how shaders/tiles.comp cuts a product of many rows: rows of the matrix, by 32, and of activations, by 16; ahead has the
// next units on their way while some are multiplied.
type tileShape struct {
	rows, cols int
	ahead      bool
}
