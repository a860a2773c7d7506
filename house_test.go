// The house guards: arrows point down, each package says what it is for, nothing prints outside cmd.
package terrace_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// floors holds every room's floor; a room imports rooms of lower floors only (ARCHITECTURE.md).
var floors = map[string]int{
	"internal/fault": -1, "internal/invariant": -1,
	"gguf": 0, "chat": 0, "internal/host": 0, "internal/fmath": 0, "internal/testfile": 0, "web": 0,
	"compute": 1, "promptstore": 1, "quant": 1, "tokenizer": 1, "internal/uring": 1, "router": 1, "sample": 1, "grammar": 1, "hub": 1, "internal/chaos": 1,
	"tiers": 2, "kernels": 2,
	"model": 3, "prefetch": 3, "compute/cpu": 3, "compute/split": 3, "compute/computetest": 3, "internal/tinymodel": 3, "vulkan": 3, "plan": 3, "bench/synth": 3,
	"engine": 4,
	"bench":  5, "server": 5, "doctor": 5, "chatui": 5,
	"cmd/terrace": 6, "cmd/release": 6,
}

// prints lists what only cmd may call.
var prints = []string{"fmt.Print(", "fmt.Println(", "fmt.Printf(", "os.Stdout", "os.Stderr", "log.Print", "os.Getenv("}

func TestHouse(t *testing.T) {
	seen := map[string]bool{}
	doc := map[string]string{}
	checked := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != "." && (strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_") || n == "testdata" || n == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || filepath.Dir(path) == "." {
			return nil
		}
		room := filepath.ToSlash(filepath.Dir(path))
		floor, ok := floors[room]
		if !ok {
			t.Errorf("%s: room %s has no floor", path, room)
			return nil
		}
		seen[room] = true
		checked++
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments|parser.ImportsOnly)
		if err != nil {
			return err
		}
		if f.Doc != nil && !strings.HasSuffix(path, "_test.go") && (strings.HasPrefix(f.Doc.Text(), "Package ") || strings.HasPrefix(f.Doc.Text(), "Command ")) {
			doc[room] = f.Doc.Text()
		}
		for _, im := range f.Imports {
			p, _ := strconv.Unquote(im.Path.Value)
			low, ours := strings.CutPrefix(p, "terrace/")
			if !ours || low == room { // a room's own external tests
				continue
			}
			lf, ok := floors[low]
			if !ok {
				t.Errorf("%s imports %s, which has no floor", path, p)
			} else if lf >= floor && !strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s (floor %d) imports %s (floor %d): arrows point down", path, floor, low, lf)
			}
		}
		if !strings.HasPrefix(room, "cmd/") && !strings.HasSuffix(path, "_test.go") {
			for _, p := range prints {
				if strings.Contains(string(src), p) {
					t.Errorf("%s uses %s: only cmd talks to people and reads the environment", path, p)
				}
			}
		}
		if n := strings.Count(string(src), "\n"); n > 800 {
			t.Errorf("%s has %d lines, more than 800: split it by meaning", path, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for room := range floors {
		if !seen[room] {
			t.Errorf("room %s stands in the table but not in the house", room)
		} else if doc[room] == "" {
			t.Errorf("room %s has no package sentence", room)
		}
	}
	if checked < len(floors) {
		t.Errorf("only %d files checked", checked)
	}
}
