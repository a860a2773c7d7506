package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	token  = "hf_secret"
	commit = "0123456789abcdef0123456789abcdef01234567"
)

// trick is what a server does to one request of a file, in place of the right answer or to it.
type trick struct {
	status int    // answered instead
	after  string // Retry-After
	drop   int64  // the connection ends after so many bytes of the body; -1: before the first
	whole  bool   // Range is ignored
	shift  int64  // the range begins so many bytes later than was asked for
	short  int64  // the range announces and has so many bytes less
	etag   string
	flip   bool // a byte of the body is another one
	stall  bool // silent after half of the body
	encode bool // says that it is compressed
}

// fake is a hub with one repository, and its store on another origin.
type fake struct {
	t     testing.TB
	hub   *httptest.Server
	store *httptest.Server

	mu        sync.Mutex
	files     map[string][]byte
	small     map[string]bool // by git's hash
	trick     func(n int, path string, from, to int64) trick
	n         int
	etag      string
	noStore   bool // the hub gives the files itself
	signed    int  // a store's address is good for so many requests; 0: for ever
	uses      map[string]int
	redirects int
	page      int    // entries of a page
	asked     []span // of files
	sent      atomic.Int64
	open      chan struct{} // closed at the end, for those who stall
	strange   string        // a token that came where none should
	authed    int
}

func newFake(t testing.TB, files map[string][]byte) *fake {
	f := &fake{t: t, files: files, small: map[string]bool{}, open: make(chan struct{})}
	f.hub = httptest.NewServer(http.HandlerFunc(f.serveHub))
	f.store = httptest.NewServer(http.HandlerFunc(f.serveStore))
	t.Cleanup(func() {
		close(f.open)
		f.hub.Close()
		f.store.Close()
		if f.strange != "" {
			t.Errorf("the token went to %s", f.strange)
		}
	})
	return f
}

// count is how many requests of files there were.
func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// change is how a test changes what a running server does.
func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func sum(b []byte) string { h := sha256.Sum256(b); return hex.EncodeToString(h[:]) }

func (f *fake) serveHub(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Authorization") == "Bearer "+token {
		f.authed++
	}
	p := r.URL.Path
	switch {
	case p == "/api/models/org/repo/revision/main":
		fmt.Fprintf(w, `{"sha":%q,"id":"org/repo"}`, commit)
	case p == "/api/models/org/gated/revision/main":
		w.WriteHeader(401)
	case p == "/api/models/org/repo/tree/"+commit:
		var all []map[string]any
		for _, name := range sortedKeys(f.files) {
			b := f.files[name]
			e := map[string]any{"type": "file", "path": name, "size": len(b), "oid": strings.Repeat("a", 40)}
			if f.small[name] {
				e["oid"] = gitHash(b)
			} else {
				e["lfs"] = map[string]any{"oid": sum(b), "size": len(b), "pointerSize": 135}
			}
			all = append(all, e)
		}
		from := 0
		fmt.Sscan(r.URL.Query().Get("cursor"), &from)
		if f.page > 0 && from+f.page < len(all) {
			w.Header().Set("Link", fmt.Sprintf(`<%s%s?recursive=true&cursor=%d>; rel="next"`, f.hub.URL, p, from+f.page))
			all = all[:from+f.page]
		}
		json.NewEncoder(w).Encode(all[from:])
	case strings.HasPrefix(p, "/org/repo/resolve/"):
		name := strings.SplitN(p, "/", 6)[5]
		b, ok := f.files[name]
		if !ok {
			w.WriteHeader(404)
			return
		}
		if f.noStore {
			f.mu.Unlock()
			defer f.mu.Lock() // it may panic to cut the connection
			f.serveStore(w, r)
			return
		}
		f.redirects++
		w.Header().Set("X-Linked-Etag", `"`+sum(b)+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(b)))
		http.Redirect(w, r, f.store.URL+"/"+url.PathEscape(name)+"?signature=verysecret"+fmt.Sprint(f.redirects), http.StatusFound)
	default:
		w.WriteHeader(404)
	}
}

func (f *fake) serveStore(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	if r.Header.Get("Authorization") != "" && r.Host != strings.TrimPrefix(f.hub.URL, "http://") {
		f.strange = r.Host
	}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if n, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/")); err == nil && f.files[n] != nil {
		name = n
	}
	b, ok := f.files[name]
	from, to := int64(0), int64(len(b))
	ranged := false
	if s := r.Header.Get("Range"); s != "" {
		if n, _ := fmt.Sscanf(s, "bytes=%d-%d", &from, &to); n != 2 {
			f.t.Errorf("range %q", s)
		}
		to, ranged = min(to+1, int64(len(b))), true
	}
	f.n++
	f.asked = append(f.asked, span{from, to})
	var t trick
	if s := r.URL.RawQuery; f.signed > 0 {
		if f.uses == nil {
			f.uses = map[string]int{}
		}
		if f.uses[s]++; f.uses[s] > f.signed {
			t.status = 403
		}
	}
	if f.trick != nil {
		t = f.trick(f.n, name, from, to)
	}
	etag := f.etag
	f.mu.Unlock()
	if !ok {
		w.WriteHeader(404)
		return
	}
	if t.etag != "" {
		etag = t.etag
	}
	if etag != "" {
		w.Header().Set("ETag", `"`+etag+`"`)
	}
	if t.status != 0 {
		if t.after != "" {
			w.Header().Set("Retry-After", t.after)
		}
		w.WriteHeader(t.status)
		fmt.Fprint(w, "not now")
		return
	}
	status := 206
	if t.whole || !ranged {
		status, from, to = 200, 0, int64(len(b))
	} else {
		from = min(from+t.shift, int64(len(b)))
		if to -= t.short; to <= from {
			to = min(from+1, int64(len(b)))
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(b)))
	}
	if t.encode {
		w.Header().Set("Content-Encoding", "gzip")
	}
	out := b[from:to]
	if t.flip && len(out) > 0 {
		out = append([]byte{}, out...)
		out[len(out)/2] ^= 1
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(out)))
	w.WriteHeader(status)
	write := func(p []byte) {
		n, _ := w.Write(p)
		f.sent.Add(int64(n))
		w.(http.Flusher).Flush()
	}
	switch {
	case t.drop != 0 && t.drop < int64(len(out)):
		write(out[:max(t.drop, 0)])
		panic(http.ErrAbortHandler)
	case t.stall:
		write(out[:len(out)/2])
		select {
		case <-r.Context().Done():
		case <-f.open:
		}
	default:
		for len(out) > 0 { // so that a cut finds something to cut
			n := min(len(out), 16<<10)
			if len(out) > 1<<20 {
				n = 1 << 20
			}
			write(out[:n])
			out = out[n:]
		}
	}
}

func sortedKeys(m map[string][]byte) []string {
	var ks []string
	for k := range m {
		i := 0
		for i < len(ks) && ks[i] < k {
			i++
		}
		ks = append(ks[:i], append([]string{k}, ks[i:]...)...)
	}
	return ks
}

func gitHash(b []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// noise is n bytes that no shift of them is.
func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// client is one of the hub of f whose waits take no time; they are counted in waits.
func (f *fake) client(t testing.TB, dir string, change func(*Options)) (*Client, *[]time.Duration) {
	t.Helper()
	waits := &[]time.Duration{}
	var mu sync.Mutex
	o := Options{Endpoint: f.hub.URL, Token: token, Dir: dir, piece: 64 << 10, save: 50 * time.Millisecond, stall: 20 * time.Second,
		sleep: func(ctx context.Context, d time.Duration) error {
			mu.Lock()
			*waits = append(*waits, d)
			mu.Unlock()
			return context.Cause(ctx)
		}}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, waits
}
