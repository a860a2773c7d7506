//go:build !unix

package host

import (
	"os"
	"path/filepath"
	"strings"
)

// Device names what holds path, the same for all files on it: here, the volume.
func Device(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return "volume-" + strings.ToLower(filepath.VolumeName(abs)), nil
}
