package promptstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"terrace/internal/fault"
	"terrace/internal/host"
)

// The folder of a store has one folder for each space, with a file for each entry: head and payload, named by the entry's ID.
// A file is written under another name, brought to the disk and renamed; so under its own name it is whole, whenever the
// process ends. What is not whole all the same is recognised by its checksums.

const (
	rowsExt, snapExt = ".rows", ".state"
	tempExt          = ".part"
	lockName         = "lock"
	lockWait         = 100 * time.Millisecond
	maxQueue         = 1 << 12
	damagedLines     = 8 // of a log, about entries that cannot be used when a store opens
)

// disk is a store's part on disk. Its fields are guarded by Store.mu.
type disk struct {
	s       *Store
	dir     string // of the space
	unlock  func()
	bytes   int64 // of this space
	others  int64 // of other spaces
	foreign []foreignFile
	queue   []job
	pending int // entries in the queue or being written
	cond    *sync.Cond
	done    chan struct{}
	full    bool // a failing write was told
}

// job is what the writer has to do: an entry to write, or files to mark as used.
type job struct {
	e     *entry
	touch []string
	when  time.Time
}

// foreignFile is an entry of another space, the longest unused first.
type foreignFile struct {
	path string
	size int64
	used int64
}

func (d *disk) path(h *head) string {
	ext := rowsExt
	if h.Kind == Snapshot {
		ext = snapExt
	}
	return filepath.Join(d.dir, h.ID.String()+ext)
}

func fileSize(h *head) int64 { return int64(h.encoded()) + h.Size }

// openDisk locks the space's folder, reads the heads in it and starts the writer.
func (s *Store) openDisk() (*disk, error) {
	d := &disk{s: s, dir: filepath.Join(s.opt.Dir, fmt.Sprintf("%x", s.space[:16])), done: make(chan struct{})}
	d.cond = sync.NewCond(&s.mu)
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := host.LockFile(filepath.Join(d.dir, lockName), lockWait)
	if err != nil {
		return nil, err
	}
	d.unlock = unlock
	s.disk = d
	if err := d.load(); err != nil {
		s.disk, s.entries, s.root, s.ram, s.index = nil, map[ID]*entry{}, entry{}, 0, 0
		unlock()
		return nil, err
	}
	d.survey()
	for d.bytes+d.others > s.opt.Disk && d.drop(nil) {
	}
	go d.write()
	return d, nil
}

// load learns the entries of the space. Files that are none of them are removed.
func (d *disk) load() error {
	s := d.s
	files, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	var found []*entry
	b := make([]byte, maxHead)
	for _, f := range files {
		name := filepath.Join(d.dir, f.Name())
		switch filepath.Ext(f.Name()) {
		case tempExt: // of a process that ended while it wrote
			if err := os.Remove(name); err != nil {
				return err
			}
			continue
		case rowsExt, snapExt:
		default:
			continue
		}
		e, err := d.read(name, b)
		if err != nil {
			d.damaged(name, err)
			continue
		}
		found = append(found, e)
	}
	// Parents begin before their children.
	slices.SortFunc(found, func(a, b *entry) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return int(a.Kind) - int(b.Kind)
	})
	for _, e := range found {
		p := &s.root
		if e.Start > 0 {
			p = s.entries[e.Parent]
		}
		name := d.path(&e.head)
		switch {
		case p == nil || p != &s.root && (p.Kind != Rows || e.Start <= p.Start || e.Start > p.End):
			d.damaged(name, fmt.Errorf("%w: it continues %s at position %d, which is not there", ErrDamaged, e.Parent, e.Start))
		default:
			e.parent = p
			s.insert(e)
			s.ram += e.overhead()
			s.index += e.overhead()
			s.last = max(s.last, e.used)
			d.bytes += fileSize(&e.head)
		}
	}
	d.prune()
	return nil
}

// prune deletes what the index has no room for, as where a store had more RAM before. It goes from leaf to leaf in rounds, since
// thousands may be too many.
func (d *disk) prune() {
	s := d.s
	had := len(s.entries)
	for s.crowded(0, 0) {
		type victim struct {
			e   *entry
			bad float64
		}
		var leaves []victim
		for _, e := range s.entries {
			if e.leaf() {
				leaves = append(leaves, victim{e, s.badness(e, s.last)})
			}
		}
		slices.SortFunc(leaves, func(a, b victim) int { return cmp.Compare(b.bad, a.bad) })
		for _, v := range leaves {
			if !s.crowded(0, 0) {
				break
			}
			s.remove(v.e)
			s.stats.Deleted++
		}
	}
	if n := len(s.entries); n < had {
		s.log.Info("prompts leave the disk that there is no room to remember", "entries", had, "left", n)
	}
}

// read reads the head of the file called name.
func (d *disk) read(name string, b []byte) (*entry, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	h, err := decodeHead(b[:n])
	if err != nil {
		return nil, err
	}
	e := &entry{head: h, onDisk: true, used: st.ModTime().UnixNano()}
	switch {
	case h.Space != d.s.space:
		return nil, fmt.Errorf("%w: it is of space %x", ErrDamaged, h.Space[:16])
	case d.path(&h) != name:
		return nil, fmt.Errorf("%w: it calls itself %s", ErrDamaged, filepath.Base(d.path(&h)))
	case !st.Mode().IsRegular() || st.Size() != fileSize(&h):
		return nil, fmt.Errorf("%w: the file has %d bytes, its head says %d", ErrDamaged, st.Size(), fileSize(&h))
	}
	return e, nil
}

// damaged removes a file that is of no use, and says so.
func (d *disk) damaged(name string, why error) {
	if d.s.stats.Damaged++; d.s.stats.Damaged <= damagedLines {
		d.s.log.Warn("an entry of the prompt store is ignored", "file", name, "reason", why)
	} else if d.s.stats.Damaged == damagedLines+1 {
		d.s.log.Warn("more of them are not told of")
	}
	if errors.Is(why, ErrDamaged) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.s.log.Warn("it cannot be removed", "file", name, "reason", err)
		}
	}
}

// survey lists the entries of other spaces.
func (d *disk) survey() {
	own := filepath.Base(d.dir)
	spaces, _ := os.ReadDir(d.s.opt.Dir)
	for _, sp := range spaces {
		if !sp.IsDir() || sp.Name() == own || !hexName(sp.Name()) {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(d.s.opt.Dir, sp.Name()))
		for _, f := range files {
			if ext := filepath.Ext(f.Name()); ext != rowsExt && ext != snapExt || !hexName(strings.TrimSuffix(f.Name(), ext)) {
				continue
			}
			if st, err := f.Info(); err == nil {
				d.foreign = append(d.foreign, foreignFile{filepath.Join(d.s.opt.Dir, sp.Name(), f.Name()), st.Size(), st.ModTime().UnixNano()})
				d.others += st.Size()
			}
		}
	}
	slices.SortFunc(d.foreign, func(a, b foreignFile) int { return int(min(max(a.used-b.used, -1), 1)) })
}

// hexName reports whether a name is 32 hexadecimal digits, as those of spaces and entries are.
func hexName(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == len(ID{})
}

// drop deletes the file whose loss costs least, but for keep. It reports whether there was one. Callers hold mu, or are alone.
func (d *disk) drop(keep *entry) bool {
	s := d.s
	s.tick()
	e := s.worst(func(e *entry) bool {
		return e.onDisk && !e.queued && e != keep && !e.stored() && (e.buf != nil || e.leaf())
	})
	if len(d.foreign) > 0 && (e == nil || d.foreign[0].used < e.used) {
		f := d.foreign[0]
		d.foreign = d.foreign[1:]
		d.others -= f.size
		// A process that uses that space holds its lock and knows what it has.
		if unlock, err := host.LockFile(filepath.Join(filepath.Dir(f.path), lockName), 0); err == nil {
			if os.Remove(f.path) == nil {
				s.stats.Deleted++
			}
			unlock()
		}
		return true
	}
	if e == nil {
		return false
	}
	s.stats.Deleted++
	if e.buf == nil {
		s.remove(e)
		return true
	}
	d.delete(e)
	return true
}

// stored reports whether something that hangs on e is on disk.
func (e *entry) stored() bool {
	on := func(x *entry) bool { return x.onDisk || x.queued }
	return slices.ContainsFunc(e.children, on) || slices.ContainsFunc(e.snaps, on)
}

// delete removes e's file. Callers hold mu.
func (d *disk) delete(e *entry) {
	e.onDisk = false
	d.bytes -= fileSize(&e.head)
	if err := os.Remove(d.path(&e.head)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.s.log.Warn("an entry of the prompt store cannot be removed", "reason", err)
	}
}

// enqueue has e written in the background. Callers hold mu.
func (d *disk) enqueue(e *entry) {
	if d.pending >= maxQueue {
		d.s.stats.Discarded++
		return
	}
	e.queued = true
	d.pending++
	d.queue = append(d.queue, job{e: e})
	d.cond.Broadcast()
}

// touch marks the entries of a prefix as used. Callers hold mu.
func (d *disk) touch(p *Prefix) {
	if len(d.queue) >= maxQueue {
		return
	}
	j := job{when: time.Unix(0, d.s.last)}
	for _, t := range p.path {
		d.s.write(t.e)
		if t.e.onDisk {
			j.touch = append(j.touch, d.path(&t.e.head))
		}
	}
	if p.snap != nil {
		d.s.write(p.snap)
		if p.snap.onDisk {
			j.touch = append(j.touch, d.path(&p.snap.head))
		}
	}
	d.queue = append(d.queue, j)
	d.cond.Broadcast()
}

// write is the background writer.
func (d *disk) write() {
	defer close(d.done)
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(d.queue) == 0 {
			if s.closed {
				return
			}
			d.cond.Wait()
		}
		j := d.queue[0]
		d.queue = d.queue[1:]
		if j.e == nil {
			s.mu.Unlock()
			for _, name := range j.touch {
				_ = os.Chtimes(name, j.when, j.when) // one that is gone has no time
			}
			s.mu.Lock()
			continue
		}
		d.one(j.e)
		j.e.queued = false
		d.pending--
		d.cond.Broadcast()
	}
}

// one writes an entry. It is entered and left with mu held.
func (d *disk) one(e *entry) {
	s := d.s
	if e.gone || e.buf == nil || e.parent != &s.root && !e.parent.onDisk {
		return
	}
	size := fileSize(&e.head)
	for d.bytes+d.others+size > s.opt.Disk {
		if size > s.opt.Disk || !d.drop(e.parent) {
			s.stats.Discarded++
			return
		}
	}
	if e.parent != &s.root && !e.parent.onDisk {
		return
	}
	e.pins++
	s.pin(e.parent)
	buf := e.buf
	head := e.encode()
	s.mu.Unlock()
	err := d.put(d.path(&e.head), head, buf)
	s.mu.Lock()
	s.unpin(e.parent)
	e.pins--
	if err != nil {
		s.stats.Discarded++
		if !d.full {
			s.log.Warn("a prompt is not kept on disk", "reason", err)
		}
		d.full = true
	} else {
		d.full = false
		s.stats.Written += size
		d.bytes += size
		e.onDisk = true
	}
	if e.gone {
		if e.onDisk {
			d.delete(e)
		}
		if e.pins == 0 {
			s.release(e)
		}
	}
}

// put makes a file of a head and a payload: whole, or not there.
func (d *disk) put(path string, head, payload []byte) (err error) {
	temp := strings.TrimSuffix(path, filepath.Ext(path)) + filepath.Ext(path) + tempExt
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	_, err = f.Write(head)
	if fault.On && err == nil {
		err = fault.Write(len(payload))
	}
	if err == nil {
		_, err = f.Write(payload)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		_ = host.Forget(f) // its pages would count against the memory of the process's group
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	if dir, derr := os.Open(d.dir); derr == nil { // so that the name, too, survives a crash; not every system can
		_ = dir.Sync()
		dir.Close()
	}
	return nil
}

// flush waits until nothing is pending.
func (d *disk) flush() {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	for d.pending > 0 {
		d.cond.Wait()
	}
}

// close ends the writer when it has written everything, or gives up what it has not when ctx ends, and gives the folder back.
func (d *disk) close(ctx context.Context) {
	d.s.mu.Lock()
	d.cond.Broadcast()
	d.s.mu.Unlock()
	select {
	case <-d.done:
	case <-ctx.Done():
		d.s.mu.Lock()
		for _, j := range d.queue {
			if j.e != nil {
				j.e.queued = false
				d.pending--
				d.s.stats.Discarded++
			}
		}
		d.queue = nil
		d.cond.Broadcast()
		d.s.mu.Unlock()
		<-d.done
	}
	d.unlock()
}

// fetch reads the payload of a file into dst and checks it.
func (d *disk) fetch(h *head, dst []byte) error {
	name := d.path(h)
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, h.encoded())
	if _, err := io.ReadFull(f, b); err != nil {
		return fmt.Errorf("%s: %w: %v", name, ErrDamaged, err)
	}
	got, err := decodeHead(b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if got.ID != h.ID || got.Size != h.Size || got.Windowed != h.Windowed {
		return fmt.Errorf("%s: %w: it became another entry", name, ErrDamaged)
	}
	if _, err := io.ReadFull(f, dst); err != nil {
		return fmt.Errorf("%s: %w: %v", name, ErrDamaged, err)
	}
	_ = host.Forget(f)
	if sum := crc32.Checksum(dst, castagnoli); sum != got.Sum {
		return fmt.Errorf("%s: %w: the payload's checksum is %08x, its head says %08x", name, ErrDamaged, sum, got.Sum)
	}
	return nil
}
