package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
	"terrace/promptstore"
)

// arithmetic is the version of the numeric contract (ARCHITECTURE.md). It changes whenever a token's logits may.
const arithmetic = 1

// sampleBytes is how much of each tensor names a model beside its headers.
const sampleBytes = 4096

// stateSpace names everything besides the tokens that a sequence's state depends on: the file, the types of the cache, the
// mode, the rotation, and samples of the weights, since models that were trained on have equal headers.
func (e *Engine) stateSpace() (string, error) {
	print, err := e.file.Fingerprint()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	o := &e.opt
	rope, err := json.Marshal(&o.Rope)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "arithmetic %d, model %s, keys %s, values %s, exact %t, rope %s\n", arithmetic, print, o.KeyType, o.ValType, o.Exact, rope)
	for _, t := range e.model.Dense() {
		b := e.dense.views[t.Name]
		at := (len(b) - min(len(b), sampleBytes)) / 2
		h.Write(b[at:min(at+sampleBytes, len(b))])
	}
	if err := e.sampleExperts(h); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sampleExperts writes a little of the matrices of one expert a layer to h.
func (e *Engine) sampleExperts(h io.Writer) error {
	files := make([]*os.File, len(e.file.Shards))
	defer func() {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}()
	b := make([]byte, sampleBytes)
	sample := func(x gguf.Extent) error {
		if x.Length == 0 {
			return nil
		}
		f := &files[x.Shard]
		if *f == nil {
			var err error
			if *f, err = os.Open(e.file.Shards[x.Shard].Path); err != nil {
				return err
			}
		}
		n := min(x.Length, sampleBytes)
		if _, err := (*f).ReadAt(b[:n], x.Offset+(x.Length-n)/2); err != nil {
			return err
		}
		h.Write(b[:n])
		return nil
	}
	for l, layer := range e.model.Experts() {
		if len(layer) == 0 {
			continue
		}
		d := &layer[(7*l+3)%len(layer)]
		for _, p := range []*model.Piece{&d.Gate, &d.Up, &d.Down} {
			if err := sample(p.Extent); err != nil {
				return err
			}
		}
	}
	return nil
}

// largestEntry is the size of the largest entry of the prompt cache: rows of a piece, or a snapshot.
func (e *Engine) largestEntry() int64 {
	z := e.model.StateSize(e.opt.KeyType, e.opt.ValType)
	return max((z.Token+z.Index)*promptstore.PieceTokens, z.Recurrent+z.Conv)
}

// slotPath is the path of a file of saved slots in dir. Names that some system reads in another way are refused.
func slotPath(dir, name string) (string, error) {
	bad := func(why string) (string, error) { return "", fmt.Errorf("%w: file name %q %s", ErrState, name, why) }
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > 255:
		return "", fmt.Errorf("%w: a file name of %d bytes, at most 255", ErrState, len(name))
	case !utf8.ValidString(name):
		return bad("is no UTF-8")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune(`/\:*?"<>|`, r) }):
		return bad("has a character that a file name may not have")
	case strings.Contains(name, ".."), strings.Trim(name, " ") != name, strings.HasSuffix(name, "."), strings.HasPrefix(name, ".slot-"):
		return bad("cannot be used")
	}
	return filepath.Join(dir, name), nil
}

// SaveState writes the sequence st, which stands behind tokens, to one file at path, whole or not at all, and answers the
// file's size.
func (e *Engine) SaveState(st *model.State, tokens []int32, path string) (bytes int64, err error) {
	if len(tokens) != st.Pos() {
		panic(fmt.Sprintf("engine: a sequence of %d positions is said to hold %d tokens", st.Pos(), len(tokens)))
	}
	if len(tokens) == 0 {
		return 0, fmt.Errorf("%w: the slot is empty: 0 tokens, want at least 1 to save", ErrState)
	}
	space, err := e.space()
	if err != nil {
		return 0, err
	}
	w, err := promptstore.CreateSlot(path, space, tokens)
	if err != nil {
		return 0, err
	}
	buf, err := host.Alloc(int(e.largestEntry()))
	if err != nil {
		return 0, errors.Join(err, w.Abort())
	}
	defer host.Free(buf)
	held, windowed := st.Held(), st.Window() > 0
	for from := 0; from < len(tokens) && err == nil; {
		to := min(from+promptstore.PieceTokens, len(tokens))
		in := windowed && from >= held
		if windowed && from < held {
			to = min(to, held)
		}
		b := buf[:st.RowsSize(to-from, in)]
		st.ExportRows(b, from, to-from, in)
		err = w.Rows(to-from, in, b)
		from = to
	}
	if n := st.Recurrent(); err == nil && n > 0 {
		st.ExportRecurrent(buf[:n])
		err = w.Snapshot(buf[:n])
	}
	if err == nil {
		err = e.unwell()
	}
	if err != nil {
		return 0, errors.Join(err, w.Abort())
	}
	return w.Commit()
}

// ErrState is wrapped by refusals to save or restore a sequence.
var ErrState = errors.New("state of a sequence")

// RestoreState makes st hold what SaveState wrote to the file at path, and answers the tokens and the file's size. The file is
// checked: another model's, one that is damaged or longer than the context is refused. After an error st is empty, or, where
// that was known from the file's heads, unchanged; ask Pos.
func (e *Engine) RestoreState(st *model.State, path string) (tokens []int32, bytes int64, err error) {
	space, err := e.space()
	if err != nil {
		return nil, 0, err
	}
	r, err := promptstore.OpenSlot(path, space)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrState, err)
	}
	defer r.Close()
	switch size := int64(st.Recurrent()); {
	case len(r.Tokens) > st.Context():
		return nil, 0, fmt.Errorf("%w: %s has %d tokens, the context holds %d", ErrState, path, len(r.Tokens), st.Context())
	case r.Ends != (size > 0) || r.Largest > e.largestEntry():
		return nil, 0, fmt.Errorf("%w: %s: entries of up to %d bytes (a snapshot: %t), want at most %d", ErrState, path, r.Largest, r.Ends, e.largestEntry())
	}
	vocab := int32(e.model.Config().Vocab)
	if i := slices.IndexFunc(r.Tokens, func(t int32) bool { return t < 0 || t >= vocab }); i >= 0 {
		return nil, 0, fmt.Errorf("%w: %s: token %d is %d, the vocabulary has %d", ErrState, path, i, r.Tokens[i], vocab)
	}
	buf, err := host.Alloc(int(e.largestEntry()))
	if err != nil {
		return nil, 0, err
	}
	defer host.Free(buf)
	st.Truncate(0)
	window, gap := 0, true
	adopt := func(b []byte) error { return st.Adopt(r.Tokens, window, b) }
	err = r.Each(buf, func(x promptstore.Piece) error {
		if x.Windowed && gap {
			window = x.Lo
		}
		gap = !x.Windowed
		return st.ImportRows(model.Rows{Data: x.Data, First: x.First, N: x.N, Windowed: x.Windowed}, x.Lo, x.Hi, 0)
	}, adopt)
	if err == nil && !r.Ends {
		err = adopt(nil)
	}
	if err != nil {
		st.Settle()
		return nil, 0, fmt.Errorf("%w: %w", ErrState, err)
	}
	return r.Tokens, r.Bytes, nil
}
