//go:build cgo && !novulkan

package vulkan

import (
	"flag"
	"os"
	"testing"

	"terrace/compute/computetest"
)

var (
	deviceFlag   = flag.Int("device", 0, "number of the device to test, from 1; 0: the best")
	validateFlag = flag.Bool("validate", os.Getenv("TERRACE_VULKAN_VALIDATE") != "", "with the validation layer")
)

// open makes a backend; without a device the test fails: who has none builds with the tag novulkan.
func open(t testing.TB, o Options) *Backend {
	t.Helper()
	o.Device, o.Validate = *deviceFlag, *validateFlag
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestSuite(t *testing.T) {
	b := open(t, Options{})
	i := b.Info()
	t.Logf("device: %s", &i)
	t.Logf("numerics: %+v; it lacks %q", b.Numerics(), i.Lacks)
	// A software device takes most of the time to compile: there all weight types are `make exact`'s.
	short := i.Kind == Software && os.Getenv("TERRACE_EXACT") != "whole"
	computetest.Suite{Backend: b, Short: short}.Run(t)
	t.Logf("%+v", b.Stats())
}

func TestSuiteExact(t *testing.T) {
	computetest.Suite{Backend: open(t, Options{Exact: true}), Exact: true, Short: true}.Run(t)
}

// TestRouted: the device chooses experts as router.Rule does.
func TestRouted(t *testing.T) {
	b := open(t, Options{Memory: 1 << 30})
	b.SetTier(64 << 20)
	computetest.Suite{Backend: b}.Routed(t)
}
