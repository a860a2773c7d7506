package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	mmap "github.com/edsrzf/mmap-go"

	"terrace/gguf"
	"terrace/internal/fault"
	"terrace/internal/host"
	"terrace/model"
)

// dense holds every weight that is not a routed expert: read once into page-aligned memory outside the Go heap, or mapped
// and left to the page cache, for machines where they do not fit. Mapped weights are read anew whenever the system has
// dropped them, and a file that shrinks under its mapping fails every request from then on (mapGuard); that is why reading is the
// default.
type dense struct {
	mem   []byte
	maps  []mmap.MMap // by shard
	views map[string][]byte
	bytes int64 // of the weights, without alignment
	guard *mapGuard
}

// openDense reads or maps the dense weights; it tells progress, in bytes, when it reads.
func openDense(f *gguf.File, ts []model.DenseTensor, how string, progress func(done, total int64)) (*dense, error) {
	if how == "mmap" {
		d, err := mapDense(f, ts)
		if err != nil {
			return nil, err
		}
		if d.guard, err = newMapGuard(d, f); err != nil {
			d.free()
			return nil, err
		}
		return d, nil
	}
	return readDense(f, ts, progress)
}

// densePromise is the memory that openDense takes out of the budget: pages of a mapping are the system's, which drops
// them when memory is short.
func densePromise(ts []model.DenseTensor, how string) int64 {
	if how == "mmap" {
		return 0
	}
	return denseBytes(ts)
}

// mapDense maps the files that hold dense weights.
func mapDense(f *gguf.File, ts []model.DenseTensor) (*dense, error) {
	d := &dense{maps: make([]mmap.MMap, len(f.Shards)), views: make(map[string][]byte, len(ts))}
	for _, t := range ts {
		s := &f.Shards[t.Shard]
		if d.maps[t.Shard] == nil {
			m, err := mapFile(s.Path, s.Size)
			if err != nil {
				d.free()
				return nil, fmt.Errorf("%s: tensor %s: %w", s.Path, t.Name, err)
			}
			d.maps[t.Shard] = m
		}
		d.views[t.Name] = d.maps[t.Shard][t.Offset : t.Offset+t.Length : t.Offset+t.Length]
		d.bytes += t.Length
	}
	return d, nil
}

// mapFile maps a file that must still have the size it had when its header was read.
func mapFile(path string, size int64) (mmap.MMap, error) {
	x, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer x.Close() // the mapping stays
	now, err := host.FileSize(x)
	if err != nil {
		return nil, err
	}
	if now != size {
		return nil, fmt.Errorf("the file has %d bytes now and had %d when its header was read", now, size)
	}
	m, err := mmap.Map(x, mmap.RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return m, nil
}

// runGap is how far apart two tensors of a shard may lie and still be read in one piece.
const runGap = 64 << 10

// readPiece is the length of one read.
const readPiece = 4 << 20

// run is a stretch of one shard that is read in one go and where it lands in memory. Both ends are page aligned.
type denseRun struct {
	shard      int
	off, end   int64
	at         int64
	tensorName string
}

// layout places the runs one after the other; the memory needed is returned with them.
func layoutDense(ts []model.DenseTensor, page int64) ([]denseRun, int64) {
	s := append([]model.DenseTensor(nil), ts...)
	sort.Slice(s, func(i, j int) bool {
		if s[i].Shard != s[j].Shard {
			return s[i].Shard < s[j].Shard
		}
		return s[i].Offset < s[j].Offset
	})
	var runs []denseRun
	for _, t := range s {
		lo := t.Offset / page * page
		hi := (t.Offset + t.Length + page - 1) / page * page
		if n := len(runs); n > 0 && runs[n-1].shard == t.Shard && lo <= runs[n-1].end+runGap {
			runs[n-1].end = max(runs[n-1].end, hi)
			continue
		}
		runs = append(runs, denseRun{shard: t.Shard, off: lo, end: hi, tensorName: t.Name})
	}
	var at int64
	for i := range runs {
		runs[i].at = at
		at += runs[i].end - runs[i].off
	}
	return runs, at
}

// denseBytes is the memory that readDense will take.
func denseBytes(ts []model.DenseTensor) int64 {
	_, n := layoutDense(ts, int64(host.PageSize()))
	return n
}

// readDense reads the dense weights, past the page cache where the file system allows it.
func readDense(f *gguf.File, ts []model.DenseTensor, progress func(done, total int64)) (*dense, error) {
	runs, total := layoutDense(ts, int64(host.PageSize()))
	mem, err := host.Alloc(int(total))
	if err != nil {
		return nil, fmt.Errorf("%d bytes for the dense weights: %w", total, err)
	}
	_ = host.AdviseHuge(mem) // only an advice: fewer address translations
	d := &dense{mem: mem, views: make(map[string][]byte, len(ts))}
	files := make([]*os.File, len(f.Shards))
	direct := make([]bool, len(f.Shards))
	defer func() {
		for _, x := range files {
			if x != nil {
				x.Close()
			}
		}
	}()
	progress(0, total)
	for _, r := range runs {
		if files[r.shard] == nil {
			x, past, err := host.OpenDirect(f.Shards[r.shard].Path)
			if err != nil {
				d.free()
				return nil, err
			}
			files[r.shard], direct[r.shard] = x, past
		}
		want := min(r.end, f.Shards[r.shard].Size) - r.off
		if err := readFull(files[r.shard], mem[r.at:r.at+r.end-r.off], r.off, want, func(got int64) { progress(r.at+got, total) }); err != nil {
			d.free()
			return nil, fmt.Errorf("%s: tensor %s: %w", f.Shards[r.shard].Path, r.tensorName, err)
		}
		if !direct[r.shard] { // a second copy in the page cache would count against the budget
			_ = host.DropCached(files[r.shard], r.off, want) // advice only
		}
	}
	for _, t := range ts {
		i := sort.Search(len(runs), func(i int) bool {
			r := runs[i]
			return r.shard > t.Shard || r.shard == t.Shard && r.end > t.Offset
		})
		at := runs[i].at + t.Offset - runs[i].off
		d.views[t.Name] = mem[at : at+t.Length : at+t.Length]
		d.bytes += t.Length
	}
	return d, nil
}

// readFull reads want bytes at off into dst, whose length is a multiple of the page so that direct reads may ask past the
// end of the file. progress hears of each piece.
func readFull(f *os.File, dst []byte, off, want int64, progress func(got int64)) error {
	var got int64
	for got < want {
		end := min(got+readPiece, int64(len(dst)))
		n, err := f.ReadAt(dst[got:end], off+got)
		if fault.On {
			n, err = fault.Read(dst[got:end], n, err)
		}
		got += int64(n)
		progress(got)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read of %d bytes at offset %d: %w", want, off, err)
		}
		if got >= want {
			break
		}
		if err != nil || n == 0 || got%int64(host.PageSize()) != 0 {
			return fmt.Errorf("file ends at %d, want %d bytes at offset %d: truncated", off+got, want, off)
		}
	}
	return nil
}

func (d *dense) free() {
	if d.mem != nil {
		host.Free(d.mem)
	}
	if d.guard != nil {
		d.guard.close()
	}
	for _, m := range d.maps {
		if m != nil {
			_ = m.Unmap() // nothing can be done about a mapping that stays
		}
	}
	d.mem, d.maps, d.views = nil, nil, nil
}
