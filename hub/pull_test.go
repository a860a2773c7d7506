package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 700_001

func must(t *testing.T, c *Client, ref string) *Model {
	t.Helper()
	r, err := ParseRef(ref, c.o.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Find(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func equalFile(t *testing.T, path string, want []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Fatalf("%s: %d bytes that are not the %d of the server", path, len(b), len(want))
	}
}

// clean says that nothing is left in dir of a download.
func clean(t *testing.T, dir string) {
	t.Helper()
	filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(p), "terrace") {
			t.Errorf("left behind: %s", p)
		}
		return nil
	})
}

// TestTricks: whatever a server does to some of the requests, the file comes whole, and the token stays where it belongs.
func TestTricks(t *testing.T) {
	content := noise(1, size)
	every := func(k int, x trick) func(int, string, int64, int64) trick {
		return func(n int, _ string, _, _ int64) trick {
			if n%k == 0 {
				return x
			}
			return trick{}
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	for name, f := range map[string]func(int, string, int64, int64) trick{
		"good":        nil,
		"drops":       func(int, string, int64, int64) trick { return trick{drop: 1 + r.Int64N(40_000)} },
		"drops first": every(2, trick{drop: -1}),
		"429":         every(3, trick{status: 429, after: "7"}),
		"503":         every(2, trick{status: 503}),
		"wrong range": every(2, trick{shift: 100}),
		"short range": every(2, trick{short: 30_000}),
		"no ranges":   every(1, trick{whole: true}),
		"no ranges and drops": func(n int, _ string, _, _ int64) trick {
			return trick{whole: true, drop: 100_000 * int64(n)}
		},
		"ranges now and then":  every(3, trick{whole: true}),
		"signed address":       nil,
		"another store's name": func(n int, _ string, _, _ int64) trick { return trick{etag: fmt.Sprint("v", n)} }, // the hash is known and decides
		"a bit of each": func(n int, _ string, _, _ int64) trick {
			return []trick{{}, {drop: 5000}, {status: 500}, {shift: 1}, {}, {status: 429, after: "1"}, {short: 1000}}[n%7]
		},
	} {
		t.Run(name, func(t *testing.T) {
			f2 := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
			f2.trick = f
			if name == "signed address" {
				f2.signed = 3
			}
			dir := t.TempDir()
			c, waits := f2.client(t, dir, nil)
			m := must(t, c, "org/repo")
			p, err := c.Pull(context.Background(), m, PullOptions{})
			if err != nil {
				t.Fatal(err)
			}
			equalFile(t, p, content)
			clean(t, dir)
			if want := filepath.Join(dir, "models--org--repo", "snapshots", commit, "repo-Q4_K_M.gguf"); p != want {
				t.Errorf("it lies at %s, want %s", p, want)
			}
			equalFile(t, filepath.Join(dir, "models--org--repo", "blobs", sum(content)), content)
			equalFile(t, filepath.Join(dir, "models--org--repo", "refs", "main"), []byte(commit))
			if runtime.GOOS != "windows" {
				if to, err := os.Readlink(p); err != nil || to != filepath.Join("..", "..", "blobs", sum(content)) {
					t.Errorf("the snapshot links to %s (%v)", to, err)
				}
			}
			if f2.authed == 0 {
				t.Error("the hub got no token")
			}
			if name == "429" {
				n := 0
				for _, w := range *waits {
					if w == 7*time.Second {
						n++
					}
				}
				if n == 0 || n != len(*waits) {
					t.Errorf("waits %v, want 7 s each", *waits)
				}
			}
			before := f2.count()
			if q, err := c.Pull(context.Background(), m, PullOptions{}); err != nil || q != p || f2.count() != before {
				t.Errorf("again: %s, %v, %d requests", q, err, f2.count()-before)
			}
		})
	}
}

// TestGivesUp: what does not help to try again is not, and the error says why, without token or signature.
func TestGivesUp(t *testing.T) {
	content := noise(2, size)
	for name, x := range map[string]struct {
		trick trick
		want  string
		is    error
		tries int
	}{
		"always 500":    {trick{status: 500}, "given up after 8 tries", nil, 8},
		"404":           {trick{status: 404}, "404 Not Found", ErrNotFound, 1},
		"403":           {trick{status: 403}, "HF_TOKEN", ErrDenied, 1},
		"long pause":    {trick{status: 429, after: "86400"}, "asks for a pause of 24h", nil, 1},
		"always shift":  {trick{shift: 5}, "another range", errWrongRange, 8},
		"compressed":    {trick{encode: true}, "encoded", nil, 1},
		"damaged":       {trick{flip: true}, "hash is", ErrDamaged, 11},
		"silent drops":  {trick{drop: -1}, "given up", nil, 8},
		"long silence":  {trick{stall: true, short: size}, "silent", errStalled, 0},
		"nothing there": {trick{status: 416}, "416", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
			f.trick = func(int, string, int64, int64) trick { return x.trick }
			dir := t.TempDir()
			var logged bytes.Buffer
			c, _ := f.client(t, dir, func(o *Options) {
				o.Log = slog.New(slog.NewTextHandler(&logged, nil))
				if x.trick.stall {
					o.stall = 30 * time.Millisecond
				}
			})
			m := must(t, c, "org/repo")
			_, err := c.Pull(context.Background(), m, PullOptions{Connections: 1})
			if err == nil || !strings.Contains(err.Error(), x.want) || x.is != nil && !errors.Is(err, x.is) {
				t.Fatalf("%v, want %q", err, x.want)
			}
			if x.tries > 0 && f.count() != x.tries {
				t.Errorf("%d requests, want %d", f.count(), x.tries)
			}
			for _, s := range []string{err.Error(), logged.String()} {
				if strings.Contains(s, token) || strings.Contains(s, "verysecret") {
					t.Errorf("a secret is told: %s", s)
				}
			}
			if _, ok := c.have(m, m.Files[0]); ok {
				t.Error("there is a file nevertheless")
			}
			if errors.Is(err, ErrDamaged) {
				clean(t, dir)
			}
		})
	}
}

// crashDisk forgets at a crash some of what was written since the last sync, as a disk may.
type crashDisk struct {
	realDisk
	mu    sync.Mutex
	files []*crashFile
}

type crashFile struct {
	*os.File
	d     *crashDisk
	loose []undo
}

type undo struct {
	at  int64
	was []byte
}

func (d *crashDisk) open(path string) (diskFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	c := &crashFile{File: f, d: d}
	d.mu.Lock()
	d.files = append(d.files, c)
	d.mu.Unlock()
	return c, nil
}

func (f *crashFile) WriteAt(b []byte, at int64) (int, error) {
	was := make([]byte, len(b))
	f.File.ReadAt(was, at)
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.loose = append(f.loose, undo{at, was})
	return f.File.WriteAt(b, at)
}

func (f *crashFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.loose = nil
	return nil
}

func (f *crashFile) Close() error { return nil } // the crash needs it

// crash undoes a random choice of what was not synced.
func (d *crashDisk) crash(r *rand.Rand) {
	for _, f := range d.files {
		for i := len(f.loose) - 1; i >= 0; i-- {
			if r.IntN(2) == 0 {
				f.File.WriteAt(f.loose[i].was, f.loose[i].at)
			}
		}
		f.File.Close()
	}
	d.files = nil
}

// dead is a disk on which nothing more is written: the process was killed. Its last states are lost.
type killed struct {
	*crashDisk
	dead atomic.Bool
}

func (k *killed) replace(path string, data []byte) error {
	if k.dead.Load() {
		return errors.New("killed")
	}
	if err := os.WriteFile(path+".terrace-tmp", data, 0o644); err != nil { // as host.ReplaceFile does it, without the wait
		return err
	}
	return os.Rename(path+".terrace-tmp", path)
}

// TestCut: a pull that is killed again and again, at any byte, with what the disk had not yet written lost, ends with the
// right file and nothing beside it.
func TestCut(t *testing.T) {
	for seed := range uint64(8) {
		r, drops := rand.New(rand.NewPCG(seed, 99)), rand.New(rand.NewPCG(seed, 100)) // the latter is the server's
		content := noise(seed, 1+r.IntN(2*size))
		f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
		dir, cuts, p := t.TempDir(), 0, ""
		for {
			d := &killed{crashDisk: &crashDisk{}}
			ctx, cancel := context.WithCancelCause(context.Background())
			at := f.sent.Load() + r.Int64N(int64(len(content))/4+2)
			f.change(func() {
				f.trick = func(int, string, int64, int64) trick {
					if f.sent.Load() > at {
						d.dead.Store(true)
						cancel(errors.New("cut"))
					}
					return trick{drop: []int64{0, 0, 1 + drops.Int64N(50_000)}[drops.IntN(3)]}
				}
			})
			c, _ := f.client(t, dir, func(o *Options) { o.disk, o.save = d, time.Millisecond })
			var err error
			p, err = c.Pull(ctx, must(t, c, "org/repo"), PullOptions{Connections: 1 + r.IntN(4)})
			cancel(nil)
			d.crash(r)
			if err == nil {
				break
			}
			if cuts++; cuts > 300 {
				t.Fatalf("seed %d: cut %d times: %v", seed, cuts, err)
			}
			if !strings.Contains(err.Error(), "cut") && !strings.Contains(err.Error(), "killed") {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		equalFile(t, p, content)
		clean(t, dir)
		t.Logf("seed %d: %d bytes, %d cuts, %d sent", seed, len(content), cuts, f.sent.Load())
	}
}

// TestInterrupted: a pull that is ended in order keeps all that came, and the next one asks for the rest alone.
func TestInterrupted(t *testing.T) {
	content := noise(3, size)
	f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
	dir := t.TempDir()
	c, _ := f.client(t, dir, func(o *Options) { o.save = time.Hour })
	ctx, cancel := context.WithCancel(context.Background())
	f.trick = func(n int, _ string, _, _ int64) trick {
		if n == 5 {
			cancel()
		}
		return trick{}
	}
	m := must(t, c, "org/repo")
	if _, err := c.Pull(ctx, m, PullOptions{Connections: 1}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	need, err := c.Need(m)
	if err != nil || need.Kept < 4*64<<10 || need.Kept+need.Bytes != size || need.Files != 1 || need.Free <= 0 {
		t.Fatalf("%+v, %v", need, err)
	}
	f.change(func() { f.asked, f.trick = nil, nil })
	p, err := c.Pull(context.Background(), m, PullOptions{Connections: 3})
	if err != nil {
		t.Fatal(err)
	}
	equalFile(t, p, content)
	n := int64(0)
	for _, x := range f.asked {
		n += x[1] - x[0]
	}
	if n != need.Bytes {
		t.Errorf("%d bytes asked for, %d were missing", n, need.Bytes)
	}
}

// TestBadPart: a part whose bytes are not what its state says is found out by the hash, and fetched anew.
func TestBadPart(t *testing.T) {
	content := noise(4, size)
	f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
	dir := t.TempDir()
	c, _ := f.client(t, dir, nil)
	m := must(t, c, "org/repo")
	blob := c.blobPath(m, m.Files[0])
	if err := os.MkdirAll(filepath.Dir(blob), 0o755); err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		state string
		part  []byte
	}{
		"other bytes":    {fmt.Sprintf(`{"version":1,"size":%d,"sha256":%q,"etag":%q,"have":[[0,300000]]}`, size, sum(content), sum(content)), make([]byte, size)},
		"part is short":  {fmt.Sprintf(`{"version":1,"size":%d,"sha256":%q,"etag":%q,"have":[[0,300000]]}`, size, sum(content), sum(content)), make([]byte, 10)},
		"no part":        {fmt.Sprintf(`{"version":1,"size":%d,"sha256":%q,"etag":%q,"have":[[0,300000]]}`, size, sum(content), sum(content)), nil},
		"crossing spans": {fmt.Sprintf(`{"version":1,"size":%d,"sha256":%q,"etag":%q,"have":[[0,300000],[5,700001]]}`, size, sum(content), sum(content)), make([]byte, size)},
		"no JSON":        {`{"version":`, make([]byte, size)},
		"other file":     {fmt.Sprintf(`{"version":1,"size":%d,"sha256":"x","etag":"x","have":[[0,%d]]}`, size, size), make([]byte, size)},
	} {
		os.RemoveAll(c.path(m, "snapshots"))
		os.Remove(blob)
		if err := os.WriteFile(blob+stateSuffix, []byte(x.state), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Remove(blob + partSuffix)
		if x.part != nil {
			if err := os.WriteFile(blob+partSuffix, x.part, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p, err := c.Pull(context.Background(), m, PullOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		equalFile(t, p, content)
		clean(t, dir)
	}
}

// fullDisk has room for so many bytes.
type fullDisk struct {
	realDisk
	left atomic.Int64
	says int64
}

type fullFile struct {
	diskFile
	d *fullDisk
}

func (d *fullDisk) free(string) (int64, error) { return d.says, nil }

func (d *fullDisk) open(path string) (diskFile, error) {
	f, err := d.realDisk.open(path)
	return fullFile{f, d}, err
}

func (f fullFile) WriteAt(b []byte, at int64) (int, error) {
	if f.d.left.Add(-int64(len(b))) < 0 {
		return 0, &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	return f.diskFile.WriteAt(b, at)
}

// TestDiskFull: too little room is refused before a byte is asked for, a disk that fills up meanwhile is told as such, and
// what came is kept.
func TestDiskFull(t *testing.T) {
	content := noise(5, size)
	f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
	dir := t.TempDir()
	d := &fullDisk{says: spare + size - 1}
	d.left.Store(size / 2)
	c, _ := f.client(t, dir, func(o *Options) { o.disk = d })
	m := must(t, c, "org/repo")
	_, err := c.Pull(context.Background(), m, PullOptions{})
	if !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), fmt.Sprint(size)) || !strings.Contains(err.Error(), fmt.Sprint(d.says)) || f.count() != 0 {
		t.Fatalf("%v after %d requests", err, f.count())
	}
	d.says++
	_, err = c.Pull(context.Background(), m, PullOptions{})
	if !errors.Is(err, ErrSpace) || !strings.Contains(err.Error(), fmt.Sprint(size)) {
		t.Fatal(err)
	}
	need, err := c.Need(m)
	if err != nil || need.Kept < size/4 {
		t.Fatalf("%+v, %v", need, err)
	}
	d.left.Store(size)
	p, err := c.Pull(context.Background(), m, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	equalFile(t, p, content)
	if left := d.left.Load(); left != size-need.Bytes {
		t.Errorf("%d bytes written, %d were missing", size-left, need.Bytes)
	}
}

// TestTwoPulls: pulls of one file at once, by clients that know nothing of each other, fetch it once.
func TestTwoPulls(t *testing.T) {
	content := noise(6, size)
	f := newFake(t, map[string][]byte{"repo-Q4_K_M.gguf": content})
	dir := t.TempDir()
	var wg sync.WaitGroup
	waited := atomic.Bool{}
	f.trick = func(int, string, int64, int64) trick { time.Sleep(40 * time.Millisecond); return trick{} }
	for range 4 {
		wg.Go(func() {
			c, _ := f.client(t, dir, nil)
			m := must(t, c, "org/repo")
			p, err := c.Pull(context.Background(), m, PullOptions{Connections: 1, Progress: func(x Progress) {
				if x.Phase == PhaseWait {
					waited.Store(true)
				}
			}})
			if err != nil {
				t.Error(err)
				return
			}
			b, err := os.ReadFile(p)
			if err != nil || !bytes.Equal(b, content) {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
	if f.sent.Load() != size {
		t.Errorf("%d bytes were sent, the file has %d", f.sent.Load(), size)
	}
	if !waited.Load() {
		t.Error("nobody was told to wait")
	}
}

// TestParts: all parts of a split model come, and the first is answered.
func TestParts(t *testing.T) {
	files := map[string][]byte{}
	for i := range 3 {
		files[fmt.Sprintf("UD-Q4_K_XL/repo-UD-Q4_K_XL-%05d-of-00003.gguf", i+1)] = noise(uint64(10+i), 100_000+i)
	}
	files["repo-Q8_0.gguf"] = noise(20, 10)
	files["small-Q2_K.gguf"] = noise(21, 20_000)
	files["mmproj-F16.gguf"] = noise(22, 10)
	f := newFake(t, files)
	f.page, f.small["small-Q2_K.gguf"] = 2, true
	dir := t.TempDir()
	c, _ := f.client(t, dir, nil)
	var last Progress
	m := must(t, c, "org/repo:q4_k_xl")
	p, err := c.Pull(context.Background(), m, PullOptions{Progress: func(x Progress) { last = x }})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(filepath.ToSlash(p), "/UD-Q4_K_XL/repo-UD-Q4_K_XL-00001-of-00003.gguf") || last.Done != 300_003 || last.Total != 300_003 || last.Came != 300_003 {
		t.Errorf("%s, %+v", p, last)
	}
	for name, b := range files {
		q := filepath.Join(dir, "models--org--repo", "snapshots", commit, filepath.FromSlash(name))
		if strings.HasPrefix(name, "UD-") {
			equalFile(t, q, b)
		} else if _, err := os.Stat(q); err == nil {
			t.Errorf("%s came too", name)
		}
	}
	m = must(t, c, "org/repo/small-Q2_K.gguf")
	if p, err = c.Pull(context.Background(), m, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	equalFile(t, p, files["small-Q2_K.gguf"])

	// Without the network the same names find the same files, and what was not fetched is not found.
	n := f.count()
	off, _ := f.client(t, dir, func(o *Options) { o.Offline = true })
	q, err := off.Resolve(context.Background(), Ref{Repo: "org/repo", Quant: "Q4_K_XL"}, PullOptions{}, nil)
	if err != nil || filepath.Base(q) != "repo-UD-Q4_K_XL-00001-of-00003.gguf" {
		t.Errorf("%s, %v", q, err)
	}
	if _, err := off.Find(context.Background(), Ref{Repo: "org/repo", Quant: "Q8_0"}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := off.Find(context.Background(), Ref{Repo: "org/other"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "offline") {
		t.Error(err)
	}
	if f.count() != n {
		t.Errorf("%d requests while offline", f.count()-n)
	}
	os.Remove(filepath.Join(dir, "models--org--repo", "blobs", sum(files["UD-Q4_K_XL/repo-UD-Q4_K_XL-00002-of-00003.gguf"])))
	if _, err := off.Find(context.Background(), Ref{Repo: "org/repo", Quant: "Q4_K_XL"}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "part 2 of 3") {
		t.Error(err)
	}
}

// TestURL: a file anywhere. One that changes while it comes is fetched as it is in the end, never as a mixture.
func TestURL(t *testing.T) {
	old, now := noise(30, size), noise(31, size+5)
	f := newFake(t, map[string][]byte{"m-Q8_0.gguf": old})
	f.etag = "one"
	f.trick = func(n int, _ string, _, _ int64) trick {
		if n == 7 {
			f.files["m-Q8_0.gguf"], f.etag = now, "two"
		}
		return trick{}
	}
	dir := t.TempDir()
	c, _ := f.client(t, dir, nil)
	ref, err := ParseRef(f.store.URL+"/m-Q8_0.gguf?key=verysecret", c.o.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Resolve(context.Background(), ref, PullOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	equalFile(t, p, now)
	clean(t, dir)
	if strings.Contains(p, "verysecret") {
		t.Error(p)
	}
	off, _ := f.client(t, dir, func(o *Options) { o.Offline = true })
	if q, err := off.Resolve(context.Background(), ref, PullOptions{}, nil); err != nil || q != p {
		t.Errorf("offline: %s, %v", q, err)
	}

	// One that changes all the time is given up.
	g := newFake(t, map[string][]byte{"m-Q8_0.gguf": old})
	g.trick = func(n int, _ string, _, _ int64) trick { return trick{etag: fmt.Sprint(n)} }
	c2, _ := g.client(t, t.TempDir(), nil)
	ref.URL = g.store.URL + "/m-Q8_0.gguf"
	if _, err := c2.Resolve(context.Background(), ref, PullOptions{}, nil); !errors.Is(err, errChanged) {
		t.Error(err)
	}

	// The hub's own address of a file is its repository.
	if r, err := ParseRef(f.hub.URL+"/org/repo/blob/main/m-Q8_0.gguf", f.hub.URL); err != nil || r != (Ref{Repo: "org/repo", File: "m-Q8_0.gguf"}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRedirects: an encrypted connection does not lead to an open one, and there is an end to them.
func TestRedirects(t *testing.T) {
	var to string
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }))
	defer s.Close()
	c, err := New(Options{Endpoint: s.URL, Token: token, sleep: func(context.Context, time.Duration) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.http.Transport = s.Client().Transport
	for _, x := range []struct{ to, want string }{
		{"http://127.0.0.1:1/x.gguf?sig=verysecret", "not encrypted"},
		{s.URL + "/again", "more than 10 redirects"},
		{"ftp://127.0.0.1/x", "not encrypted"},
	} {
		to = x.to
		if _, err := c.Find(context.Background(), Ref{URL: s.URL + "/x.gguf"}); err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "verysecret") {
			t.Errorf("%s: %v", x.to, err)
		}
	}
}

// TestTokenStays: a redirect from the hub to the same machine by another name gets no token.
func TestTokenStays(t *testing.T) {
	got := map[string]string{}
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got[r.Host+r.URL.Path] = r.Header.Get("Authorization")
		if strings.HasPrefix(r.URL.Path, "/hop") {
			http.Redirect(w, r, strings.Replace(s.URL, "127.0.0.1", "another.test", 1)+"/end.gguf", http.StatusFound)
			return
		}
		w.Header().Set("Content-Range", "bytes 0-0/1")
		w.WriteHeader(206)
		io.WriteString(w, "x")
	}))
	defer s.Close()
	c, err := New(Options{Endpoint: s.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) { // whatever the name
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	if _, err := c.Find(context.Background(), Ref{URL: s.URL + "/hop.gguf"}); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(s.URL, "http://")
	if a := got[host+"/hop.gguf"]; a != "Bearer "+token {
		t.Errorf("the hub got %q", a)
	}
	if a, ok := got[strings.Replace(host, "127.0.0.1", "another.test", 1)+"/end.gguf"]; !ok || a != "" {
		t.Errorf("the other name got %q (%v)", a, ok)
	}
}
