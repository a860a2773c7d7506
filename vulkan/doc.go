// Package vulkan is the room of the GPU backend, the only one that will use cgo; today it has no device code and answers
// ErrUnavailable.
//
// It is no fallback: who asks for a GPU by name gets this error, never the CPU in silence.
package vulkan

import "errors"

// ErrUnavailable says that no GPU can be used: the build has no Vulkan backend, or the machine no device.
var ErrUnavailable = errors.New("this build has no Vulkan backend")
