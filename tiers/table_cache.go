package tiers

import (
	"fmt"
	"sync"

	"github.com/dgraph-io/ristretto/v2"

	"terrace/internal/host"
)

// pageCost is what a cached page takes of a budget: itself, and what its bookkeeping takes in the Go heap (the index's
// entry, ten counters of its frequency sketch, the frame's).
const pageCost = tablePage + 224

// indexCost is what the index takes whatever it holds: its queue and its shards.
const indexCost = 512 << 10

// pageCache keeps pages of a table. The bytes lie in one arena outside the Go heap, cut into frames, so that the budget
// holds whatever the index does; which pages stay is decided by ristretto, whose values are numbers of frames. Its
// contract fits here: an entry that it drops or refuses costs one short read.
//
// ristretto lets go of a value on a goroutine of its own, perhaps while a reader holds its number. So a frame knows its
// page, and is looked at, filled and freed under one lock: a number that has become another page's is a miss.
type pageCache struct {
	index *ristretto.Cache[uint64, int32] // page -> frame + 1

	mu   sync.Mutex
	mem  []byte
	page []int64 // of each frame, -1 when it is free
	free []int32
}

func newPageCache(frames int) (*pageCache, error) {
	c := &pageCache{page: make([]int64, frames), free: make([]int32, frames)}
	var err error
	if c.mem, err = host.Alloc(frames * tablePage); err != nil {
		return nil, fmt.Errorf("%d cached pages: %w", frames, err)
	}
	for i := range c.page {
		c.page[i] = -1
		c.free[i] = int32(frames - 1 - i)
	}
	// ristretto takes a value in before it lets another go, and both happen later than Set: some frames stay in hand, or new
	// pages would find none.
	keep := frames - max(frames/16, 8)
	c.index, err = ristretto.NewCache(&ristretto.Config[uint64, int32]{
		NumCounters: 10 * int64(keep), MaxCost: int64(keep), BufferItems: 64, IgnoreInternalCost: true,
		KeyToHash: func(k uint64) (uint64, uint64) { return mix(k), k },
		OnExit:    c.release,
	})
	if err != nil {
		host.Free(c.mem)
		return nil, fmt.Errorf("page cache: %w", err)
	}
	return c, nil
}

// mix spreads page numbers over 64 bits: the index takes its shard and its counters from low bits. Every step can be
// undone, so no two pages are mixed up.
func mix(k uint64) uint64 {
	k = (k ^ k>>30) * 0xbf58476d1ce4e5b9
	k = (k ^ k>>27) * 0x94d049bb133111eb
	return k ^ k>>31
}

// copy fills dst with the bytes of a page from offset at. False: the page is not here.
func (c *pageCache) copy(page int64, at int, dst []byte) bool {
	i, ok := c.index.Get(uint64(page))
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i--; c.mem == nil || c.page[i] != page {
		return false
	}
	copy(dst, c.mem[int(i)*tablePage+at:])
	return true
}

// put keeps a page if the index wants it.
func (c *pageCache) put(page int64, b []byte) {
	c.mu.Lock()
	if len(c.free) == 0 || c.mem == nil { // the index has not let go of anything yet, or all is over
		c.mu.Unlock()
		return
	}
	i := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.page[i] = page
	copy(c.mem[int(i)*tablePage:(int(i)+1)*tablePage], b)
	c.mu.Unlock()
	if !c.index.Set(uint64(page), i+1, 1) { // its queue is full: the value is still ours
		c.release(i + 1)
	}
}

// release frees the frame of a value; the index calls it for each value it lets go of.
func (c *pageCache) release(value int32) {
	if value == 0 { // a key without one
		return
	}
	i := value - 1
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.page[i] < 0 {
		panic("tiers: a page was released twice")
	}
	c.page[i] = -1
	c.free = append(c.free, i)
}

// bytes is what the pages in the cache take.
func (c *pageCache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.page)-len(c.free)) * tablePage
}

func (c *pageCache) close() error {
	c.index.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	mem := c.mem
	c.mem = nil
	return host.Free(mem)
}
