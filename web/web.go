// Package web holds the page that people see in a browser: what `make web` builds from web/src, as it goes over the wire.
//
// It answers no request; server does, and everything that the page shows comes from server's routes.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"path"
	"sync"
)

//go:embed dist THIRD_PARTY_LICENSES.txt
var dist embed.FS

// Policy is the Content-Security-Policy under which the page works: its own script, sheet and pictures, requests to its own
// server, no HTML from text, no frame around it.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Index is the name of the page itself, which is served under the bare path.
const Index = "index.html"

// File is one file of the page.
type File struct {
	Name string
	Type string // Content-Type
	Body []byte
	Gzip []byte // Body compressed
	Tag  string // entity tag, quotes included
}

var types = map[string]string{
	Index: "text/html; charset=utf-8", "app.js": "text/javascript; charset=utf-8", "app.css": "text/css; charset=utf-8",
	"icon.svg": "image/svg+xml", "THIRD_PARTY_LICENSES.txt": "text/plain; charset=utf-8",
}

// Files are all files of the page. They are made once and are not to be changed.
var Files = sync.OnceValue(func() []File {
	entries, err := dist.ReadDir("dist")
	if err != nil {
		panic(fmt.Sprintf("web: the built page is not in the binary: %s", err))
	}
	paths := []string{"THIRD_PARTY_LICENSES.txt"}
	for _, e := range entries {
		paths = append(paths, "dist/"+e.Name())
	}
	var out []File
	for _, p := range paths {
		f := File{Name: path.Base(p), Type: types[path.Base(p)]}
		if f.Type == "" {
			panic(fmt.Sprintf("web: %s has no type: add it to the table", f.Name))
		}
		if f.Body, err = dist.ReadFile(p); err != nil {
			panic(fmt.Sprintf("web: %s: %s", f.Name, err))
		}
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
		z.Write(f.Body) // a buffer takes everything
		z.Close()
		f.Gzip = b.Bytes()
		sum := sha256.Sum256(f.Body)
		f.Tag = `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
		out = append(out, f)
	}
	return out
})
