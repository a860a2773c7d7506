package host

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// ErrLocked is wrapped when somebody else held a lock all the time.
var ErrLocked = errors.New("another process held it")

// LockFile takes the lock that the file at path stands for, among processes and goroutines; the file is made if it is
// missing and stays. It tries for at most wait. unlock gives the lock back; a process that ends gives it back too. Where
// the system has no such locks it succeeds at once.
func LockFile(path string, wait time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		ok, err := tryLock(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if ok {
			return func() { f.Close() }, nil
		}
		if time.Now().After(until) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w for %v", path, ErrLocked, wait)
		}
	}
}
