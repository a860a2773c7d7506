package promptstore

import (
	"fmt"
	"hash/crc32"
)

// AddRows stores the rows of positions from to len(tokens)-1, at most PieceTokens of them, of size bytes that fill writes; rows
// of all positions before must be there. It reports whether they are there now: no room is no error. Entries go to disk in
// the background.
func (s *Store) AddRows(tokens []int32, from int, windowed bool, size int64, fill func(dst []byte)) bool {
	n := len(tokens) - from
	if from < 0 || n < 1 || n > PieceTokens || size < 1 || size > maxPayload {
		panic(fmt.Sprintf("promptstore: rows of positions %d to %d in %d bytes, at most %d positions", from, len(tokens), size, PieceTokens))
	}
	s.mu.Lock()
	if have := reach(s.walk(tokens)); have > from { // the rest would lie beside what is there
		s.mu.Unlock()
		return have == len(tokens)
	}
	parent, ok := s.at(tokens[:from])
	if !ok {
		s.mu.Unlock()
		return false
	}
	e := &entry{head: head{Kind: Rows, Windowed: windowed, Space: s.space, Parent: parent.ID, Start: from, End: len(tokens), Size: size,
		Tokens: append([]int32(nil), tokens[from:]...)}, parent: parent}
	return s.add(e, true, fill)
}

// AddSnapshot stores a snapshot of the position len(tokens), of size bytes that fill writes; rows of all positions before must be
// there. Snapshots of class Tail stay in RAM until they were of use. It reports whether the snapshot is there now.
func (s *Store) AddSnapshot(tokens []int32, class Class, size int64, fill func(dst []byte)) bool {
	if len(tokens) == 0 || size < 1 || size > maxPayload || class > Turn {
		panic(fmt.Sprintf("promptstore: a snapshot of position %d in %d bytes, class %d", len(tokens), size, class))
	}
	s.mu.Lock()
	parent, ok := s.at(tokens)
	if !ok {
		s.mu.Unlock()
		return false
	}
	e := &entry{head: head{Kind: Snapshot, Class: class, Space: s.space, Parent: parent.ID, Start: len(tokens), End: len(tokens), Size: size}, parent: parent}
	return s.add(e, class != Tail, fill)
}

// Buffer is memory for a snapshot that is not made yet. Either AddBuffer or Free takes it back.
type Buffer struct {
	Data []byte
	s    *Store
}

// NewBuffer sets memory aside for a snapshot of size bytes; nil: there is no room.
func (s *Store) NewBuffer(size int64) *Buffer {
	s.mu.Lock()
	ok := !s.closed && s.reserve(taken(size))
	if !ok {
		s.stats.Refused++
	}
	s.mu.Unlock()
	if !ok {
		return nil
	}
	data, err := makeBuf(size)
	if err != nil {
		s.log.Warn("a prompt is not kept", "bytes", size, "reason", err)
		s.unreserve(size)
		return nil
	}
	return &Buffer{data, s}
}

// unreserve takes back the count of a buffer of n bytes.
func (s *Store) unreserve(n int64) {
	s.mu.Lock()
	s.ram -= taken(n)
	s.mu.Unlock()
}

// Free gives the memory back.
func (b *Buffer) Free() {
	b.s.unreserve(int64(len(b.Data)))
	freeBuf(b.Data)
	b.Data = nil
}

// AddBuffer is AddSnapshot of what b holds.
func (s *Store) AddBuffer(tokens []int32, class Class, b *Buffer) bool {
	size := int64(len(b.Data))
	s.mu.Lock()
	parent, ok := s.at(tokens)
	if !ok || len(tokens) == 0 {
		s.mu.Unlock()
		b.Free()
		return false
	}
	e := &entry{head: head{Kind: Snapshot, Class: class, Space: s.space, Parent: parent.ID, Start: len(tokens), End: len(tokens), Size: size}, parent: parent}
	e.ID = e.id()
	s.pin(e.parent)
	if s.closed || s.entries[e.ID] != nil || !s.enter(e) {
		old := s.entries[e.ID]
		s.unpin(e.parent)
		s.mu.Unlock()
		b.Free()
		return old != nil
	}
	s.mu.Unlock()
	e.Sum = crc32.Checksum(b.Data, castagnoli)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.unpin(e.parent)
	if s.closed || e.parent.gone || s.entries[e.ID] != nil {
		s.leave(e)
		s.ram -= taken(size)
		freeBuf(b.Data)
		return s.entries[e.ID] != nil
	}
	e.buf, e.used = b.Data, s.tick()
	s.insert(e)
	if class != Tail {
		s.write(e)
	}
	return true
}

// at is the entry of rows in which position len(tokens) ends, if there are rows of all of tokens. Callers hold mu.
func (s *Store) at(tokens []int32) (*entry, bool) {
	if len(tokens) == 0 {
		return &s.root, true
	}
	path := s.walk(tokens)
	if reach(path) != len(tokens) {
		return nil, false
	}
	now := s.tick()
	for _, t := range path {
		t.e.used = now
	}
	return path[len(path)-1].e, true
}

// add makes room for e, has it filled and puts it into the tree. It is entered with mu held and leaves it free.
func (s *Store) add(e *entry, write bool, fill func(dst []byte)) bool {
	e.ID = e.id()
	if old := s.entries[e.ID]; old != nil {
		old.used = s.tick()
		old.Class = max(old.Class, e.Class)
		if write {
			s.write(old)
		}
		s.mu.Unlock()
		return true
	}
	s.pin(e.parent) // it must not leave while room is made and the bytes are copied
	entered := !s.closed && s.enter(e)
	if !entered || !s.reserve(taken(e.Size)) {
		if entered {
			s.leave(e)
		}
		s.unpin(e.parent)
		s.stats.Refused++
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	buf, err := makeBuf(e.Size)
	if err == nil {
		fill(buf)
		if s.opt.Check != nil {
			err = s.opt.Check()
		}
		e.Sum = crc32.Checksum(buf, castagnoli)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.unpin(e.parent)
	if err != nil || s.closed || e.parent.gone || s.entries[e.ID] != nil {
		s.leave(e)
		s.ram -= taken(e.Size)
		if err != nil {
			s.log.Warn("no memory for a prompt", "bytes", e.Size, "reason", err)
		} else {
			freeBuf(buf)
		}
		return s.entries[e.ID] != nil
	}
	e.buf, e.used = buf, s.tick()
	s.insert(e)
	if write {
		s.write(e)
	}
	return true
}

func (s *Store) pin(e *entry) { e.pins++ }

// insert puts e, whose parent is there, into the tree. Callers hold mu and have counted it.
func (s *Store) insert(e *entry) {
	s.entries[e.ID] = e
	if e.Kind == Rows {
		e.parent.children = append(e.parent.children, e)
	} else {
		e.parent.snaps = append(e.parent.snaps, e)
	}
}

// write queues e for the disk, its ancestors before it. Callers hold mu.
func (s *Store) write(e *entry) {
	if s.disk == nil || e == &s.root || e.onDisk || e.queued || s.closed {
		return
	}
	s.write(e.parent)
	if e.buf != nil && (e.parent == &s.root || e.parent.onDisk || e.parent.queued) {
		s.disk.enqueue(e)
	}
}
