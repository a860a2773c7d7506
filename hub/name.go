package hub

import (
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Ref is what a user named: a repository, with a quantisation or a file or without, or a URL elsewhere.
type Ref struct {
	Repo     string // org/name; "" where URL is set
	Revision string // branch, tag or commit; "" is main
	Quant    string // as file names spell it; case does not count
	File     string // path in the repository
	URL      string // of a file that is no repository's
}

func (r Ref) String() string {
	if r.URL != "" {
		return display(r.URL)
	}
	s := r.Repo
	if r.Revision != "" {
		s += "@" + r.Revision
	}
	switch {
	case r.File != "":
		s += "/" + r.File
	case r.Quant != "":
		s += ":" + r.Quant
	}
	return s
}

var (
	namePart = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)
	quantRef = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
)

// IsRef says whether s is written like a name or URL of this room rather than like a path: a scheme, or ORG/REPO with or
// without :QUANT. A caller asks whether such a path exists first.
func IsRef(s string) bool {
	if strings.Contains(s, "://") {
		_, err := ParseRef(s, "")
		return err == nil
	}
	if strings.HasSuffix(strings.ToLower(s), ".gguf") {
		return false
	}
	_, err := ParseRef(s, "")
	return err == nil
}

// ParseRef reads ORG/REPO[@REVISION][:QUANT], ORG/REPO[@REVISION]/FILE.gguf, the same after hf://, and https and http URLs. A URL of a file at
// endpoint ("" is DefaultEndpoint) means that repository.
func ParseRef(s, endpoint string) (Ref, error) {
	if endpoint == "" {
		endpoint = DefaultEndpoint
	}
	bad := func(why string) (Ref, error) {
		return Ref{}, fmt.Errorf("%w %q %s: want ORG/REPO:QUANT, ORG/REPO, hf://ORG/REPO or a URL of a GGUF file", ErrName, s, why)
	}
	if scheme, rest, ok := strings.Cut(s, "://"); ok {
		switch strings.ToLower(scheme) {
		case "hf":
			s = rest
		case "https", "http":
			u, err := url.Parse(s)
			if err != nil || u.Host == "" {
				return bad("is no URL")
			}
			if u.User != nil {
				return bad("holds a user's name")
			}
			u.Fragment = ""
			e, err := url.Parse(strings.TrimRight(endpoint, "/"))
			if err == nil && sameOrigin(u, e) {
				if inside, ok := strings.CutPrefix(u.Path, e.Path+"/"); ok {
					if r, ok := repoURL(strings.Trim(inside, "/")); ok {
						return r, nil
					}
				}
			}
			if !strings.HasSuffix(strings.ToLower(u.Path), ".gguf") {
				return bad("names no GGUF file")
			}
			return Ref{URL: u.String()}, nil
		default:
			return bad("has an unknown scheme")
		}
	}
	r := Ref{}
	parts := strings.SplitN(s, "/", 3)
	if len(parts) < 2 {
		return bad("lacks a slash")
	}
	if len(parts) == 3 {
		r.File = parts[2]
		if !localPath(r.File) || !strings.HasSuffix(strings.ToLower(r.File), ".gguf") {
			return bad("has a third part that is no GGUF file")
		}
	} else if name, quant, ok := strings.Cut(parts[1], ":"); ok {
		if !quantRef.MatchString(quant) {
			return bad("has no quantisation after its colon")
		}
		parts[1], r.Quant = name, quant
	}
	if name, rev, ok := strings.Cut(parts[1], "@"); ok {
		if !quantRef.MatchString(rev) || !localPath(rev) {
			return bad("has no revision after its @")
		}
		parts[1], r.Revision = name, rev
	}
	if !namePart.MatchString(parts[0]) || !namePart.MatchString(parts[1]) {
		return bad("is none")
	}
	r.Repo = parts[0] + "/" + parts[1]
	return r, nil
}

// repoURL reads what stands after the endpoint in a URL of a repository or of a file in it.
func repoURL(p string) (Ref, bool) {
	parts := strings.SplitN(p, "/", 5)
	if len(parts) < 2 || !namePart.MatchString(parts[0]) || !namePart.MatchString(parts[1]) {
		return Ref{}, false
	}
	r := Ref{Repo: parts[0] + "/" + parts[1]}
	if len(parts) == 2 {
		return r, true
	}
	if len(parts) < 4 || !quantRef.MatchString(parts[3]) || !localPath(parts[3]) {
		return Ref{}, false
	}
	if r.Revision = parts[3]; r.Revision == "main" {
		r.Revision = ""
	}
	switch parts[2] {
	case "tree":
		return r, len(parts) == 4
	case "resolve", "blob", "raw":
		if len(parts) < 5 || !localPath(parts[4]) || !strings.HasSuffix(strings.ToLower(parts[4]), ".gguf") {
			return Ref{}, false
		}
		r.File = parts[4]
		return r, true
	}
	return Ref{}, false
}

// localPath says whether a server's path may become one below a folder of ours.
func localPath(p string) bool {
	return p != "" && len(p) < 1024 && path.Clean(p) == p && filepath.IsLocal(filepath.FromSlash(p)) && !strings.ContainsAny(p, "\\:\x00\n\r") && p != "."
}

// display is a URL without what may be secret or long in it.
func display(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "a URL"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return map[string]string{"https": "443", "http": "80"}[strings.ToLower(u.Scheme)]
	}
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}
