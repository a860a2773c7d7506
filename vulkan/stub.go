//go:build !cgo || novulkan

package vulkan

import (
	"fmt"

	"terrace/compute"
)

// Backend is never made by this build.
type Backend struct{ compute.Backend }

// New answers ErrUnavailable: this build has no Vulkan backend.
func New(Options) (*Backend, error) {
	return nil, fmt.Errorf("vulkan: %w: this build has no Vulkan backend", ErrUnavailable)
}

// Devices answers ErrUnavailable: this build has no Vulkan backend.
func Devices() ([]DeviceInfo, error) {
	return nil, fmt.Errorf("vulkan: %w: this build has no Vulkan backend", ErrUnavailable)
}

// Info describes the device.
func (b *Backend) Info() DeviceInfo { return DeviceInfo{} }

// Numerics says which results have the CPU's bits.
func (b *Backend) Numerics() Numerics { return Numerics{} }

// Stats counts what was done.
func (b *Backend) Stats() Stats { return Stats{} }

// Tier is how much the device keeps.
func (b *Backend) Tier() TierStats { return TierStats{} }

// Memory is what the device offers.
func (b *Backend) Memory() (offer, held int64, told bool) { return 0, 0, false }

// Kept appends the keys of the experts that are kept.
func (b *Backend) Kept(dst []uint64) []uint64 { return dst }

// Err is an error once the device is lost.
func (b *Backend) Err() error { return nil }

// SetTier sets how many bytes may hold experts.
func (b *Backend) SetTier(int64) int64 { return 0 }

// SetWorth tells how much experts are wanted.
func (b *Backend) SetWorth(func(key uint64) float64) {}

// Forget tells that pages of the host are given back.
func (b *Backend) Forget([]byte) {}

// Adopt says that memory may be computed from where it lies.
func (b *Backend) Adopt([]byte) {}

// Hold implements compute.Keeper.
func (b *Backend) Hold(uint64) bool { return false }

// Release implements compute.Keeper.
func (b *Backend) Release(uint64) {}

// Keeps implements compute.Keeper.
func (b *Backend) Keeps(uint64) bool { return false }

// Put implements compute.Slots.
func (b *Backend) Put(*compute.Expert) error { return compute.ErrNoRoom }

// Drop implements compute.Slots.
func (b *Backend) Drop(uint64) bool { return false }
