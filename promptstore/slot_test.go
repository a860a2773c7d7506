package promptstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSlotLeftovers: what a killed process left of a slot's file goes when the next one is written, and what another process is just
// writing stays.
func TestSlotLeftovers(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, age time.Duration) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Now(), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	write(".slot-1.part", 2*abandoned)
	write(".slot-2.part", abandoned/2)
	write("mine.part", 2*abandoned)
	w, err := CreateSlot(filepath.Join(dir, "a.bin"), "space", []int32{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Rows(3, false, []byte("rows")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name())
	}
	if len(names) != 3 || names[0] != ".slot-2.part" || names[1] != "a.bin" || names[2] != "mine.part" {
		t.Errorf("%q", names)
	}
}
