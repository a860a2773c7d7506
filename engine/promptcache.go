package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"terrace/model"
	"terrace/plan"
	"terrace/promptstore"
)

// CacheAuto leaves the size of the prompt cache to the engine (plan.Budget.KeepPrompts).
const CacheAuto = plan.CacheAuto

// DefaultCacheDisk is what prompts may take on disk when nobody says how much.
const DefaultCacheDisk = 16 << 30

// PromptCacheOptions configure a PromptCache.
type PromptCacheOptions struct {
	Dir  string // folder of the entries on disk; empty: none
	Disk int64  // bytes of all entries in Dir; 0: DefaultCacheDisk
	// Interval is the most positions from one snapshot of a recurrent model to the next; 0: 256.
	Interval int
	Log      *slog.Logger
}

// PromptCache keeps what prompts and answers left behind, so that a prompt that begins like one of them is evaluated from there
// on, with the bits it would have had. It serves any number of sequences of one engine; a sequence must not be in use
// elsewhere during a call.
type PromptCache struct {
	e        *Engine
	store    *promptstore.Store
	interval int
	log      *slog.Logger
}

// Mark says why a sequence is shown to the cache.
type Mark uint8

// The marks.
const (
	MarkMore Mark = iota // it goes on: whole pieces are kept, and a snapshot where the last one lies far back
	MarkAll              // it goes on, but another may want all that is there now
	MarkEnd              // a turn has ended
)

// NewPromptCache opens a cache whose memory the engine's budget has set aside (Options.CacheRAM); without any it is an error
// that wraps ErrUsage. A folder that cannot be used is logged, and the cache works without it.
func (e *Engine) NewPromptCache(o PromptCacheOptions) (*PromptCache, error) {
	b := e.Budget()
	if b.Cache == 0 {
		return nil, fmt.Errorf("%w: a prompt cache of 0 bytes", ErrUsage)
	}
	if o.Disk < 0 || o.Interval < 0 {
		return nil, fmt.Errorf("%w: a prompt cache of %d bytes on disk with snapshots every %d positions", ErrUsage, o.Disk, o.Interval)
	}
	if o.Disk == 0 {
		o.Disk = DefaultCacheDisk
	}
	if o.Interval == 0 {
		o.Interval = promptstore.PieceTokens
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	space, err := e.space()
	if err != nil {
		return nil, err
	}
	// One entry may be lent beyond what the store holds, while it is copied.
	ram := b.Cache - e.largestEntry()
	if ram <= 0 {
		return nil, fmt.Errorf("%w: a prompt cache of %d bytes, its entries have up to %d", ErrUsage, b.Cache, e.largestEntry())
	}
	s, err := promptstore.Open(promptstore.Options{Space: space, RAM: ram, Dir: o.Dir, Disk: o.Disk, Check: e.unwell, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return &PromptCache{e: e, store: s, interval: o.Interval, log: o.Log}, nil
}

// Close writes what is pending, until ctx ends, and frees the memory.
func (c *PromptCache) Close(ctx context.Context) error { return c.store.Close(ctx) }

// Flush waits until all that was kept is on disk.
func (c *PromptCache) Flush() { c.store.Flush() }

// Stats are the store's counters.
func (c *PromptCache) Stats() promptstore.Stats { return c.store.Stats() }

// need is what makes a stored prefix usable for st.
func need(st *model.State) promptstore.Need {
	return promptstore.Need{Window: st.Window(), Snapshot: st.Recurrent() > 0}
}

// usable is the part of a prompt that may come from a cache: the last token is evaluated always, since its logits are asked
// for.
func usable(tokens []int32, st *model.State) []int32 {
	return tokens[:max(0, min(len(tokens)-1, st.Context()))]
}

// Lookup is how many of the tokens Restore would find in the cache for a sequence like st.
func (c *PromptCache) Lookup(st *model.State, tokens []int32) int {
	return c.store.Reach(usable(tokens, st), need(st))
}

// Restore makes st, which stands behind the tokens held, stand behind the longest beginning of tokens that it or the cache
// has, never all of them; it answers how many. It may read from disk: call it where it may take its time; other sequences
// may be evaluated meanwhile. Damaged entries are passed over. The one error is that of ctx, and st stands at n then too.
func (c *PromptCache) Restore(ctx context.Context, st *model.State, held, tokens []int32) (n int, err error) {
	if len(held) != st.Pos() {
		panic(fmt.Sprintf("engine: a sequence of %d positions is said to hold %d tokens", st.Pos(), len(held)))
	}
	want := usable(tokens, st)
	st.Truncate(common(held, want))
	for {
		from := st.Pos()
		again, err := c.restore(ctx, st, want)
		if err != nil {
			if cerr := ctx.Err(); cerr != nil {
				return st.Pos(), cerr
			}
			c.log.Warn("a prompt is not taken from the cache", "reason", err)
		}
		if !again || st.Pos() > from {
			return st.Pos(), nil
		}
	}
}

// common is the number of tokens that a and b begin with alike.
func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// windowExtra is how many more positions than it must an import gives to layers with a window, so that going back a little
// needs no other import.
const windowExtra = 256

// restore tries one prefix. again tells that the store has given up an entry of it, so that another may be found.
func (c *PromptCache) restore(ctx context.Context, st *model.State, tokens []int32) (again bool, err error) {
	p := c.store.Find(tokens, need(st))
	defer p.Close()
	from := st.Pos()
	if p.N <= from {
		return false, nil
	}
	window, gap := 0, true // from where on layers with a window have everything
	low := max(0, p.N-st.Window()+1-windowExtra)
	err = p.Pieces(ctx, from, func(x promptstore.Piece) error {
		if !x.Windowed {
			gap = true
		} else if x.Hi > low && gap {
			window, gap = max(x.Lo, low), false
		}
		return st.ImportRows(model.Rows{Data: x.Data, First: x.First, N: x.N, Windowed: x.Windowed}, x.Lo, x.Hi, low)
	})
	if st.Window() == 0 || window <= from {
		window = 0
	}
	if err == nil && st.Recurrent() > 0 {
		err = p.Snapshot(func(b []byte) error { return st.Adopt(tokens[:p.N], window, b) })
	} else if err == nil {
		err = st.Adopt(tokens[:p.N], window, nil)
	}
	if err != nil {
		st.Settle()
		return errors.Is(err, promptstore.ErrDamaged), err
	}
	return false, nil
}

// captures are snapshots that a step of a prompt makes on its way.
type captures struct {
	at  []int
	of  []promptstore.Class
	buf []*promptstore.Buffer
}

// capture has the step of st that takes tokens[at:at+n] of a prompt make snapshots on its way, where they are likely to be wanted:
// at the interval, shortly before the prompt's end, and where other prompts have parted from it. A step is cut for none of them:
// where experts are read, a long one costs little more than a short one.
func (c *PromptCache) capture(st *model.State, tokens []int32, at, n int) (z captures) {
	size := int64(st.Recurrent())
	if size == 0 {
		return z
	}
	k := c.store.Known(tokens)
	add := func(p int, class promptstore.Class) {
		if p <= at || p >= at+n || slices.Contains(k.Snapshots, p) {
			return
		}
		if i := slices.Index(z.at, p); i >= 0 {
			z.of[i] = max(z.of[i], class)
		} else if b := c.store.NewBuffer(size); b != nil {
			z.at, z.of, z.buf = append(z.at, p), append(z.of, class), append(z.buf, b)
		}
	}
	if k.Rows < len(tokens)-1 && k.Rows-lastBefore(k.Snapshots, k.Rows) >= checkpointTail {
		add(k.Rows, promptstore.Turn)
	}
	add(len(tokens)-checkpointTail, promptstore.Tail)
	for p := max(lastBefore(k.Snapshots, at)+c.interval, at+1); p < at+n; p += c.interval {
		add(p, promptstore.Interval)
	}
	if len(z.at) > 0 {
		dst := make([][]byte, len(z.at))
		for i, b := range z.buf {
			dst[i] = b.Data
		}
		st.Capture(z.at, dst)
	}
	return z
}

// keepCaptured stores what a step has captured; st stands behind tokens.
func (c *PromptCache) keepCaptured(st *model.State, tokens []int32, z *captures) {
	order := make([]int, len(z.at))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return z.at[a] - z.at[b] })
	for _, i := range order {
		c.keepRows(st, tokens, z.at[i])
		c.store.AddBuffer(tokens[:z.at[i]], z.of[i], z.buf[i])
	}
	*z = captures{}
}

// drop gives up what a step shall not capture any more.
func (z *captures) drop(st *model.State) {
	if len(z.at) == 0 {
		return
	}
	st.Capture(nil, nil)
	for _, b := range z.buf {
		b.Free()
	}
	*z = captures{}
}

// lastBefore is the last of rising positions that is at most pos, or 0.
func lastBefore(rising []int, pos int) int {
	i, ok := slices.BinarySearch(rising, pos)
	if ok {
		return pos
	}
	if i == 0 {
		return 0
	}
	return rising[i-1]
}

// Keep stores what st, which stands behind tokens, holds and the cache has not yet. It copies in memory; files are written in
// the background. Call it after each piece of a prompt and from time to time during an answer with MarkMore, before layers with
// windows forget (State.Fading), and after an answer with MarkEnd.
func (c *PromptCache) Keep(st *model.State, tokens []int32, m Mark) {
	pos := st.Pos()
	if len(tokens) != pos {
		panic(fmt.Sprintf("engine: a sequence of %d positions is said to hold %d tokens", pos, len(tokens)))
	}
	if pos == 0 {
		return
	}
	k := c.store.Known(tokens)
	size := st.Recurrent()
	snap := size > 0 && (m == MarkEnd || pos-lastBefore(k.Snapshots, pos) >= c.interval)
	to := pos
	if m == MarkMore && !snap && k.Rows >= st.Fading() {
		to = k.Rows + (pos-k.Rows)/promptstore.PieceTokens*promptstore.PieceTokens
	}
	if !c.keepRows(st, tokens, to) || !snap {
		return
	}
	class := promptstore.Interval
	if m == MarkEnd {
		class = promptstore.Turn
	}
	c.store.AddSnapshot(tokens, class, int64(size), func(dst []byte) { st.ExportRecurrent(dst) })
}

// keepRows stores the rows of the first n positions. It reports whether they are all there.
func (c *PromptCache) keepRows(st *model.State, tokens []int32, n int) bool {
	held, windowed := st.Held(), st.Window() > 0
	for from := c.store.Known(tokens[:n]).Rows; from < n; {
		hi := min(from+promptstore.PieceTokens, n)
		w := windowed && from >= held
		if windowed && from < held {
			hi = min(hi, held)
		}
		ok := c.store.AddRows(tokens[:hi], from, w, int64(st.RowsSize(hi-from, w)), func(dst []byte) { st.ExportRows(dst, from, hi-from, w) })
		if !ok {
			return false
		}
		from = hi
	}
	return true
}
