package doctor

import (
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"terrace/internal/host"
)

// mounted is a file system in proc/self/mountinfo.
type mounted struct {
	dir, kind, source, device string // device is major:minor
}

// mountOf finds the file system that holds a file, by its absolute path.
func (x *examiner) mountOf(file string) (m mounted, ok bool) {
	for line := range strings.Lines(x.text("proc/self/mountinfo")) {
		// id parent major:minor root dir options [fields ...] - type source options
		head, tail, cut := strings.Cut(line, " - ")
		h, t := strings.Fields(head), strings.Fields(tail)
		if !cut || len(h) < 5 || len(t) < 2 {
			continue
		}
		dir := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(h[4])
		inside := file == dir || dir == "/" || strings.HasPrefix(file, dir+"/")
		if inside && (!ok || len(dir) >= len(m.dir)) {
			m, ok = mounted{dir, t[0], t[1], h[2]}, true
		}
	}
	return m, ok
}

// remote and slow file systems: what they are, and what reading experts from them means.
var fileSystems = map[string]struct{ state, what, do string }{
	"nfs":         {Warn, "a network's", "copy the model to a disk of this machine"},
	"nfs4":        {Warn, "a network's", "copy the model to a disk of this machine"},
	"cifs":        {Warn, "a network's", "copy the model to a disk of this machine"},
	"smb3":        {Warn, "a network's", "copy the model to a disk of this machine"},
	"9p":          {Warn, "shared with a host", "copy the model to a disk of this system: each read goes through the host"},
	"virtiofs":    {Warn, "shared with a host", "copy the model to a disk of this system: each read goes through the host"},
	"drvfs":       {Warn, "a Windows drive in WSL", "copy the model into WSL's own file system"},
	"fuse":        {Warn, "made by a program", "copy the model to an ordinary file system"},
	"fuseblk":     {Warn, "made by a program (NTFS or exFAT)", "copy the model to an ordinary file system"},
	"tmpfs":       {Warn, "in memory itself", "put the model on a disk: it takes its size of RAM there"},
	"overlay":     {Note, "a container's layers", "mount a folder of the host for models"},
	"squashfs":    {Note, "compressed", "put the model on an ordinary file system: it cannot be read past the page cache"},
	"btrfs":       {Note, "checksummed; compressed files cannot be read past the page cache", "keep the model's folder uncompressed (chattr +m)"},
	"zfs":         {Note, "with a cache of its own", "limit zfs_arc_max: its cache takes memory that the budget does not count"},
	"ext4":        {OK, "", ""},
	"xfs":         {OK, "", ""},
	"f2fs":        {OK, "", ""},
	"apfs":        {OK, "", ""},
	"bcachefs":    {OK, "", ""},
	"ext3":        {OK, "", ""},
	"ext2":        {OK, "", ""},
	"fuse.rclone": {Warn, "a network's", "copy the model to a disk of this machine"},
}

// disk looks at what holds the model, or the working folder.
func (x *examiner) disk() {
	file := x.o.Model
	if file == "" {
		file = "."
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	m, ok := x.mountOf(filepath.ToSlash(abs))
	if !ok {
		x.add("file system", Unknown, "", "this system does not list its mounts")
	} else if k, known := fileSystems[m.kind]; known {
		what := m.kind + " at " + m.dir
		if k.what != "" {
			what += ": " + k.what
		}
		x.add("file system", k.state, k.do, "%s", what)
	} else {
		x.add("file system", Note, "", "%s at %s, of which nothing is known here", m.kind, m.dir)
	}
	if x.o.Model != "" {
		if f, direct, err := host.OpenDirect(x.o.Model); err == nil {
			f.Close()
			if direct {
				x.add("direct reads", OK, "", "the model can be read past the page cache")
			} else {
				x.add("direct reads", Warn, "put it on ext4 or xfs", "the file system refuses reads past the page cache: experts pass through it and take processor time")
			}
		}
	}
	if ok {
		x.device(m)
	}
}

// device looks at the block device under a mount.
func (x *examiner) device(m mounted) {
	dir := path.Join("sys/dev/block", m.device)
	queue := dir + "/queue"
	if x.text(queue+"/rotational") == "" { // a partition: the disk is above it
		queue = dir + "/../queue"
		if x.o.Root == nil { // an fs.FS takes no ..; the link leads there
			if real, err := filepath.EvalSymlinks("/" + dir); err == nil {
				queue = path.Join(strings.TrimPrefix(filepath.ToSlash(filepath.Dir(real)), "/"), "queue")
			}
		}
	}
	switch x.text(queue + "/rotational") {
	case "1":
		if strings.Contains(m.source, "/vd") || strings.Contains(m.source, "/xvd") {
			x.add("disk", Note, "", "%s: a virtual disk, said to rotate", m.source)
		} else {
			x.add("disk", Warn, "move the model to an SSD: a disk that seeks gives some MB/s for reads of experts", "%s is a rotating disk", m.source)
		}
	case "0":
		x.add("disk", OK, "", "%s does not rotate", m.source)
	default:
		x.add("disk", Unknown, "", "nothing is told about %s", m.source)
	}
	if kb, err := strconv.Atoi(x.text(queue + "/read_ahead_kb")); err == nil && kb > 1024 {
		x.add("read-ahead", Note, "nothing for Terrace, which reads past it; other engines that map the file suffer", "%d KiB", kb)
	}
}
