package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestThirdParty: each module of the program is named with a licence, for every target.
func TestThirdParty(t *testing.T) {
	t.Chdir("../..")
	for _, x := range targets {
		text, err := thirdParty(x)
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		c := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/terrace")
		c.Env = x.env()
		out, err := c.Output()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for m := range strings.Lines(string(out)) {
			if m = strings.TrimSpace(m); m != "" {
				n++
				if !bytes.Contains(text, []byte("\n"+m+"  ")) {
					t.Errorf("%s: no licence of %s", x.name, m)
				}
			}
		}
		if n < 20 {
			t.Errorf("%s: only %d packages of other modules", x.name, n)
		}
		if has := bytes.Contains(text, []byte("vulkan-go/vulkan")); has != x.cgo {
			t.Errorf("%s: Vulkan's binding is named: %v", x.name, has)
		}
		if !bytes.Contains(text, []byte("The Go Authors")) {
			t.Errorf("%s: Go's own licence is missing", x.name)
		}
		if !bytes.Contains(text, []byte("The page that terrace serve shows")) {
			t.Errorf("%s: the page's licences are missing", x.name)
		}
		if n := bytes.Count(text, []byte("Permission is hereby granted")); n < 8 { // of the MIT licence alone
			t.Errorf("%s: the words of only %d MIT licences", x.name, n)
		}
	}
}

func TestPackTar(t *testing.T) {
	files := []file{{"a/terrace", "", []byte("program"), 0o755}, {"a/LICENSE", "", []byte("text"), 0o644}}
	var one, two bytes.Buffer
	for _, w := range []*bytes.Buffer{&one, &two} {
		if err := packTar(w, files); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same files give two archives")
	}
	z, err := gzip.NewReader(&one)
	if err != nil {
		t.Fatal(err)
	}
	for r, i := tar.NewReader(z), 0; ; i++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			if i != len(files) {
				t.Errorf("%d of %d files", i, len(files))
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil || h.Name != files[i].name || h.Mode != files[i].mode || !bytes.Equal(b, files[i].data) {
			t.Errorf("%s, mode %o, %q, %v", h.Name, h.Mode, b, err)
		}
	}
}

func TestNoVersion(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := release("", "dist", true); err == nil {
		t.Error("a release without a version")
	}
	if _, err := os.Stat("dist"); err == nil {
		t.Error("it began all the same")
	}
}
