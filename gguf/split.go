package gguf

import (
	"fmt"
	"strconv"
	"strings"
)

// The keys that tie the parts of a split model together (gguf-split's names).
const (
	keySplitNo      = "split.no"            // index of this part, from 0
	keySplitCount   = "split.count"         // number of parts
	keySplitTensors = "split.tensors.count" // tensors of all parts together
)

// maxParts is what split.count, a u16 by convention, can say.
const maxParts = 1<<16 - 1

// split is what one part says of the whole.
type split struct {
	no, count uint64
}

// splitOf reads the split keys of p. A count of 1 stands for a model in a single file.
func splitOf(p *part) (split, error) {
	count, err := p.meta.UintOr(keySplitCount, 1)
	if err != nil {
		return split{}, &fileError{err.Error(), ErrCorrupt}
	}
	if count <= 1 {
		return split{count: 1}, nil
	}
	if count > maxParts {
		return split{}, corrupt("%s: %s is %d, over the limit of %d", p.shard.Path, keySplitCount, count, maxParts)
	}
	no, err := p.meta.Uint(keySplitNo)
	if err != nil {
		return split{}, &fileError{err.Error(), ErrCorrupt}
	}
	if no >= count {
		return split{}, corrupt("%s: %s is %d, but %s is %d", p.shard.Path, keySplitNo, no, keySplitCount, count)
	}
	return split{no, count}, nil
}

// openSiblings reads all parts of the split model of which given is the part at path, and checks that they belong together.
func openSiblings(path string, given *part, s split, open Opener) ([]*part, error) {
	prefix, no, count, ok := SplitName(path)
	if !ok {
		return nil, corrupt("%s: %s is %d, but the name does not end in -%05d-of-%05d.gguf as part %d of %d must",
			path, keySplitCount, s.count, s.no+1, s.count, s.no+1, s.count)
	}
	if count != s.count {
		return nil, corrupt("%s: %s is %d, but the name says %d parts", path, keySplitCount, s.count, count)
	}
	parts := make([]*part, s.count)
	total := 0
	for i := range parts {
		p, ps := given, s
		if uint64(i)+1 != no {
			name := PartPath(prefix, i, len(parts))
			var err error
			if p, err = openPart(name, open); err != nil {
				return nil, fmt.Errorf("part %d of %d of %s: %w", i+1, len(parts), path, err)
			}
			if ps, err = splitOf(p); err != nil {
				return nil, err
			}
		}
		if ps.count != s.count {
			return nil, corrupt("%s: %s is %d, but %s says %d", p.shard.Path, keySplitCount, ps.count, path, s.count)
		}
		if ps.no != uint64(i) {
			return nil, corrupt("%s: %s is %d, but the name says part %d of %d, which is number %d counted from 0",
				p.shard.Path, keySplitNo, ps.no, i+1, len(parts), i)
		}
		parts[i] = p
		total += len(p.tensors)
	}
	for i, p := range parts {
		if i > 0 && !p.meta.Has(keySplitTensors) {
			continue
		}
		want, err := p.meta.Uint(keySplitTensors)
		if err != nil {
			return nil, &fileError{err.Error(), ErrCorrupt}
		}
		if want != uint64(total) {
			return nil, corrupt("%s: %s is %d, but the %d parts hold %d tensors", p.shard.Path, keySplitTensors, want, len(parts), total)
		}
	}
	return parts, nil
}

// PartPath is the path of part i, counted from 0, of a model split into n parts: the name itself counts from 1.
func PartPath(prefix string, i, n int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, i+1, n)
}

// SplitName takes a path of the form PREFIX-00001-of-00003.gguf apart; no counts from 1. ok is false for any other path.
func SplitName(path string) (prefix string, no, count uint64, ok bool) {
	const digits = 5
	rest, ok := strings.CutSuffix(path, ".gguf")
	if !ok {
		return "", 0, 0, false
	}
	cut := func(sep string) (uint64, bool) {
		at := len(rest) - digits
		if at < len(sep) || rest[at-len(sep):at] != sep {
			return 0, false
		}
		for _, c := range rest[at:] {
			if c < '0' || c > '9' {
				return 0, false
			}
		}
		n, err := strconv.ParseUint(rest[at:], 10, 64)
		rest = rest[:at-len(sep)]
		return n, err == nil
	}
	if count, ok = cut("-of-"); !ok {
		return "", 0, 0, false
	}
	if no, ok = cut("-"); !ok || no < 1 || no > count {
		return "", 0, 0, false
	}
	return rest, no, count, true
}
