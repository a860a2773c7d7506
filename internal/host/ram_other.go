//go:build !linux && !darwin && !windows

package host

import "fmt"

func ram() (Memory, error) { return Memory{}, fmt.Errorf("size of the RAM: %w", ErrUnknown) }

func rss() (Resident, error) { return Resident{}, fmt.Errorf("resident size: %w", ErrUnknown) }

func physicalCores() int { return 0 }
