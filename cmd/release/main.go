// Command release builds the archives of a release: a binary for each target, the licences of what is in it, and checksums. It builds what
// lies in the current folder and never publishes anything.
//
// An archive of a tree is the same bytes wherever and whenever it is made with the same Go, the one with cgo excepted, which has its C compiler's work in it.
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// target is one archive.
type target struct {
	name   string
	goos   string
	goarch string
	cgo    bool // with the GPU backend
}

var targets = []target{
	{name: "linux-amd64", goos: "linux", goarch: "amd64"},
	{name: "linux-amd64-vulkan", goos: "linux", goarch: "amd64", cgo: true},
	{name: "linux-arm64", goos: "linux", goarch: "arm64"},
	{name: "darwin-arm64", goos: "darwin", goarch: "arm64"},
	{name: "windows-amd64", goos: "windows", goarch: "amd64"},
}

func main() {
	version := flag.String("version", "", "version that is stamped in")
	dir := flag.String("dir", "dist", "folder of the archives; what is in it is removed")
	noVulkan := flag.Bool("no-vulkan", false, "leave out the build that needs a C compiler")
	flag.Parse()
	if err := release(*version, *dir, *noVulkan); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func release(version, dir string, noVulkan bool) error {
	if version == "" {
		return errors.New("no -version: a tree without history has none, give one")
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var sums strings.Builder
	for _, t := range targets {
		if t.cgo && noVulkan {
			continue
		}
		path, err := t.make(version, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), filepath.Base(path))
		fmt.Printf("%s  %.1f MB\n", path, float64(len(b))/1e6)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// env is the environment of the target's go commands.
func (t target) env() []string {
	cgo := "0"
	if t.cgo {
		cgo = "1"
	}
	return append(os.Environ(), "GOOS="+t.goos, "GOARCH="+t.goarch, "CGO_ENABLED="+cgo)
}

// make builds and packs one target and returns the archive's path.
func (t target) make(version, dir string) (string, error) {
	program := "terrace"
	if t.goos == "windows" {
		program += ".exe"
	}
	bin := filepath.Join(dir, "."+t.name, program)
	defer os.RemoveAll(filepath.Dir(bin))
	stamp := fmt.Sprintf("-s -w -X main.version=%s -X terrace/bench.version=%s", version, version)
	build := exec.Command("go", "build", "-trimpath", "-ldflags", stamp, "-o", bin, "./cmd/terrace")
	build.Env, build.Stderr = t.env(), os.Stderr
	if err := build.Run(); err != nil {
		return "", err
	}
	licences, err := thirdParty(t)
	if err != nil {
		return "", err
	}
	base := "terrace-" + version + "-" + t.name
	files := []file{{base + "/" + program, bin, nil, 0o755}, {base + "/LICENSE", "LICENSE", nil, 0o644},
		{base + "/THIRD_PARTY_LICENSES.txt", "", licences, 0o644}, {base + "/README.md", "README.md", nil, 0o644}}
	for i := range files {
		if files[i].data == nil {
			if files[i].data, err = os.ReadFile(files[i].from); err != nil {
				return "", err
			}
		}
	}
	path := filepath.Join(dir, base+".tar.gz")
	pack := packTar
	if t.goos == "windows" {
		path, pack = filepath.Join(dir, base+".zip"), packZip
	}
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(pack(out, files), out.Close())
}

// file is one entry of an archive; from is read where there is no data yet.
type file struct {
	name, from string
	data       []byte
	mode       int64
}

// packed is the time of every entry, so that archives do not differ by when they were made.
var packed = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func packTar(w io.Writer, files []file) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: packed, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func packZip(w io.Writer, files []file) error {
	z := zip.NewWriter(w)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: packed}
		h.SetMode(os.FileMode(f.mode))
		e, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := e.Write(f.data); err != nil {
			return err
		}
	}
	return z.Close()
}
