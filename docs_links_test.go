// What pages name must be there: flags, make's targets, files.
package terrace_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const docCommit = "0123456789abcdef0123456789abcdef01234567"

// newDocHub is a hub of one repository, under whatever name it is asked for, with the files given by name.
func newDocHub(t *testing.T, files map[string]string) (addr string) {
	t.Helper()
	list := sync.OnceValues(func() (any, error) {
		var all []map[string]any
		for name, path := range files {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(b)
			all = append(all, map[string]any{"type": "file", "path": name, "size": 130, "oid": "x", "lfs": map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(b)}})
		}
		return all, nil
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p := r.URL.Path; {
		case strings.HasPrefix(p, "/api/models/") && strings.HasSuffix(p, "/revision/main"):
			fmt.Fprintf(w, `{"sha":%q}`, docCommit)
		case strings.HasPrefix(p, "/api/models/") && strings.HasSuffix(p, "/tree/"+docCommit):
			all, err := list()
			if err != nil {
				t.Error(err)
			}
			json.NewEncoder(w).Encode(all)
		default:
			f, err := os.Open(files[filepath.Base(p)])
			if err != nil {
				http.NotFound(w, r)
				return
			}
			defer f.Close()
			http.ServeContent(w, r, "", time.Time{}, f)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// otherFlags are flags of other programs that pages speak of.
var otherFlags = map[string]bool{"--help": true, "--version": true}

var (
	flagWord   = regexp.MustCompile("(?:^|[\\s`(|,/])(--[a-z][a-z0-9-]+)")
	makeTarget = regexp.MustCompile("`make ([a-z][a-z0-9-]+)")
	namedFile  = regexp.MustCompile("`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+\\.(?:go|md|sh|json|jsonl|mjs|svg))`")
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	family     = regexp.MustCompile(`\bterrace_[a-z_]+`)
	localLink  = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)|(?:src|srcset)="([^":]+)"`)
)

// TestDocNames: flags that pages name are flags of the program, make's targets are in the Makefile, links lead to files, and named files
// and tests are there.
func TestDocNames(t *testing.T) {
	program := builtProgram(t)
	flags := map[string]bool{}
	page, err := exec.Command(program, "man").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range flagWord.FindAllStringSubmatch(strings.NewReplacer(`\-`, "-", `\fB`, " ", `\fI`, " ", `\fR`, " ").Replace(string(page)), -1) {
		flags[m[1]] = true
	}
	if len(flags) < 80 {
		t.Fatalf("only %d flags found in the manual page", len(flags))
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	results, err := filepath.Glob("bench/results/*.md")
	if err != nil {
		t.Fatal(err)
	}
	own := append(docPages(t), "CONTRIBUTING.md", "ARCHITECTURE.md", "RATIONALE.md")
	for _, page := range append(slices.Clone(own), append(results, "conformance/README.md")...) {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range strings.Split(string(src), "\n") {
			for _, name := range testName.FindAllString(l, -1) {
				if !tests[name] {
					t.Errorf("%s:%d: there is no %s", page, i+1, name)
				}
			}
			for _, m := range namedFile.FindAllStringSubmatch(l, -1) {
				_, err := os.Stat(m[1])
				if _, beside := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil && beside != nil {
					t.Errorf("%s:%d: %v", page, i+1, err)
				}
			}
		}
	}
	for _, page := range own {
		src, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range strings.Split(string(src), "\n") {
			for _, m := range flagWord.FindAllStringSubmatch(l, -1) {
				if !flags[m[1]] && !otherFlags[m[1]] {
					t.Errorf("%s:%d: no command has %s", page, i+1, m[1])
				}
			}
			for _, m := range makeTarget.FindAllStringSubmatch(l, -1) {
				if !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
					t.Errorf("%s:%d: the Makefile has no %s", page, i+1, m[1])
				}
			}
			for _, m := range localLink.FindAllStringSubmatch(l, -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1]+m[3])); err != nil {
					t.Errorf("%s:%d: %v", page, i+1, err)
				}
			}
		}
	}
}

// testNames are the tests of all rooms.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	eachSource(t, ".", func(path string, src []byte) {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunc.FindAllSubmatch(src, -1) {
				names[string(m[1])] = true
			}
		}
	})
	return names
}

// eachSource reads the Go files below a folder.
func eachSource(t *testing.T, dir string, each func(path string, src []byte)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err == nil {
			each(path, src)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDocFamilies: the families of metrics that the page names are those that the server has.
func TestDocFamilies(t *testing.T) {
	page, err := os.ReadFile("docs/api-tiers.md")
	if err != nil {
		t.Fatal(err)
	}
	told, has := map[string]bool{}, map[string]bool{}
	for _, n := range family.FindAllString(string(page), -1) {
		told[n] = true
	}
	eachSource(t, "server", func(path string, src []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			for _, n := range family.FindAllString(string(src), -1) {
				has[n] = true
			}
		}
	})
	if len(has) < 30 {
		t.Fatalf("only %d families found", len(has))
	}
	for n := range has {
		if !told[n] {
			t.Errorf("docs/api-tiers.md does not name %s", n)
		}
	}
	for n := range told {
		if !has[n] {
			t.Errorf("docs/api-tiers.md names %s, which no server has", n)
		}
	}
}
