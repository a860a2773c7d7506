package chaos

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestBookkeeping: seeds of one code are run once over each thing, those of another anew, those of a block that failed again,
// and what failed once each time.
func TestBookkeeping(t *testing.T) {
	dir := t.TempDir()
	room, file := filepath.Join(dir, "room"), filepath.Join(dir, "chaos.jsonl")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(room, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(room, 0o755); err != nil {
		t.Fatal(err)
	}
	write("a.go", "package a")
	var ran []uint64
	run := func(over, seeds string) int {
		ran = nil
		tally := &Tally{Kinds: []string{"no space"}}
		Run(t, Plan{Over: over, Seeds: seeds, File: file, Rooms: []string{room}, Failed: []uint64{7}, Tally: tally, One: func(_ *testing.T, seed uint64) int {
			ran = append(ran, seed)
			tally.Error("x: no space left")
			return 2
		}})
		return len(ran)
	}
	if n := run("run", "1..60"); n != 61 || ran[0] != 7 || ran[1] != 1 || ran[60] != 60 {
		t.Errorf("at first %d: %v", n, ran)
	}
	if run("run", "41..70"); !slices.Equal(ran, []uint64{7, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70}) {
		t.Errorf("then %v", ran)
	}
	if n := run("serve", "1..60"); n != 61 {
		t.Errorf("over another: %d", n)
	}
	write("a_test.go", "package a")
	if n := run("run", "1..60"); n != 1 {
		t.Errorf("another test: %d", n)
	}
	write("chaos_test.go", "package a")
	if n := run("run", "1..2"); n != 3 {
		t.Errorf("another test of chaos: %d", n)
	}
	write("a.go", "package b")
	if n := run("run", "1..2"); n != 3 {
		t.Errorf("other code: %d", n)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	var l Line
	if err := json.Unmarshal([]byte(lines[0]), &l); err != nil {
		t.Fatal(err)
	}
	if len(lines) != 7 || l.Over != "run" || l.From != 1 || l.To != 50 || l.Seeds != 50 || l.Requests != 100 || l.Failed || l.Told["no space"] != 50 || len(l.Code) != 12 || l.Commit == "" {
		t.Errorf("%d lines, the first is %+v", len(lines), l)
	}
	failed := strings.Replace(lines[len(lines)-1], `"failed":false`, `"failed":true`, 1)
	if err := os.WriteFile(file, []byte(failed+"\n{\"over\":\"ru"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := run("run", "1..2"); n != 3 {
		t.Errorf("after a failure: %d", n)
	}
}
