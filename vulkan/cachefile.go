//go:build cgo && !novulkan

package vulkan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"terrace/internal/host"
)

// The file of a pipeline cache is a head of 24 bytes, little-endian, and what the driver gave: magic, version, CRC-32C of that,
// its length. Drivers look whether the content is their own, but not all do whether it is whole.
const (
	cacheMagic   = "TERRPIPE"
	cacheVersion = 1
	cacheHead    = 24
	mostCache    = 64 << 20
)

var cacheSums = crc32.MakeTable(crc32.Castagnoli)

// encodeCache is the file's content.
func encodeCache(data []byte) []byte {
	b := append(make([]byte, 0, cacheHead+len(data)), cacheMagic...)
	b = binary.LittleEndian.AppendUint32(b, cacheVersion)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(data, cacheSums))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	return append(b, data...)
}

// decodeCache is what encodeCache was given; everything else is an error.
func decodeCache(b []byte) ([]byte, error) {
	if len(b) < cacheHead || string(b[:8]) != cacheMagic {
		return nil, errors.New("it is no pipeline cache of this program")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != cacheVersion {
		return nil, fmt.Errorf("it is of version %d, this program reads %d", v, cacheVersion)
	}
	data := b[cacheHead:]
	if n := binary.LittleEndian.Uint64(b[16:]); n != uint64(len(data)) {
		return nil, fmt.Errorf("it has %d bytes behind its head, which says %d", len(data), n)
	}
	if got, want := crc32.Checksum(data, cacheSums), binary.LittleEndian.Uint32(b[12:]); got != want {
		return nil, fmt.Errorf("its checksum is %08x, its head says %08x", got, want)
	}
	return data, nil
}

// loadCache is the content of a pipeline cache, nil where there is none. log, which may be nil, is told of one that is of no use.
func loadCache(file string, log *slog.Logger) []byte {
	if file == "" {
		return nil
	}
	var b []byte
	st, err := os.Stat(file)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > mostCache+cacheHead) {
		err = fmt.Errorf("want a regular file of at most %d bytes, it has %d", int64(mostCache+cacheHead), st.Size())
	}
	if err == nil {
		b, err = os.ReadFile(file)
	}
	if err == nil {
		b, err = decodeCache(b)
	}
	if err != nil {
		if log != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("the pipeline cache is ignored: shaders are compiled anew", "file", file, "reason", err)
		}
		return nil
	}
	return b
}

// saveCache puts the driver's data into the file: whole, or not at all.
func saveCache(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	unlock, err := host.LockFile(file+".lock", time.Second)
	if err != nil {
		return err
	}
	defer unlock()
	return host.ReplaceFile(file, encodeCache(data))
}
