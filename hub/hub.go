// Package hub finds and fetches model files by name: what a repository of a model hub holds, headers of files on a server
// read by ranges, and downloads that may be cut at any byte.
//
// It runs no model, prints nothing and reads no environment: endpoint, token and folder come from its caller.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"terrace/internal/host"
)

// DefaultEndpoint is the public model hub.
const DefaultEndpoint = "https://huggingface.co"

// Errors a caller may branch on with errors.Is.
var (
	// ErrName marks a name or URL that cannot be meant, or that fits no file or several.
	ErrName = errors.New("model name")
	// ErrNotFound marks what the server, or offline the cache, does not have.
	ErrNotFound = errors.New("not found")
	// ErrDenied marks what the server gives only to those with a token, or with another one.
	ErrDenied = errors.New("access denied")
	// ErrSpace marks a download for which the disk has no room.
	ErrSpace = errors.New("no room on the disk")
	// ErrDamaged marks a download whose bytes are not those that were announced.
	ErrDamaged = errors.New("damaged download")
)

// Options say where models come from and where they are kept. The zero value of each field asks for its default.
type Options struct {
	Endpoint string // scheme and host of the hub, perhaps with a path; "" is DefaultEndpoint
	Token    string // sent to Endpoint only
	Dir      string // the cache, in the hub's own layout, which other programs share; "" keeps nothing and finds nothing
	Offline  bool   // no network: only what Dir has
	Agent    string // who asks, for the server's log; "" is terrace
	Log      *slog.Logger

	// For tests.
	sleep func(context.Context, time.Duration) error
	stall time.Duration // a connection that is silent for so long is cut
	save  time.Duration // how often a download's state is saved
	piece int64         // bytes of a range
	disk  disk
}

// Client answers names with files. It is safe for use by several goroutines.
type Client struct {
	o      Options
	origin *url.URL // the endpoint
	http   *http.Client

	mu      sync.Mutex
	headers map[string]int64 // bytes of a header in a folder of the cache, once one was read
}

const (
	stallTime = 30 * time.Second
	saveTime  = time.Second
	pieceSize = 16 << 20
)

// New makes a client. It opens no connection.
func New(o Options) (*Client, error) {
	if o.Endpoint == "" {
		o.Endpoint = DefaultEndpoint
	}
	o.Endpoint = strings.TrimRight(o.Endpoint, "/")
	u, err := url.Parse(o.Endpoint)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%w: the hub's address %q is none: want https://HOST", ErrName, o.Endpoint)
	}
	o.Token = strings.TrimSpace(o.Token)
	for _, r := range o.Token {
		if r <= ' ' || r > '~' {
			return nil, errors.New("the hub's token holds a character that no token has")
		}
	}
	if o.Agent == "" {
		o.Agent = "terrace"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.sleep == nil {
		o.sleep = sleep
	}
	if o.disk == nil {
		o.disk = realDisk{}
	}
	o.stall, o.save, o.piece = orDefault(o.stall, stallTime), orDefault(o.save, saveTime), orDefault(o.piece, pieceSize)
	return &Client{o: o, origin: u, headers: map[string]int64{}, http: &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 20 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout: 20 * time.Second,
			ForceAttemptHTTP2:   true,
			DisableCompression:  true, // ranges are of the bytes as they are
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     60 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // get follows them itself
	}}, nil
}

// Close gives connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func orDefault[T int64 | time.Duration](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// File is a file on a server.
type File struct {
	Path   string `json:"path"` // in its repository, with slashes
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256,omitempty"`
	ETag   string `json:"etag,omitempty"` // what names this content on the server, without quotes; the blob's name in the cache
	URL    string `json:"-"`
	blob   string // name in the cache
	git    bool   // ETag is git's hash of a small file
}

// Model is a model that can be had: the files of one quantisation, in the order of its parts.
type Model struct {
	Name   string `json:"name"`             // for people: org/repo, or the URL
	Commit string `json:"commit,omitempty"` // of the repository
	Quant  string `json:"quant,omitempty"`  // as the file's name says
	Files  []File `json:"files"`

	folder    string // in the cache
	revision  string
	elsewhere bool // at a URL, not in a repository
	ref       Ref
}

// Size is the bytes of all files.
func (m *Model) Size() int64 {
	n := int64(0)
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// Find asks the server which files ref means; nothing is read of them. Offline it looks in the cache.
func (c *Client) Find(ctx context.Context, ref Ref) (*Model, error) {
	if c.o.Offline {
		return c.cached(ref)
	}
	if ref.URL != "" {
		return c.findURL(ctx, ref)
	}
	l, err := c.List(ctx, ref)
	if err != nil {
		return nil, err
	}
	v, err := l.choose(ref)
	if err != nil {
		return nil, err
	}
	return l.model(v), nil
}

// Resolve is the path of the model that ref means, fetched first where the cache lacks it; of a split model, of its first
// part. before is told what is missing and may refuse; it may be nil.
func (c *Client) Resolve(ctx context.Context, ref Ref, o PullOptions, before func(*Model, Need) error) (string, error) {
	m, err := c.Find(ctx, ref)
	if err != nil {
		return "", err
	}
	need, err := c.Need(m)
	if err != nil {
		return "", err
	}
	if need.Bytes > 0 && before != nil {
		if err := before(m, need); err != nil {
			return "", err
		}
	}
	return c.Pull(ctx, m, o)
}

// disk is what a download does to the disk, so that tests can stand in for it.
type disk interface {
	open(path string) (diskFile, error) // for reading and writing; made if it is missing
	free(dir string) (int64, error)
	replace(path string, data []byte) error // whole or not at all, on the disk when it returns
}

// diskFile is a file being made.
type diskFile interface {
	WriteAt(b []byte, off int64) (int, error)
	ReadAt(b []byte, off int64) (int, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

type realDisk struct{}

func (realDisk) free(dir string) (int64, error)         { return host.DiskFree(dir) }
func (realDisk) replace(path string, data []byte) error { return host.ReplaceFile(path, data) }
