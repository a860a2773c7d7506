package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceName is what files of licences and notices are called.
var licenceName = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|copyright|notice|patents|authors-notice)([-._].*)?$`)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// thirdParty is the text of all licences of the modules from which a target's program has packages, and of Go's own library. A file counts for
// the packages below its folder. A module without any licence is an error.
func thirdParty(t target) ([]byte, error) {
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module", "./cmd/terrace")
	list.Env, list.Stderr = t.env(), os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	files := map[string][]string{} // module path and version: its files
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		key := p.Module.Path + " " + p.Module.Version
		for dir := p.Dir; ; dir = filepath.Dir(dir) {
			here, err := licencesIn(dir)
			if err != nil {
				return nil, err
			}
			for _, f := range here {
				if !slices.Contains(files[key], f) {
					files[key] = append(files[key], f)
				}
			}
			if dir == p.Module.Dir {
				if len(files[key]) == 0 {
					return nil, fmt.Errorf("%s has no licence in %s", key, dir)
				}
				break
			}
			if len(dir) <= len(p.Module.Dir) {
				return nil, fmt.Errorf("package %s in %s is outside its module %s", p.ImportPath, p.Dir, p.Module.Dir)
			}
		}
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	golang := filepath.Join(strings.TrimSpace(string(root)), "LICENSE")
	if _, err := os.Stat(golang); err != nil { // where distributions keep it
		golang = "/usr/share/doc/golang-go/copyright"
	}
	var b bytes.Buffer
	b.WriteString("Terrace contains the following software of others, each under its own licence.\n")
	if err := appendFile(&b, "The Go standard library and run time", "LICENSE", golang); err != nil {
		return nil, err
	}
	keys := slices.Sorted(func(yield func(string) bool) {
		for k := range files {
			if !yield(k) {
				return
			}
		}
	})
	for _, k := range keys {
		fs := files[k]
		slices.Sort(fs)
		for _, f := range fs {
			if err := appendFile(&b, k, filepath.Base(f), f); err != nil {
				return nil, err
			}
		}
	}
	if err := appendFile(&b, "The page that terrace serve shows", filepath.Base(pageLicences), pageLicences); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// pageLicences are those of what is in the page that serve shows.
const pageLicences = "web/THIRD_PARTY_LICENSES.txt"

func licencesIn(dir string) (fs []string, err error) {
	es, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range es {
		if e.Type().IsRegular() && licenceName.MatchString(e.Name()) && !strings.HasSuffix(e.Name(), ".go") {
			fs = append(fs, filepath.Join(dir, e.Name()))
		}
	}
	return fs, nil
}

func appendFile(b *bytes.Buffer, what, name, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\n%s\n%s  %s\n%[1]s\n\n%[4]s\n", strings.Repeat("=", 78), what, name, bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r"), nil)))
	return nil
}
