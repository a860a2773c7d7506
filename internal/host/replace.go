package host

import (
	"errors"
	"os"
	"path/filepath"

	"terrace/internal/fault"
)

// ReplaceFile makes data the content of the file at path, for everyone to read: at any moment, a crash included, the path
// has the old content or the new, never a part. Writers of one path must hold one lock: what an interrupted one left
// beside it is removed.
func ReplaceFile(path string, data []byte) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	old, err := filepath.Glob(filepath.Join(dir, globQuote(tempPrefix(name))+"*"))
	if err != nil {
		return err
	}
	for _, p := range old {
		if err := os.Remove(p); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(dir, tempPrefix(name)+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if fault.On {
		err = fault.Write(len(data))
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	if d, derr := os.Open(dir); derr == nil { // so that the name, too, survives a crash; not every system can
		_ = d.Sync()
		d.Close()
	}
	return nil
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
