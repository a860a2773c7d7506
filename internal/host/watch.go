package host

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// MemorySample is one look at the memory of the machine, of the control groups this process is in, and of the process
// itself. Sizes are bytes. What the system does not tell is zero.
type MemorySample struct {
	Total     int64 // the machine's RAM
	Available int64 // can be had without swapping
	SwapTotal int64
	SwapFree  int64

	Held    int64 // by this process in RAM and not backed by files: nobody can take it back
	Swapped int64 // of this process

	Limited bool  // a group has a limit
	Limit   int64 // the smallest
	Room    int64 // may yet be taken before a group with a limit must reclaim more than file cache; below 0 it has to already
	Failed  int64 // times that groups ran into their limits, in all
	Used    int64 // charged to the deepest group, file cache included; 0 without groups
	Peak    int64 // the most that ever was

	Machine Pressure
	Group   Pressure // of the deepest group; version 2 only
}

// Pressure is how much time tasks lost for want of memory (PSI). Shares are per mille of the last ten seconds, times are
// sums since the machine started.
type Pressure struct {
	Known    bool
	Some     int // at least one task waited
	Full     int // all of them did
	SomeTime time.Duration
	FullTime time.Duration
}

// Watch reads memory samples again and again without opening files or allocating memory. It is for one goroutine.
type Watch struct {
	root   fs.FS
	host   bool // root is this machine's: system calls may answer where files do not
	buf    [8192]byte
	cgroup probe  // proc/self/cgroup
	member []byte // what it said when groups were looked up
	meminfo,
	status,
	machine,
	group probe
	levels []level
	err    error // of the look-up
}

// level is the files of one group.
type level struct {
	groupDir
	limit, high, usage, stat, fails, peak probe
}

// probe is one small file that is read from its start each time. Without a file it reads nothing.
type probe struct {
	name string
	f    fs.File
	at   io.ReaderAt // f, or nil where it has no such door
}

// NewWatch prepares to read samples under root: os.DirFS("/"), or a test's own tree with proc and sys/fs/cgroup. nil is
// this machine, whatever its operating system.
func NewWatch(root fs.FS) *Watch {
	w := &Watch{root: root}
	if root == nil {
		w.root, w.host = os.DirFS("/"), true
	}
	w.cgroup.open(w.root, "proc/self/cgroup")
	w.meminfo.open(w.root, "proc/meminfo")
	w.status.open(w.root, "proc/self/status")
	w.machine.open(w.root, "proc/pressure/memory")
	w.enter(w.cgroup.read(w.root, w.buf[:]))
	return w
}

// enter looks up the groups; member is what proc/self/cgroup says.
func (w *Watch) enter(member []byte) {
	w.leave()
	w.member = append(w.member[:0], member...)
	var dirs []groupDir
	dirs, w.err = groups(w.root)
	for _, d := range dirs {
		l := level{groupDir: d}
		open := func(p *probe, v1, v2 string) {
			name := v1
			if d.v2 {
				name = v2
			}
			if name != "" {
				p.open(w.root, d.dir+"/"+name)
			}
		}
		open(&l.limit, "memory.limit_in_bytes", "memory.max")
		open(&l.high, "", "memory.high")
		open(&l.usage, "memory.usage_in_bytes", "memory.current")
		open(&l.stat, "memory.stat", "memory.stat")
		open(&l.fails, "memory.failcnt", "memory.events")
		open(&l.peak, "memory.max_usage_in_bytes", "memory.peak")
		if d.v2 && d.own && w.group.f == nil {
			// The hierarchy's true root, which alone has no type, repeats the machine's pressure.
			if _, err := fs.Stat(w.root, d.dir+"/cgroup.type"); err == nil {
				w.group.open(w.root, d.dir+"/memory.pressure")
			}
		}
		if l.limit.f != nil || l.high.f != nil || l.usage.f != nil {
			w.levels = append(w.levels, l)
		} else {
			l.close() // a hierarchy without the memory controller, or its root
		}
	}
}

func (w *Watch) leave() {
	for i := range w.levels {
		w.levels[i].close()
	}
	w.levels = w.levels[:0]
	w.group.close()
}

func (l *level) close() {
	for _, p := range []*probe{&l.limit, &l.high, &l.usage, &l.stat, &l.fails, &l.peak} {
		p.close()
	}
}

// Close closes the files.
func (w *Watch) Close() {
	w.leave()
	for _, p := range []*probe{&w.cgroup, &w.meminfo, &w.status, &w.machine} {
		p.close()
	}
}

// Read fills s. A limit that cannot be understood is an error, since guessing would break the promise made about memory;
// everything else that cannot be read is left out of the sample. When the process was moved to another group, that one
// is read from then on.
func (w *Watch) Read(s *MemorySample) error {
	*s = MemorySample{}
	if m := w.cgroup.read(w.root, w.buf[:]); !bytes.Equal(m, w.member) {
		w.enter(m)
	}
	if w.err != nil {
		return w.err
	}
	w.readMachine(s)
	if t := w.status.read(w.root, w.buf[:]); t != nil {
		anon, ok := kb(t, "RssAnon:")
		if ok {
			shm, _ := kb(t, "RssShmem:")
			s.Held = anon + shm
		} else {
			s.Held, _ = kb(t, "VmRSS:") // old kernels do not part it
		}
		s.Swapped, _ = kb(t, "VmSwap:")
	}
	s.Machine.parse(w.machine.read(w.root, w.buf[:]))
	s.Group.parse(w.group.read(w.root, w.buf[:]))
	for i := range w.levels {
		if err := w.readLevel(s, &w.levels[i]); err != nil {
			return err
		}
	}
	return nil
}

func (w *Watch) readMachine(s *MemorySample) {
	t := w.meminfo.read(w.root, w.buf[:])
	if t == nil {
		if w.host {
			if m, err := RAM(); err == nil {
				s.Total, s.Available = m.Total, m.Available
			}
		}
		return
	}
	s.Total, _ = kb(t, "MemTotal:")
	var ok bool
	if s.Available, ok = kb(t, "MemAvailable:"); !ok {
		// Kernels before 3.14 do not say: what is free, and half of the file cache, since some of it is in use.
		free, _ := kb(t, "MemFree:")
		buffers, _ := kb(t, "Buffers:")
		cached, _ := kb(t, "Cached:")
		shm, _ := kb(t, "Shmem:")
		s.Available = free + max(0, buffers+cached-shm)/2
	}
	s.SwapTotal, _ = kb(t, "SwapTotal:")
	s.SwapFree, _ = kb(t, "SwapFree:")
}

// readLevel adds what one group says. What the kernel can drop at once, clean file cache, is not counted as used: direct
// reads leave it alone, but other reads of the group fill it up to the limit.
func (w *Watch) readLevel(s *MemorySample, l *level) error {
	var limit int64
	limited := false
	for _, p := range []*probe{&l.limit, &l.high} {
		t := p.read(w.root, w.buf[:])
		if t == nil {
			continue
		}
		n, ok, err := parseLimit(p.name, t)
		if err != nil {
			return err
		}
		if ok && (!limited || n < limit) {
			limit, limited = n, true
		}
	}
	var used, file, above int64
	if t := l.usage.read(w.root, w.buf[:]); t != nil {
		used, _ = number(t)
	}
	if l.own {
		s.Used = max(s.Used, used)
		if t := l.peak.read(w.root, w.buf[:]); t != nil {
			n, _ := number(t)
			s.Peak = max(s.Peak, n)
		}
	}
	if !limited && !l.own {
		return nil
	}
	if t := l.stat.read(w.root, w.buf[:]); t != nil {
		if l.v2 {
			slab, _ := field(t, "slab_reclaimable")
			file = fileCache(t, "active_file", "inactive_file", "file_dirty", "file_writeback") + slab
		} else {
			file = fileCache(t, "total_active_file", "total_inactive_file", "total_dirty", "total_writeback")
			above, _ = field(t, "hierarchical_memory_limit") // of all groups above, seen or not
		}
	}
	if above > 0 && above < unlimited && (!limited || above < limit) {
		limit, limited = above, true
	}
	if t := l.fails.read(w.root, w.buf[:]); t != nil {
		n, ok := number(t)
		if l.v2 {
			n, ok = field(t, "max")
		}
		if ok {
			s.Failed += n
		}
	}
	if !limited {
		return nil
	}
	room := limit - max(0, used-file)
	if !s.Limited {
		s.Limited, s.Limit, s.Room = true, limit, room
	} else {
		s.Limit, s.Room = min(s.Limit, limit), min(s.Room, room)
	}
	return nil
}

// fileCache is the clean part of a group's file cache.
func fileCache(stat []byte, active, inactive, dirty, writeback string) int64 {
	a, _ := field(stat, active)
	i, _ := field(stat, inactive)
	d, _ := field(stat, dirty)
	b, _ := field(stat, writeback)
	return max(0, a+i-d-b)
}

func (p *Pressure) parse(t []byte) {
	for len(t) > 0 {
		line := t
		if i := bytes.IndexByte(t, '\n'); i >= 0 {
			line, t = t[:i], t[i+1:]
		} else {
			t = nil
		}
		share, ok1 := valueOf(line, "avg10=")
		total, ok2 := valueOf(line, "total=")
		if !ok1 || !ok2 {
			continue
		}
		// avg10=1.23 is a per cent share with two digits; number stops at the point.
		n, _ := number(share)
		tenth := int64(0)
		if i := bytes.IndexByte(share, '.'); i >= 0 && i+1 < len(share) && share[i+1] >= '0' && share[i+1] <= '9' {
			tenth = int64(share[i+1] - '0')
		}
		us, _ := number(total)
		switch {
		case bytes.HasPrefix(line, some):
			p.Known, p.Some, p.SomeTime = true, int(10*n+tenth), time.Duration(us)*time.Microsecond
		case bytes.HasPrefix(line, full):
			p.Known, p.Full, p.FullTime = true, int(10*n+tenth), time.Duration(us)*time.Microsecond
		}
	}
}

var some, full = []byte("some "), []byte("full ")

// valueOf is the text behind key in line.
func valueOf(line []byte, key string) ([]byte, bool) {
	for i := 0; i+len(key) <= len(line); i++ {
		if string(line[i:i+len(key)]) == key {
			return line[i+len(key):], true
		}
	}
	return nil, false
}

// open opens a file that may be missing.
func (p *probe) open(root fs.FS, name string) {
	f, err := root.Open(name)
	if err != nil {
		return
	}
	p.name, p.f = name, f
	p.at, _ = f.(io.ReaderAt)
}

func (p *probe) close() {
	if p.f != nil {
		p.f.Close()
	}
	*p = probe{}
}

// read is the file's text as far as buf reaches; nil without a file, and when it cannot be read: a group that was
// removed, or PSI that was turned off.
func (p *probe) read(root fs.FS, buf []byte) []byte {
	if p.f == nil {
		return nil
	}
	if p.at == nil { // a file system without random access: from the start again
		t, err := fs.ReadFile(root, p.name)
		if err != nil {
			return nil
		}
		return buf[:copy(buf, t)]
	}
	n, err := p.at.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return buf[:n]
}

// number is the decimal number that text begins with, blanks skipped.
func number(text []byte) (n int64, ok bool) {
	i := 0
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	for ; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		if n > (1<<63-1-9)/10 {
			return 1<<63 - 1, true // version 1 writes "no limit" as a huge number
		}
		n, ok = 10*n+int64(text[i]-'0'), true
	}
	return n, ok
}

// field is the number behind key and blanks in the line that begins with key.
func field(text []byte, key string) (int64, bool) {
	for len(text) > 0 {
		if len(text) > len(key) && string(text[:len(key)]) == key && (text[len(key)] == ' ' || text[len(key)] == '\t') {
			return number(text[len(key):])
		}
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			break
		}
		text = text[i+1:]
	}
	return 0, false
}

// kb is field for lines in KiB; the answer is in bytes.
func kb(text []byte, key string) (int64, bool) {
	n, ok := field(text, key)
	if !ok || n > 1<<52 {
		return 0, false
	}
	return n << 10, true
}

// SwapIns is how many bytes the machine has read back from swap since it started; ok is false where it does not tell. root
// is as in NewWatch.
func SwapIns(root fs.FS) (n int64, ok bool) {
	if root == nil {
		root = os.DirFS("/")
	}
	text, err := fs.ReadFile(root, "proc/vmstat")
	if err != nil {
		return 0, false
	}
	pages, ok := field(text, "pswpin")
	return pages * int64(PageSize()), ok
}
