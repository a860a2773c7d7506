package hub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseRef(t *testing.T) {
	for in, want := range map[string]Ref{
		"org/repo":                          {Repo: "org/repo"},
		"org/repo:UD-Q4_K_XL":               {Repo: "org/repo", Quant: "UD-Q4_K_XL"},
		"org/repo@v1.0:q8_0":                {Repo: "org/repo", Revision: "v1.0", Quant: "q8_0"},
		"hf://org/repo:Q2_K":                {Repo: "org/repo", Quant: "Q2_K"},
		"hf://org/repo/a/b.gguf":            {Repo: "org/repo", File: "a/b.gguf"},
		"https://hub.example/sub/org/repo/": {Repo: "org/repo"},
		"https://HUB.example:443/sub/org/repo/resolve/main/a/b.gguf?download=true": {Repo: "org/repo", File: "a/b.gguf"},
		"https://hub.example/sub/org/repo/blob/abc/b.GGUF":                         {Repo: "org/repo", Revision: "abc", File: "b.GGUF"},
		"https://hub.example/sub/org/repo/tree/abc":                                {Repo: "org/repo", Revision: "abc"},
		"https://other.example/sub/org/repo/resolve/main/b.gguf":                   {URL: "https://other.example/sub/org/repo/resolve/main/b.gguf"},
		"http://hub.example/x/y.gguf?k=1#part":                                     {URL: "http://hub.example/x/y.gguf?k=1"},
	} {
		got, err := ParseRef(in, "https://hub.example/sub/")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
		if err == nil && got.URL == "" && got.Revision != "v1.0" {
			if again, err := ParseRef(got.String(), ""); err != nil || again != got {
				t.Errorf("%s reads as %+v, %v", got, again, err)
			}
		}
	}
	for _, in := range []string{"", "model", "/", "a/", "/b", "../b", "a/..", "org/repo:", "org/repo:a b", "org/repo@:x", "org/repo/../../x.gguf", "org/repo/x.bin", `org/repo/a\b.gguf`,
		"ftp://h/x.gguf", "https://", "https:///x.gguf", "https://h/x.bin", "https://u:p@h/x.gguf", "org/re po", "-org/repo", "org/repo@..", "https://hub.example/org/repo/resolve/main/../../../x.gguf%00"} {
		if r, err := ParseRef(in, "https://hub.example"); !errors.Is(err, ErrName) {
			t.Errorf("%q: %+v, %v", in, r, err)
		}
	}
	for in, want := range map[string]bool{"org/repo": true, "models/x.gguf": false, "org/repo:Q4_K": true, "./org/repo": false, "/org/repo": false, "https://h/x.gguf": true, "x": false, "c://x": false} {
		if IsRef(in) != want {
			t.Errorf("IsRef(%q) is %v", in, !want)
		}
	}
}

func TestVariants(t *testing.T) {
	var files []File
	add := func(size int64, names ...string) {
		for _, n := range names {
			files = append(files, File{Path: n, Size: size})
		}
	}
	add(5, "M-Q8_0.gguf", "mmproj-M-F16.gguf", "M.imatrix.gguf", "UD-Q4_K_M/M-UD-Q4_K_M-00002-of-00002.gguf", "UD-Q4_K_M/M-UD-Q4_K_M-00001-of-00002.gguf")
	add(2, "M-IQ3_XXS.gguf", "M-Q4_K_M-00001-of-00003.gguf", "M-Q4_K_M-00003-of-00003.gguf")
	add(1, "M-MXFP4_MOE.gguf", "BF16/M-part.gguf", "M-30B-A3B.gguf", "a-Q2_K.gguf", "b-Q2_K.gguf")
	vs := Variants(files)
	var got []string
	for _, v := range vs {
		got = append(got, fmt.Sprintf("%s %d %d %v", v.Quant, len(v.Files), v.Size(), v.Whole() == nil))
	}
	want := []string{"BF16 1 1 true", " 1 1 true", "MXFP4_MOE 1 1 true", "Q2_K 1 1 true", "Q2_K 1 1 true", "IQ3_XXS 1 2 true", "Q4_K_M 2 4 false", "Q8_0 1 5 true", "UD-Q4_K_M 2 10 true"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	l := &Listing{Repo: "o/r", Files: files}
	for _, x := range []struct{ quant, file, want string }{
		{"iq3_xxs", "", "M-IQ3_XXS.gguf"},
		{"Q8_0", "", "M-Q8_0.gguf"},
		{"", "mmproj-M-F16.gguf", "mmproj-M-F16.gguf"},
		{"", "UD-Q4_K_M/M-UD-Q4_K_M-00002-of-00002.gguf", "UD-Q4_K_M/M-UD-Q4_K_M-00001-of-00002.gguf"},
		{"Q4_K_M", "", "!part 2 of 3 is not there"},
		{"", "", "!part 2 of 3"},
		{"Q2_K", "", "!fits 2 models: name one as o/r/FILE: a-Q2_K.gguf, b-Q2_K.gguf"},
		{"Q5_K", "", "!no Q5_K; it has BF16, M-30B-A3B, MXFP4_MOE, Q2_K"},
		{"", "x.gguf", `!no file "x.gguf"`},
	} {
		v, err := l.choose(Ref{Repo: "o/r", Quant: x.quant, File: x.file})
		if w, bad := strings.CutPrefix(x.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v", x, err)
			}
		} else if err != nil || v.Files[0].Path != x.want {
			t.Errorf("%+v: %+v, %v", x, v, err)
		}
	}
	l.Files = files[:1]
	if v, err := l.choose(Ref{}); err != nil || v.Quant != "Q8_0" {
		t.Errorf("the only one: %+v, %v", v, err)
	}
	l.Files = []File{{Path: "a-Q2_K.gguf"}, {Path: "a-Q8_0.gguf"}}
	if _, err := l.choose(Ref{}); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), "Q2_K, Q8_0") {
		t.Errorf("a choice: %v", err)
	}
}

// TestSpans compares with a plain array of what is there.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 60
		var s spans
		var there [n]bool
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			from := rapid.Int64Range(0, n).Draw(t, "from")
			to := rapid.Int64Range(from, n).Draw(t, "to")
			s = s.add(span{from, to})
			for i := from; i < to; i++ {
				there[i] = true
			}
		}
		if !s.valid(n) {
			t.Fatalf("%v is not valid", s)
		}
		count := int64(0)
		for _, x := range there {
			if x {
				count++
			}
		}
		if s.size() != count {
			t.Fatalf("%v has %d, want %d", s, s.size(), count)
		}
		piece := rapid.Int64Range(1, n).Draw(t, "piece")
		for _, g := range s.gaps(n, piece) {
			if g[1]-g[0] > piece || g[1] <= g[0] {
				t.Fatalf("gap %v with pieces of %d", g, piece)
			}
			for i := g[0]; i < g[1]; i++ {
				if there[i] {
					t.Fatalf("%d is there and a gap of %v", i, s)
				}
				there[i] = true
			}
		}
		for i, x := range there {
			if !x {
				t.Fatalf("%d is neither there nor a gap", i)
			}
		}
	})
}

// TestAnswers: what a hub says may be anything.
func TestAnswers(t *testing.T) {
	for s, want := range map[string][4]int64{"bytes 0-9/100": {0, 9, 100, 1}, "bytes 5-9/*": {5, 9, -1, 1}, "bytes */7": {-1, -1, 7, 1}, "bytes 0-9/5": {0, 9, 5, 0}, "": {}, "bytes a-b/c": {}, "bytes 1/2": {1, 0, 2, 0}} {
		a, b, n, ok := contentRange(s)
		if ok != (want[3] == 1) || ok && [3]int64{a, b, n} != [3]int64(want[:3]) {
			t.Errorf("%q: %d %d %d %v", s, a, b, n, ok)
		}
	}
	for _, f := range []File{
		{Path: "../x.gguf", ETag: strings.Repeat("a", 64)}, {Path: "/x.gguf", ETag: strings.Repeat("a", 64)}, {Path: "a//x.gguf", ETag: strings.Repeat("a", 64)}, {Path: `a\x.gguf`, ETag: strings.Repeat("a", 64)},
		{Path: "x.gguf", ETag: strings.Repeat("a", 63)}, {Path: "x.gguf", ETag: "../../../etc" + strings.Repeat("a", 52)}, {Path: "x.gguf", Size: -1, ETag: strings.Repeat("a", 64)}, {Path: "x.gguf", ETag: strings.Repeat("a", 64), git: true},
	} {
		if f.check() == nil {
			t.Errorf("accepted: %+v", f)
		}
	}
	for _, o := range []Options{{Endpoint: "hub"}, {Endpoint: "ftp://h"}, {Endpoint: "https://u@h"}, {Endpoint: "https://h?x=1"}, {Token: "a\nb"}, {Token: "a b"}} {
		if _, err := New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		} else if strings.Contains(err.Error(), "a\nb") || strings.Contains(err.Error(), "a b") {
			t.Errorf("the token is told: %v", err)
		}
	}
}
