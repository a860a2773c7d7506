//go:build !linux

package host

func moreSpaces() map[string]func(int) (*Space, error) { return nil }
