// Command _sbom writes what Terrace's program is made of: docs/sbom.cdx.json (CycloneDX 1.6) and docs/licences.md. The same
// go.mod gives the same bytes. Run it from the top of the checkout, as `make sbom` does.
package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

type module struct {
	Path, Version, Dir string
	Main               bool
}

type (
	licence struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	hash struct {
		Alg     string `json:"alg"`
		Content string `json:"content"`
	}
	component struct {
		Type     string    `json:"type"`
		Ref      string    `json:"bom-ref"`
		Name     string    `json:"name"`
		Version  string    `json:"version,omitempty"`
		Scope    string    `json:"scope,omitempty"`
		Hashes   []hash    `json:"hashes,omitempty"`
		Licences []licence `json:"licenses"`
		Purl     string    `json:"purl,omitempty"`
	}
	document struct {
		Format   string `json:"bomFormat"`
		Spec     string `json:"specVersion"`
		Version  int    `json:"version"`
		Metadata struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}
)

// targets are the builds whose modules count: what only one of them links is in the list too.
var targets = []string{"linux/amd64 1", "linux/amd64 0", "linux/arm64 0", "darwin/arm64 0", "windows/amd64 0"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run() error {
	used := map[string]module{}
	for _, t := range targets {
		target, cgo, _ := strings.Cut(t, " ")
		system, arch, _ := strings.Cut(target, "/")
		c := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{{.Path}}|{{.Version}}|{{.Dir}}|{{.Main}}{{end}}`, "./cmd/terrace")
		c.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED="+cgo)
		c.Stderr = os.Stderr
		out, err := c.Output()
		if err != nil {
			return fmt.Errorf("go list for %s: %w", target, err)
		}
		for _, line := range strings.Fields(string(out)) {
			if f := strings.Split(line, "|"); len(f) == 4 && f[3] == "false" {
				used[f[0]] = module{Path: f[0], Version: f[1], Dir: f[2]}
			}
		}
	}
	sums, err := goSums()
	if err != nil {
		return err
	}
	var doc document
	doc.Format, doc.Spec, doc.Version = "CycloneDX", "1.6", 1
	doc.Metadata.Component = component{Type: "application", Ref: "terrace", Name: "terrace", Licences: ids("MIT")}
	var text bytes.Buffer
	text.WriteString("# Licences\n\nTerrace itself is under the MIT licence (LICENSE). Its program links the Go standard library (BSD-3-Clause) and these modules;\n`make sbom` writes this list and docs/sbom.cdx.json. Modules that only tests use are not in the program.\n\n| module | version | licence |\n|---|---|---|\n")
	doc.Components = append(doc.Components, component{Type: "library", Ref: "go-standard-library", Name: "Go standard library and run time", Scope: "required", Licences: ids("BSD-3-Clause")})
	for _, path := range sorted(used) {
		m := used[path]
		l, err := licencesOf(m.Dir)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		purl := "pkg:golang/" + path + "@" + m.Version
		x := component{Type: "library", Ref: purl, Name: path, Version: m.Version, Scope: "required", Licences: ids(l...), Purl: purl}
		sum, ok := sums[path+" "+m.Version]
		if !ok {
			return fmt.Errorf("%s %s is not in go.sum", path, m.Version)
		}
		x.Hashes = []hash{{"SHA-256", sum}} // of the module's content, as go.sum has it (h1)
		doc.Components = append(doc.Components, x)
		fmt.Fprintf(&text, "| %s | %s | %s |\n", path, m.Version, strings.Join(l, ", "))
	}
	doc.Components = append(doc.Components, component{Type: "library", Ref: "vulkan-headers", Name: "Vulkan headers (vulkan/khronos)", Scope: "required", Licences: ids("Apache-2.0")})
	text.WriteString("| Vulkan headers in vulkan/khronos | see there | Apache-2.0 |\n")
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile("docs/sbom.cdx.json", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile("docs/licences.md", text.Bytes(), 0o644)
}

func sorted(m map[string]module) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func ids(names ...string) []licence {
	var out []licence
	for _, n := range names {
		var l licence
		l.License.ID = n
		out = append(out, l)
	}
	return out
}

// goSums are the modules' hashes in hexadecimal.
func goSums() (map[string]string, error) {
	f, err := os.Open("go.sum")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	for in := bufio.NewScanner(f); in.Scan(); {
		w := strings.Fields(in.Text())
		if len(w) != 3 || strings.HasSuffix(w[1], "/go.mod") {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(w[2], "h1:"))
		if err != nil {
			return nil, err
		}
		out[w[0]+" "+w[1]] = hex.EncodeToString(b)
	}
	return out, nil
}

// marks are sentences by which a licence's text is known. Order counts: the first that is found names it.
var marks = []struct{ id, text string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"GPL-3.0-only", "gnu general public license"},
	{"BSD-3-Clause", "neither the name of"},
	{"BSD-2-Clause", "redistributions in binary form must reproduce"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software"},
	{"MIT", "permission is hereby granted, free of charge"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
	{"Unlicense", "unlicense"},
}

// licencesOf reads the licence files of a module's top folder. One that is not known is an error: somebody must look at it.
func licencesOf(dir string) ([]string, error) {
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if e.Type()&fs.ModeType != 0 || !strings.HasPrefix(name, "licen") && !strings.HasPrefix(name, "copying") && !strings.HasPrefix(name, "unlicense") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		text := strings.Join(strings.Fields(strings.ToLower(string(b))), " ")
		text = strings.NewReplacer("license, version", "license version").Replace(text)
		known := false
		for _, m := range marks {
			if strings.Contains(text, m.text) {
				known = true
				if !slices.Contains(out, m.id) {
					out = append(out, m.id)
				}
				break
			}
		}
		if !known {
			return nil, fmt.Errorf("the licence in %s is not known", e.Name())
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no licence file")
	}
	return out, nil
}
