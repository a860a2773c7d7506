package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"

	"terrace/gguf"
)

// maxParts bounds the parts of a model at a URL, each of which costs a request.
const maxParts = 999

// findURL asks for the first bytes of the file at a URL, and of the other parts that its name announces.
func (c *Client) findURL(ctx context.Context, ref Ref) (*Model, error) {
	u, err := url.Parse(ref.URL)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrName, display(ref.URL), err)
	}
	m := &Model{Name: display(ref.URL), Quant: quantOf(strings.TrimSuffix(path.Base(u.Path), ".gguf")), folder: urlFolder(u), revision: "main", elsewhere: true, ref: ref}
	paths := []string{u.Path}
	if prefix, _, count, ok := gguf.SplitName(u.Path); ok && count > 1 {
		if count > maxParts {
			return nil, fmt.Errorf("%w %q announces %d parts, over the limit of %d", ErrName, m.Name, count, maxParts)
		}
		paths = paths[:0]
		for i := range int(count) {
			paths = append(paths, gguf.PartPath(prefix, i, int(count)))
		}
	}
	all := sha256.New()
	for _, p := range paths {
		v := *u
		v.Path, v.RawPath = p, ""
		f, err := c.probe(ctx, v.String())
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, *f)
		fmt.Fprintf(all, "%s %d\n", f.blob, f.Size)
	}
	m.Commit = hex.EncodeToString(all.Sum(nil)[:20])
	return m, nil
}

// probe asks for the first byte of a file, which tells its size and what names its content.
func (c *Client) probe(ctx context.Context, address string) (*File, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	f := &File{Path: path.Base(u.Path), URL: address}
	if !localPath(f.Path) {
		return nil, fmt.Errorf("%w %q ends in %q, which is no file's name", ErrName, display(address), f.Path)
	}
	src := &source{address: address, name: display(address), size: -1}
	var fails failures
	for {
		s, err := c.open(ctx, src, 0, 1)
		if err != nil {
			if err = fails.next(ctx, c, err); err != nil {
				return nil, err
			}
			continue
		}
		s.body.Close()
		f.Size, f.ETag = s.total, s.etag
		if s.a.linked != nil { // the hub says what its store's answer does not
			if n, err := strconv.ParseInt(s.a.linked.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
				f.Size = n
			}
			if e := unquote(s.a.linked.Get("X-Linked-Etag")); len(e) == 64 && hexName.MatchString(e) {
				f.ETag, f.SHA256 = e, e
			}
		}
		break
	}
	if f.Size < 0 {
		return nil, fmt.Errorf("%s: the server does not say how large the file is", display(address))
	}
	if f.blob = f.ETag; f.SHA256 == "" { // an ETag is any text; without one the address must do
		sum := sha256.Sum256([]byte(cmp.Or(f.ETag, address) + " " + strconv.FormatInt(f.Size, 10)))
		f.blob = hex.EncodeToString(sum[:])
	}
	return f, nil
}

// urlFolder is the cache's folder for a model at a URL.
func urlFolder(u *url.URL) string {
	p := u.Path
	if prefix, _, _, ok := gguf.SplitName(p); ok {
		p = prefix
	}
	v := *u
	v.Path, v.RawPath = p, ""
	sum := sha256.Sum256([]byte(v.String()))
	name := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, u.Hostname())
	return "urls--" + name + "--" + hex.EncodeToString(sum[:8])
}
