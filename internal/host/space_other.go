//go:build !linux && !darwin && !windows

package host

// Reserve takes n bytes as Alloc does: this port knows no way to have addresses without memory here, so whoever reserves
// more than the machine has is refused, or is counted for it.
func Reserve(n int) (*Space, error) {
	b, err := Alloc(n)
	if err != nil {
		return nil, err
	}
	return &Space{Mem: b}, nil
}

// Commit does nothing: the whole range is usable.
func (s *Space) Commit([]byte) error { return nil }

// Release does nothing: memory comes back with Free.
func (s *Space) Release([]byte) error { return nil }

// Free returns the whole range.
func (s *Space) Free() error { return Free(s.Mem) }

// AdviseSmall does nothing here: the system has no such advice.
func AdviseSmall([]byte) error { return nil }

// SplitHuge does nothing here: there are no huge pages.
func SplitHuge([]byte) error { return nil }

// HugePage is 0: nobody asks for huge pages here.
const HugePage = 0
