package host

import (
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

// MemoryLimit is the smallest memory limit, in bytes, of the control groups this process is in, from its own group up to
// the root; ok is false when none of them has a limit or the system has no groups. root is the file system's root:
// os.DirFS("/") or a test's own tree holding proc/self/cgroup and sys/fs/cgroup. A limit that cannot be understood is an
// error, since guessing would break the promise made about memory.
func MemoryLimit(root fs.FS) (limit int64, ok bool, err error) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path, with no controllers in version 2
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		var mounts []string
		var file string
		switch {
		case part[0] == "0" && part[1] == "":
			mounts, file = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}, "memory.max"
		case hasWord(part[1], "memory"):
			mounts, file = []string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		default:
			continue
		}
		for _, m := range mounts {
			n, found, err := climb(root, m, part[2], file)
			if err != nil {
				return 0, false, err
			}
			if found && (!ok || n < limit) {
				limit, ok = n, true
			}
		}
	}
	return limit, ok, nil
}

// HostMemoryLimit is MemoryLimit of this machine.
func HostMemoryLimit() (limit int64, ok bool, err error) { return MemoryLimit(os.DirFS("/")) }

// climb reads file in group and in each of its parents up to mount. In a container the group's path is often seen from
// outside and missing here; the mount's own root is the container's group then, and it is read in any case.
func climb(root fs.FS, mount, group, file string) (limit int64, ok bool, err error) {
	for p := path.Clean("/" + group); ; p = path.Dir(p) {
		name := path.Join(mount, p, file)
		text, err := fs.ReadFile(root, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return 0, false, err
		default:
			s := strings.TrimSpace(string(text))
			if s == "max" {
				break
			}
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || n < 0 {
				return 0, false, fmt.Errorf("/%s: %q is no number of bytes", name, s)
			}
			if n < unlimited && (!ok || n < limit) {
				limit, ok = n, true
			}
		}
		if p == "/" {
			return limit, ok, nil
		}
	}
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
