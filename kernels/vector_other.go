//go:build !(amd64 || arm64) || noasm

package kernels

// vector lists the levels above the generic one.
func vector() []*level { return nil }

func bindVector() {}
