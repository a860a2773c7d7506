package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

const (
	stateVersion = 1
	// Beside the content's place: what has come of it, and which bytes these are. Not the names of the hub's own programs,
	// which take the length of such a file for what has come.
	partSuffix  = ".terrace-part"
	stateSuffix = ".terrace-part.json"
)

// state says which bytes of a file being fetched are on the disk for certain: it is written after they were synced.
type state struct {
	Version int    `json:"version"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`
	ETag    string `json:"etag,omitempty"`   // of the file, as it was found
	Answer  string `json:"answer,omitempty"` // of the answers the bytes came with
	Have    spans  `json:"have"`
}

// fits says whether what a state counts belongs to f. Without a name for the content, nothing says so.
func (s *state) fits(f File) bool {
	return s.Version == stateVersion && s.Size == f.Size && s.SHA256 == f.SHA256 && s.ETag == f.ETag && f.ETag != "" && s.Have.valid(f.Size)
}

func readState(path string) (*state, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// span is the bytes [0], included, to [1], not included.
type span [2]int64

// spans are rising and do not touch.
type spans []span

func (s spans) valid(size int64) bool {
	last := int64(-1)
	for _, x := range s {
		if x[0] <= last || x[0] < 0 || x[1] <= x[0] || x[1] > size {
			return false
		}
		last = x[1]
	}
	return true
}

func (s spans) size() int64 {
	n := int64(0)
	for _, x := range s {
		n += x[1] - x[0]
	}
	return n
}

// add joins the bytes of x.
func (s spans) add(x span) spans {
	if x[1] <= x[0] {
		return s
	}
	i, _ := slices.BinarySearchFunc(s, x[0], func(y span, from int64) int { return cmp.Compare(y[1], from) }) // the first that ends at x or behind
	j := i
	for j < len(s) && s[j][0] <= x[1] {
		x[0], x[1] = min(x[0], s[j][0]), max(x[1], s[j][1])
		j++
	}
	return slices.Replace(s, i, j, x)
}

// gaps are what is missing of size bytes, in pieces of at most piece bytes.
func (s spans) gaps(size, piece int64) []span {
	var out []span
	at := int64(0)
	for _, x := range append(slices.Clone(s), span{size, size}) {
		for at < x[0] {
			to := min(at+piece, x[0])
			out = append(out, span{at, to})
			at = to
		}
		at = x[1]
	}
	return out
}
