package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"terrace/internal/fault"
)

// ReplaceFile makes data the content of the file at path, for everyone to read: at any moment, a crash included, the path
// has the old content or the new, never a part. Writers of one path must hold one lock: what an interrupted one left
// beside it is removed.
func ReplaceFile(path string, data []byte) error { return replaceFile(path, data, 0o644) }

// ReplacePrivate is ReplaceFile for what nobody but its owner may read, at no time.
func ReplacePrivate(path string, data []byte) error { return replaceFile(path, data, 0o600) }

func replaceFile(path string, data []byte, mode fs.FileMode) error {
	r, err := replace(path, mode, 0)
	if err != nil {
		return err
	}
	if _, err := r.Write(data); err != nil {
		return errors.Join(err, r.Abort())
	}
	return r.Commit()
}

// Replacement is new content of a file on its way: whoever opens the path finds the old until Commit.
type Replacement struct {
	f    *os.File
	path string
	mode fs.FileMode
}

// replaceAge is the age from which on what lies beside a file is of a writer that was killed.
const replaceAge = time.Hour

// Replace begins new content of the file at path, for everyone to read. Several may do so at a time: the last to commit wins.
func Replace(path string) (*Replacement, error) { return replace(path, 0o644, replaceAge) }

// replace removes what writers left beside the path that have not written for age.
func replace(path string, mode fs.FileMode, age time.Duration) (*Replacement, error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	old, err := filepath.Glob(filepath.Join(dir, globQuote(tempPrefix(name))+"*"))
	if err != nil {
		return nil, err
	}
	for _, p := range old {
		if age > 0 {
			if st, err := os.Stat(p); err != nil || time.Since(st.ModTime()) < age {
				continue
			}
		}
		if err := os.Remove(p); err != nil {
			return nil, err
		}
	}
	f, err := os.CreateTemp(dir, tempPrefix(name)+"*") // for its owner alone
	if err != nil {
		return nil, err
	}
	return &Replacement{f, path, mode}, nil
}

// Write implements io.Writer.
func (r *Replacement) Write(b []byte) (int, error) {
	if fault.On {
		if err := fault.Write(len(b)); err != nil {
			return 0, err
		}
	}
	return r.f.Write(b)
}

// Commit puts the content, safe on the disk, in its place. After an error the old content is there.
func (r *Replacement) Commit() error {
	err := r.f.Chmod(r.mode)
	if err == nil {
		err = r.f.Sync()
	}
	if cerr := r.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(r.f.Name(), r.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(r.f.Name()))
	}
	if d, derr := os.Open(filepath.Dir(r.path)); derr == nil { // so that the name, too, survives a crash; not every system can
		_ = d.Sync()
		d.Close()
	}
	return nil
}

// Abort leaves the old content.
func (r *Replacement) Abort() error {
	r.f.Close()
	return os.Remove(r.f.Name())
}

// AppendLines opens the file at path, which is made if it is missing, to add lines at its end. One that a crash cut off there
// is ended first, so that it spoils no other.
func AppendLines(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if errors.Is(err, fs.ErrPermission) { // a pipe, or a file that may be written alone
		return os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o644)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return f, nil // what is no file has no lines to end
	}
	var last [1]byte
	if _, err = f.ReadAt(last[:], st.Size()-1); err == nil && last[0] != '\n' {
		_, err = io.WriteString(f, "\n")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// tempPrefix begins the names of the files in which new content of name is made.
func tempPrefix(name string) string { return "." + name + ".terrace-tmp-" }

// globQuote makes a name match only itself.
func globQuote(s string) string {
	var b []byte
	for _, c := range []byte(s) {
		if c == '*' || c == '?' || c == '[' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, c)
	}
	return string(b)
}
