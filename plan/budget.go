package plan

// Budget is where the memory of an engine goes; all figures but the counts at the end are bytes. The engine that runs and
// the plan that foretells it share this arithmetic, so that they agree to the byte.
type Budget struct {
	RAM       int64 // the promise: what the process may hold
	Now       int64 // what of it may be used now; less than RAM while the machine or its container offers less
	Runtime   int64 // Go runtime, tokenizer, metadata, page tables of all but the arena
	Dense     int64 // dense weights
	KV        int64 // the sequences: caches and what else layers remember, when they are full
	Table     int64 // pages of a table of rows that stays on disk
	Work      int64 // activations of one pass
	Cache     int64 // prompts and answers that may come again
	Predictor int64 // matrices that guess experts
	Arena     int64 // expert slots, alignment included
	ArenaMin  int64 // the smallest working set
	ArenaMost int64 // a slot for every expert, or what the user fixed
	Slots     int   // experts that the arena holds
	Experts   int   // experts in the model

	Checkpoints int // of a sequence's recurrent state
	Batch       int // prompt tokens of a pass
}

// Width is what passes of more prompt tokens take.
type Width struct {
	Batch    int
	KV, Work int64 // as in Budget
}

// widenShare is the part of the arena beyond the smallest working set that wider passes may take, as its reciprocal.
const widenShare = 8

// Widen chooses the widest passes that take a small part of the arena only: each pass reads every expert that its tokens
// use and that is not resident, so that a prompt in four passes reads up to four times as much. Where all experts are
// resident it changes nothing. asked is the arena that was asked for, ArenaMost where none was; wider rises. It comes before
// Promise.
func (b *Budget) Widen(ram, asked int64, wider []Width) {
	arena := b.ArenaIn(ram)
	if b.Experts == 0 || min(asked, arena) >= b.ArenaMost {
		return
	}
	room := (arena - b.ArenaMin) / widenShare
	if asked < b.ArenaMost {
		room = min(room, arena-asked)
	}
	kv, work := b.KV, b.Work
	for _, w := range wider {
		if w.KV+w.Work-kv-work <= room {
			b.Batch, b.KV, b.Work = w.Batch, w.KV, w.Work
		}
	}
}

// Fixed is everything but the arena.
func (b Budget) Fixed() int64 {
	return b.Runtime + b.Dense + b.KV + b.Table + b.Work + b.Cache + b.Predictor
}

// Least is the smallest budget that this model and context can have.
func (b Budget) Least() int64 { return b.Fixed() + Mapped(b.ArenaMin) }

// Full is the budget from which on more is of no use: every expert has a slot.
func (b Budget) Full() int64 { return b.Fixed() + Mapped(b.ArenaMost) }

// PageTables is what the kernel takes to map n bytes: eight for each 4 KiB page, which it sets aside for huge pages too.
func PageTables(n int64) int64 { return (n + 511) / 512 }

// Mapped is n bytes with their page tables.
func Mapped(n int64) int64 { return n + PageTables(n) }

// ArenaIn is the largest arena that a budget leaves room for; it may be too small to work.
func (b Budget) ArenaIn(budget int64) int64 {
	room := max(0, budget-b.Fixed())
	return min(room/513*512+room%513*512/513, b.ArenaMost) // Mapped(it) is room again
}

// SlotsIn is how many of all experts an arena holds, given the bytes of an arena for all. Experts differ in size: it is
// about so many.
func SlotsIn(arena, all int64, experts int) int {
	if all == 0 {
		return 0
	}
	return int(float64(arena)/float64(all)*float64(experts) + 1e-6)
}

// maxCheckpoints bounds the checkpoints of a session.
const maxCheckpoints = 8

// checkpointShare is the part of the RAM budget that checkpoints may take, as its reciprocal; one is made in any case.
const checkpointShare = 32

// Checkpoints is how many copies of a recurrent state of so many bytes a budget has room for. Without them a timeline that
// goes back by a token is evaluated anew.
func Checkpoints(bytes, budget int64) int {
	if bytes == 0 {
		return 0
	}
	return int(min(max(budget/checkpointShare/bytes, 1), maxCheckpoints))
}

// Promise adds what depends on the RAM budget: checkpoints, each of so many bytes for all sequences, and the page tables of
// what is fixed.
func (b *Budget) Promise(ram, checkpoint int64) {
	b.RAM = ram
	b.Checkpoints = Checkpoints(checkpoint, ram)
	b.KV += int64(b.Checkpoints) * checkpoint
	b.Runtime += PageTables(b.Dense + b.KV + b.Table)
}

// The prompt cache where nobody says its size: a part of the RAM budget, as its reciprocal, and at most so much.
const (
	cacheShare = 20
	cacheMost  = 8 << 30
)

// KeepPrompts sets Cache to so many bytes, CacheAuto: a share of the budget, as far as the smallest working set leaves room,
// or nothing where that does not hold two of the largest entries. It comes after Promise.
func (b *Budget) KeepPrompts(want, entry int64) {
	if b.Cache = want; want == CacheAuto {
		b.Cache = min(PromptCache(b.RAM), (b.RAM-b.Least())/513*512)
		if b.Cache < 2*entry {
			b.Cache = 0
		}
	}
	b.Runtime += PageTables(b.Cache)
}

// PromptCache is the most that a prompt cache takes of a RAM budget where nobody says its size.
func PromptCache(ram int64) int64 { return min(ram/cacheShare, cacheMost) }

// CacheAuto asks for a prompt cache whose size follows from the budget.
const CacheAuto = -1
