package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// unlimited is the least value that a version 1 group without a limit may show: the kernel rounds the largest signed
// number down to whole pages.
const unlimited = 1 << 60

// groupDir is the folder of one control group that this process is in, or of one above it.
type groupDir struct {
	dir string // in the file system, without the leading slash
	v2  bool
	own bool // the deepest one that can be seen; the others are its parents
}

// mount is where a hierarchy of groups can be seen: the group root of the hierarchy stands at dir.
type mount struct{ dir, root string }

// groups lists the folders of the groups that account for this process's memory, each hierarchy from the deepest up. In a
// container the path of a group is often one seen from outside; what of it lies under the mount is listed then, down to
// the mount's own folder, which is the container's group. Both versions can be in use at once; the one without the
// memory controller has none of the files then.
func groups(root fs.FS) ([]groupDir, error) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m1, m2 := groupMounts(root)
	var out []groupDir
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path, with no controllers in version 2
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		v2 := part[0] == "0" && part[1] == ""
		mounts := m2
		if !v2 {
			if !hasWord(part[1], "memory") {
				continue
			}
			mounts = m1
		}
		for _, m := range mounts {
			own := true
			for p := m.inside(part[2]); ; p = path.Dir(p) {
				dir := path.Join(m.dir, p)
				if fi, err := fs.Stat(root, dir); err == nil && fi.IsDir() {
					out = append(out, groupDir{dir, v2, own})
					own = false
				}
				if p == "/" {
					break
				}
			}
		}
	}
	return out, nil
}

// inside is the path of a group below the mount's folder; "/" when the group lies elsewhere in the hierarchy.
func (m mount) inside(group string) string {
	group = path.Clean("/" + group)
	if m.root == "/" {
		return group
	}
	if rest, ok := strings.CutPrefix(group, m.root); ok && (rest == "" || rest[0] == '/') {
		return path.Clean("/" + rest)
	}
	return "/"
}

// groupMounts finds where the memory controller of version 1 and the hierarchy of version 2 are mounted; where the system
// does not list its mounts, the usual places are tried.
func groupMounts(root fs.FS) (v1, v2 []mount) {
	text, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return []mount{{"sys/fs/cgroup/memory", "/"}}, []mount{{"sys/fs/cgroup", "/"}, {"sys/fs/cgroup/unified", "/"}}
	}
	for line := range strings.Lines(string(text)) {
		// id parent device root dir options [fields ...] - type source options
		head, tail, ok := strings.Cut(line, " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(h) < 5 || len(t) < 3 {
			continue
		}
		m := mount{dir: strings.TrimPrefix(unescape(h[4]), "/"), root: path.Clean(unescape(h[3]))}
		switch {
		case t[0] == "cgroup2":
			v2 = append(v2, m)
		case t[0] == "cgroup" && hasWord(t[2], "memory"):
			v1 = append(v1, m)
		}
	}
	return v1, v2
}

// unescape undoes the octal form in which the kernel writes spaces and such in paths.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// MemoryLimit is the smallest memory limit, in bytes, of the control groups this process is in, from its own group up to
// the root; ok is false when none of them has a limit or the system has no groups. root is the file system's root:
// os.DirFS("/") or a test's own tree holding proc/self/cgroup and sys/fs/cgroup. A limit that cannot be understood is an
// error, since guessing would break the promise made about memory.
func MemoryLimit(root fs.FS) (limit int64, ok bool, err error) {
	w := NewWatch(root)
	defer w.Close()
	var s MemorySample
	if err := w.Read(&s); err != nil {
		return 0, false, err
	}
	return s.Limit, s.Limited, nil
}

// HostMemoryLimit is MemoryLimit of this machine.
func HostMemoryLimit() (limit int64, ok bool, err error) { return MemoryLimit(os.DirFS("/")) }

// parseLimit reads a group's limit; ok is false when there is none.
func parseLimit(name string, text []byte) (limit int64, ok bool, err error) {
	text = bytes.TrimSpace(text)
	if string(text) == "max" {
		return 0, false, nil
	}
	n, isNum := number(text)
	if !isNum || len(bytes.Trim(text, "0123456789")) > 0 {
		return 0, false, fmt.Errorf("/%s: %q is no number of bytes", name, string(text))
	}
	return n, n < unlimited, nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
