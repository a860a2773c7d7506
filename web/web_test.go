package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"regexp"
	"strings"
	"testing"
)

// firstLoad is the most that a first visit may bring over the wire, compressed.
const firstLoad = 400 << 10

func TestFiles(t *testing.T) {
	names := map[string]*File{}
	all := Files()
	for i := range all {
		f := &all[i]
		names[f.Name] = f
		z, err := gzip.NewReader(bytes.NewReader(f.Gzip))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(z); err != nil || !bytes.Equal(b, f.Body) {
			t.Errorf("%s is another when uncompressed (%v)", f.Name, err)
		}
	}
	total := 0
	for _, n := range []string{Index, "app.js", "app.css", "icon.svg"} {
		if names[n] == nil || len(names[n].Body) == 0 {
			t.Fatalf("no %s", n)
		}
		total += len(names[n].Gzip)
	}
	t.Logf("first load: %d bytes", total)
	if total >= firstLoad {
		t.Errorf("a first load is %d bytes, want less than %d", total, firstLoad)
	}
	if names["THIRD_PARTY_LICENSES.txt"] == nil || !bytes.Contains(names["THIRD_PARTY_LICENSES.txt"].Body, []byte("preact")) {
		t.Error("the licences of what the bundle holds are missing")
	}
}

// TestNothingOutside: the built files name no address outside, but for the names of XML's languages, which nobody fetches.
func TestNothingOutside(t *testing.T) {
	address := regexp.MustCompile(`(?i)(?:https?://|wss?://|["'(=\s]//)[a-z0-9./:_-]*\.[a-z]{2,}[a-z0-9./_-]*`)
	if address.FindString(`x="//cdn.example.com/a.js"`) == "" || address.FindString(`url(https://fonts.example.org)`) == "" {
		t.Fatal("the pattern finds nothing")
	}
	for _, f := range Files() {
		if f.Name == "THIRD_PARTY_LICENSES.txt" {
			continue
		}
		for _, a := range address.FindAllString(string(f.Body), -1) {
			if !strings.HasPrefix(a, "http://www.w3.org/") {
				t.Errorf("%s names %s", f.Name, a)
			}
		}
	}
}

// TestPolicyHolds: the page has nothing that its policy forbids, such as a script or a style within it.
func TestPolicyHolds(t *testing.T) {
	for _, f := range Files() {
		if f.Name != Index {
			continue
		}
		for _, p := range []string{`<script(?:\s+(?:defer|type="[^"]*"))*\s*>`, `<style`, `\sstyle=`, `\son[a-z]+=`, `javascript:`, `data:`} {
			if m := regexp.MustCompile(p).Find(f.Body); m != nil {
				t.Errorf("%s holds %q", f.Name, m)
			}
		}
	}
	if !strings.Contains(Policy, "default-src 'none'") || strings.Contains(Policy, "unsafe") || strings.Contains(Policy, "*") {
		t.Errorf("the policy is %s", Policy)
	}
}
