// Package vulkan is the GPU backend of compute, and the only room that uses cgo: one device for dense layers, caches and
// experts, on any GPU with Vulkan 1.2 and buffer addresses.
//
// It is no fallback: who asks for a GPU by name gets ErrUnavailable where there is none, never the CPU in silence. It knows
// neither models nor files nor who stays in memory.
//
// The binding makes instances and devices; everything that runs while a model computes is in ext.c, which takes a whole list
// of commands a call. Shaders lie in shaders/, GLSL beside the SPIR-V that is embedded. Their arithmetic is that of kernels,
// in the order of the numeric contract (ARCHITECTURE.md); Info says where a device cannot give its bits.
package vulkan

import "errors"

// ErrUnavailable says that no GPU can be used: the build has no Vulkan backend, or the machine no device that would do.
var ErrUnavailable = errors.New("no Vulkan device")

// ErrLost is wrapped by errors after which the device is of no more use.
var ErrLost = errors.New("the device was lost")
