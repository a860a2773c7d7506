package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"terrace/gguf"
)

const (
	maxList  = 32 << 20 // bytes of one answer
	maxPages = 64
	maxFiles = 1 << 16
)

// Listing is what a repository holds at one commit.
type Listing struct {
	Repo     string
	Revision string // as asked for
	Commit   string
	Files    []File
	folder   string
}

// Variant is one quantisation in a repository: the files of one model.
type Variant struct {
	Name  string `json:"name"`  // path without part numbers and ending
	Quant string `json:"quant"` // the part of the name that says it, in capitals; "" if none does
	Files []File `json:"files"` // in the order of the parts
	Parts int    `json:"-"`     // that the names announce
}

// Size is the bytes of all parts that are there.
func (v *Variant) Size() int64 { return (&Model{Files: v.Files}).Size() }

var hexName = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// List asks what the repository of ref holds. It needs two requests, more for thousands of files.
func (c *Client) List(ctx context.Context, ref Ref) (*Listing, error) {
	if ref.Repo == "" {
		return nil, fmt.Errorf("%w %q is no repository", ErrName, ref)
	}
	if c.o.Offline {
		return c.listCached(ref)
	}
	rev := cmp.Or(ref.Revision, "main")
	l := &Listing{Repo: ref.Repo, Revision: rev, folder: repoFolder(ref.Repo)}
	api := c.o.Endpoint + "/api/models/" + ref.Repo
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := c.json(ctx, api+"/revision/"+url.PathEscape(rev), &info); err != nil {
		return nil, fmt.Errorf("%s: %w", ref.Repo, err)
	}
	if !hexName.MatchString(info.SHA) {
		return nil, fmt.Errorf("%s: the hub names the commit %q, want a hexadecimal hash", ref.Repo, cut(info.SHA))
	}
	l.Commit = info.SHA
	next := api + "/tree/" + l.Commit + "?recursive=true"
	for page := 0; next != ""; page++ {
		if page == maxPages {
			return nil, fmt.Errorf("%s: the hub's list of files has more than %d pages", ref.Repo, maxPages)
		}
		var entries []struct {
			Type string `json:"type"`
			Path string `json:"path"`
			Size int64  `json:"size"`
			OID  string `json:"oid"`
			LFS  *struct {
				OID  string `json:"oid"`
				Size int64  `json:"size"`
			} `json:"lfs"`
		}
		link, err := c.json(ctx, next, &entries)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ref.Repo, err)
		}
		for _, e := range entries {
			if e.Type != "file" || !strings.HasSuffix(strings.ToLower(e.Path), ".gguf") {
				continue
			}
			f := File{Path: e.Path, Size: e.Size, ETag: e.OID, git: true}
			if e.LFS != nil {
				f.Size, f.ETag, f.SHA256, f.git = e.LFS.Size, e.LFS.OID, e.LFS.OID, false
			}
			if err := f.check(); err != nil {
				return nil, fmt.Errorf("%s: %w", ref.Repo, err)
			}
			f.blob = f.ETag
			f.URL = c.fileURL(l, f.Path)
			if l.Files = append(l.Files, f); len(l.Files) > maxFiles {
				return nil, fmt.Errorf("%s: more than %d files", ref.Repo, maxFiles)
			}
		}
		if next, err = nextPage(next, link); err != nil {
			return nil, fmt.Errorf("%s: %w", ref.Repo, err)
		}
	}
	return l, nil
}

// check refuses what a server must not say of a file.
func (f *File) check() error {
	if !localPath(f.Path) {
		return fmt.Errorf("the hub lists a file %q, which is no path within a repository", cut(f.Path))
	}
	if f.Size < 0 {
		return fmt.Errorf("the hub says that %s has %d bytes", f.Path, f.Size)
	}
	if want := map[bool]int{true: 40, false: 64}[f.git]; len(f.ETag) != want || !hexName.MatchString(f.ETag) {
		return fmt.Errorf("the hub says that %s has the hash %q, want %d hexadecimal digits", f.Path, cut(f.ETag), want)
	}
	return nil
}

func (c *Client) fileURL(l *Listing, p string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return c.o.Endpoint + "/" + l.Repo + "/resolve/" + l.Commit + "/" + strings.Join(parts, "/")
}

// json reads one answer of the hub's interface into v and answers its Link header.
func (c *Client) json(ctx context.Context, address string, v any) (link string, err error) {
	var f failures
	for {
		link, err = c.jsonOnce(ctx, address, v)
		if err == nil {
			return link, nil
		}
		if err = f.next(ctx, c, err); err != nil {
			return "", err
		}
	}
}

func (c *Client) jsonOnce(ctx context.Context, address string, v any) (string, error) {
	a, err := c.get(ctx, address, nil)
	if err != nil {
		return "", err
	}
	if a.status != 200 {
		return "", a.refuse()
	}
	defer a.body.Close()
	b, err := io.ReadAll(io.LimitReader(a.body, maxList+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", display(address), short(err))
	}
	if len(b) > maxList {
		return "", &lastingError{fmt.Errorf("%s: the answer has more than %d bytes", display(address), maxList)}
	}
	if err := json.Unmarshal(b, v); err != nil {
		return "", &lastingError{fmt.Errorf("%s: the answer is not what a model hub says: %w", display(address), err)}
	}
	return a.header.Get("Link"), nil
}

var linkNext = regexp.MustCompile(`<([^>]*)>\s*;\s*rel="?next"?`)

// nextPage is the address of the next page of a list, "" after the last.
func nextPage(at, link string) (string, error) {
	m := linkNext.FindStringSubmatch(link)
	if m == nil {
		return "", nil
	}
	here, err := url.Parse(at)
	if err != nil {
		return "", err
	}
	to, err := here.Parse(m[1])
	if err != nil || !sameOrigin(here, to) {
		return "", errors.New("the next page of the hub's list of files is on another host")
	}
	return to.String(), nil
}

// quantName finds what a file's name says of its types.
var quantName = regexp.MustCompile(`(?i)(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))$`)

func quantOf(name string) string {
	for n := name; ; {
		if m := quantName.FindStringSubmatch(n); m != nil {
			return strings.ToUpper(m[1])
		}
		// A folder may say it where the file does not, and a name may go on after it: Model-Q4_K_M-pruned.
		i := strings.LastIndexAny(n, "-./")
		if i < 0 {
			return ""
		}
		n = n[:i]
	}
}

// Variants sorts a list of files into models, the smallest first. Projectors of images and importance matrices are none.
func Variants(files []File) []Variant {
	byName := map[string]*Variant{}
	var names []string
	for _, f := range files {
		base := strings.ToLower(path.Base(f.Path))
		if strings.Contains(base, "mmproj") || strings.Contains(base, "imatrix") {
			continue
		}
		name, parts := f.Path[:len(f.Path)-len(".gguf")], 1
		if prefix, _, count, ok := gguf.SplitName(f.Path); ok {
			name, parts = prefix, int(count)
		}
		v := byName[name]
		if v == nil {
			v = &Variant{Name: name, Quant: quantOf(name), Parts: parts}
			byName[name] = v
			names = append(names, name)
		}
		v.Files = append(v.Files, f)
	}
	out := make([]Variant, 0, len(names))
	for _, n := range names {
		v := byName[n]
		slices.SortFunc(v.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b Variant) int {
		return cmp.Or(cmp.Compare(a.Size(), b.Size()), strings.Compare(a.Name, b.Name))
	})
	return out
}

// Whole says whether every part is there, else the error says which is not.
func (v *Variant) Whole() error {
	if v.Parts == 1 && len(v.Files) == 1 {
		return nil
	}
	for i := range max(v.Parts, len(v.Files)) {
		want := gguf.PartPath(v.Name, i, v.Parts)
		if i >= len(v.Files) || v.Files[i].Path != want {
			return fmt.Errorf("%s: part %d of %d is not there (%d are): %w", v.Name, i+1, v.Parts, len(v.Files), ErrNotFound)
		}
	}
	return nil
}

// choose finds the one variant that ref means.
func (l *Listing) choose(ref Ref) (*Variant, error) {
	all := Variants(l.Files)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: the repository has no GGUF file: %w", l.Repo, ErrNotFound)
	}
	one := func(match func(*Variant) bool) (found []*Variant) {
		for i := range all {
			if match(&all[i]) {
				found = append(found, &all[i])
			}
		}
		return found
	}
	var found []*Variant
	switch {
	case ref.File != "":
		for _, f := range l.Files {
			if f.Path == ref.File {
				if found = one(func(v *Variant) bool {
					return slices.ContainsFunc(v.Files, func(g File) bool { return g.Path == f.Path })
				}); found == nil {
					found = []*Variant{{Name: f.Path[:len(f.Path)-len(".gguf")], Files: []File{f}, Parts: 1}} // a projector: whoever names it means it
				}
			}
		}
		if found == nil {
			return nil, fmt.Errorf("%s: no file %q: %w", l.Repo, ref.File, ErrNotFound)
		}
	case ref.Quant != "":
		q := strings.ToUpper(ref.Quant)
		found = one(func(v *Variant) bool { return v.Quant == q })
		if found == nil {
			found = one(func(v *Variant) bool { return v.Quant == "UD-"+q })
		}
		if found == nil {
			return nil, fmt.Errorf("%s: no %s; it has %s: %w", l.Repo, ref.Quant, quants(all), ErrNotFound)
		}
	case len(all) == 1:
		found = []*Variant{&all[0]}
	default:
		for _, q := range []string{"Q4_K_M", "UD-Q4_K_XL"} {
			if found = one(func(v *Variant) bool { return v.Quant == q }); found != nil {
				break
			}
		}
		if found == nil {
			return nil, fmt.Errorf("%w %q: say which quantisation, as %s:QUANT: %s", ErrName, l.Repo, l.Repo, quants(all))
		}
	}
	if len(found) > 1 {
		names := make([]string, len(found))
		for i, v := range found {
			names[i] = v.Files[0].Path
		}
		return nil, fmt.Errorf("%w %q fits %d models: name one as %s/FILE: %s", ErrName, ref, len(found), l.Repo, strings.Join(names, ", "))
	}
	return found[0], found[0].Whole()
}

// quants names the choices.
func quants(all []Variant) string {
	var names []string
	for _, v := range all {
		if n := cmp.Or(v.Quant, v.Name); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return strings.Join(names, ", ")
}

func (l *Listing) model(v *Variant) *Model {
	return &Model{Name: l.Repo, Commit: l.Commit, Quant: v.Quant, Files: v.Files, folder: l.folder, revision: l.Revision}
}

// Model is a variant of the list as something to fetch.
func (l *Listing) Model(v *Variant) (*Model, error) {
	if err := v.Whole(); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Repo, err)
	}
	return l.model(v), nil
}

func cut(s string) string { return s[:min(len(s), 80)] }
