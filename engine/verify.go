package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"terrace/gguf"
	"terrace/internal/host"
	"terrace/model"
	"terrace/tiers"
)

// ErrNoSums is wrapped when checksums are to be compared and have not been made.
var ErrNoSums = errors.New("no checksums")

const maxSumsFile = 256 << 20

// sumsPath names the file of a model's checksums in the folder dir.
func sumsPath(dir, fingerprint string) string { return filepath.Join(dir, "sums-"+fingerprint+".json") }

// verified wraps the store so that a model file that changes while it is in use, and with SumsDir an expert that does not
// have its checksum, fails the request instead of giving wrong tokens. copies says that paths are a mirror's, which may
// have other sizes; a read of it that fails begins anew with the original. It takes over st in any case.
func (e *Engine) verified(st tiers.Store, paths []string, copies bool) (tiers.Store, error) {
	var sums *tiers.Sums
	var err error
	if e.opt.SumsDir != "" {
		sums, err = e.loadSums()
	}
	var v tiers.Store
	if err == nil {
		var sizes []int64
		for _, s := range e.file.Shards {
			if !copies {
				sizes = append(sizes, s.Size)
			}
		}
		v, err = tiers.NewVerify(st, paths, sizes, sums)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return v, nil
}

func (e *Engine) loadSums() (*tiers.Sums, error) {
	fp, err := e.file.Fingerprint()
	if err != nil {
		return nil, err
	}
	path := sumsPath(e.opt.SumsDir, fp)
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: there is no %s; terrace inspect --checksum makes it", e.opt.Path, ErrNoSums, path)
	}
	if err != nil {
		return nil, err
	}
	if st.Size() > maxSumsFile {
		return nil, fmt.Errorf("%s: %d bytes, checksums have at most %d", path, st.Size(), int64(maxSumsFile))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sums, err := tiers.DecodeSums(b)
	if err == nil {
		err = sums.Fits(fp, e.table)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; terrace inspect --checksum makes it anew", path, err)
	}
	return sums, nil
}

// Checksum reads all experts of the model at path once and writes their checksums into the folder dir, whose file it
// names. progress, which may be nil, is told the bytes done and their total.
func Checksum(ctx context.Context, path, dir string, progress func(done, total int64)) (string, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return "", err
	}
	m, err := model.Load(f, model.Options{})
	if err != nil {
		return "", err
	}
	e := &Engine{file: f, model: m}
	e.layOut()
	n := 0
	for _, l := range e.table {
		n += len(l)
	}
	if n == 0 {
		return "", fmt.Errorf("%s has no routed experts: there is nothing to make checksums of", path)
	}
	fp, err := f.Fingerprint()
	if err != nil {
		return "", err
	}
	paths := make([]string, len(f.Shards))
	for i, s := range f.Shards {
		paths[i] = s.Path
	}
	sums, err := tiers.MakeSums(ctx, paths, e.table, progress)
	if err != nil {
		return "", err
	}
	sums.Fingerprint = fp
	b, err := sums.Encode()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	out := sumsPath(dir, fp)
	unlock, err := host.LockFile(out+".lock", heatLockWait)
	if err != nil {
		return "", err
	}
	defer unlock()
	return out, host.ReplaceFile(out, b)
}
