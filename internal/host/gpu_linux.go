package host

import "path/filepath"

// MayHaveGPU reports whether the system shows a device file of a GPU: without one it is of no use to load drivers and ask them.
func MayHaveGPU() bool {
	for _, p := range []string{"/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/dxg"} {
		if found, _ := filepath.Glob(p); len(found) > 0 {
			return true
		}
	}
	return false
}
