//go:build cgo && !novulkan

package bench

import (
	"context"
	"testing"

	"terrace/vulkan"
)

// TestCard measures the device that there is, which need not be a card: every figure is there and finite.
func TestCard(t *testing.T) {
	r, err := Card(context.Background(), vulkan.Options{Memory: 512 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p := &r.Rates
	if r.Name == "" || !(p.Memory > 1e6 && p.Memory < 1e14) || len(p.Types) != len(cardTypes) || !(p.Layer > 0 && p.Layer < 1) || !(p.Link > 1e6) {
		t.Errorf("%+v", r)
	}
	t.Logf("%+v", r)
}
