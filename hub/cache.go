package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"terrace/internal/host"
)

// The cache is laid out as the hub's own programs do it, who may read and add to it:
//
//	models--ORG--REPO/refs/main                 the commit
//	models--ORG--REPO/blobs/HASH                contents
//	models--ORG--REPO/snapshots/COMMIT/PATH     links to them
//	.locks/models--ORG--REPO/HASH.lock          held while a content is fetched

func repoFolder(repo string) string { return "models--" + strings.ReplaceAll(repo, "/", "--") }

func (c *Client) path(m *Model, parts ...string) string {
	return filepath.Join(append([]string{c.o.Dir, m.folder}, parts...)...)
}

func (c *Client) blobPath(m *Model, f File) string { return c.path(m, "blobs", f.blob) }

func (c *Client) snapshotPath(m *Model, f File) string {
	return c.path(m, "snapshots", m.Commit, filepath.FromSlash(f.Path))
}

// have says where the cache has f whole. Contents come there under their names by renaming once they are verified.
func (c *Client) have(m *Model, f File) (string, bool) {
	if c.o.Dir == "" {
		return "", false
	}
	for _, p := range []string{c.snapshotPath(m, f), c.blobPath(m, f)} {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Size() == f.Size {
			return p, true
		}
	}
	return "", false
}

// Need is what a pull would fetch.
type Need struct {
	Files int   // that are missing
	Bytes int64 // missing of them; what an interrupted pull left counts as there
	Kept  int64 // of an interrupted pull
	Free  int64 // on the disk of the cache; -1 where the system does not tell
	Dir   string
}

// Need compares m with the cache.
func (c *Client) Need(m *Model) (Need, error) {
	n := Need{Free: -1, Dir: c.path(m)}
	for _, f := range m.Files {
		if _, ok := c.have(m, f); ok {
			continue
		}
		n.Files++
		kept := int64(0)
		if c.o.Dir != "" {
			if s, err := readState(c.blobPath(m, f) + stateSuffix); err == nil && s.fits(f) {
				kept = s.Have.size()
			}
		}
		n.Kept += kept
		n.Bytes += f.Size - kept
	}
	if c.o.Dir == "" {
		return n, nil
	}
	dir := c.o.Dir
	for { // the folder need not exist yet
		free, err := c.o.disk.free(dir)
		if err == nil {
			n.Free = free
			break
		}
		if errors.Is(err, errors.ErrUnsupported) {
			break
		}
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return n, err
		}
		dir = up
	}
	return n, nil
}

// link makes the snapshot's name of a content, and answers it.
func (c *Client) link(m *Model, f File) (string, error) {
	to, blob := c.snapshotPath(m, f), c.blobPath(m, f)
	if st, err := os.Stat(to); err == nil && st.Mode().IsRegular() && st.Size() == f.Size {
		return to, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(filepath.Dir(to), blob)
	if err != nil {
		return "", err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(rel, to); err != nil && !errors.Is(err, fs.ErrExist) {
		if err := os.Rename(blob, to); err != nil { // a system where links are for administrators: the content itself goes there
			return "", err
		}
	}
	if st, err := os.Stat(to); err != nil {
		return "", err
	} else if st.Size() != f.Size {
		return "", fmt.Errorf("%s: has %d bytes, want %d: %w", to, st.Size(), f.Size, ErrDamaged)
	}
	return to, nil
}

// remember writes which commit a revision is.
func (c *Client) remember(m *Model) error {
	p := c.path(m, "refs", filepath.FromSlash(m.revision))
	if b, err := os.ReadFile(p); err == nil && string(b) == m.Commit {
		return nil
	}
	if m.revision == m.Commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return host.ReplaceFile(p, []byte(m.Commit))
}

// cached finds a model in the cache alone.
func (c *Client) cached(ref Ref) (*Model, error) {
	l, err := c.listCached(ref)
	if err != nil {
		return nil, err
	}
	if ref.URL != "" {
		u, err := url.Parse(ref.URL)
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrName, display(ref.URL), err)
		}
		ref.File = u.Path[strings.LastIndex(u.Path, "/")+1:]
	}
	v, err := l.choose(ref)
	if err != nil {
		return nil, fmt.Errorf("offline: %w", err)
	}
	return l.model(v), nil
}

// listCached is what the cache has of a repository at the commit that ref means.
func (c *Client) listCached(ref Ref) (*Listing, error) {
	if c.o.Dir == "" {
		return nil, fmt.Errorf("offline: there is no folder for models: %w", ErrNotFound)
	}
	m := &Model{Name: ref.Repo, folder: repoFolder(ref.Repo), revision: cmp.Or(ref.Revision, "main")}
	if ref.URL != "" {
		u, err := url.Parse(ref.URL)
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrName, display(ref.URL), err)
		}
		m.Name, m.folder = display(ref.URL), urlFolder(u)
	}
	b, err := os.ReadFile(c.path(m, "refs", filepath.FromSlash(m.revision)))
	switch m.Commit = strings.TrimSpace(string(b)); {
	case err != nil && hexName.MatchString(m.revision):
		m.Commit = m.revision
	case err != nil:
		return nil, fmt.Errorf("offline: %s was not fetched into %s: %w", m.Name, c.o.Dir, ErrNotFound)
	case !hexName.MatchString(m.Commit):
		return nil, fmt.Errorf("%s: names the commit %q, want a hexadecimal hash", c.path(m, "refs", m.revision), cut(m.Commit))
	}
	l := &Listing{Repo: m.Name, Revision: m.revision, Commit: m.Commit, folder: m.folder}
	root := c.path(m, "snapshots", m.Commit)
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(strings.ToLower(p), ".gguf") {
			return err
		}
		st, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a link whose content was removed
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err == nil {
			f := File{Path: filepath.ToSlash(rel), Size: st.Size()}
			if to, err := os.Readlink(p); err == nil {
				f.blob = filepath.Base(to)
			}
			f.ETag = f.blob
			l.Files = append(l.Files, f)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("offline: %s at %s was not fetched into %s: %w", m.Name, m.Commit, c.o.Dir, ErrNotFound)
	}
	return l, err
}
