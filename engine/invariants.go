package engine

import (
	"fmt"

	"terrace/plan"
)

// What a build with the tag "invariants" checks after each step of a scheduler: slots, their memory, and the budget.

// broken ends the program: what follows would be built on it.
func broken(format string, a ...any) {
	panic("engine: an invariant does not hold: " + fmt.Sprintf(format, a...))
}

// consistent checks, on the scheduler's goroutine, what must hold between two steps.
func (s *Scheduler) consistent() {
	o, m := &s.e.opt, s.e.model
	steps, bytes := 0, s.pool.fixed
	at := map[*task]int{}
	for i, x := range s.slots {
		if x.steps < 0 || x.steps > stepsOf(o.Context) {
			broken("slot %d has %d pages of context, of %d that one can have", i, x.steps, stepsOf(o.Context))
		}
		steps += x.steps
		bytes += m.Committed(o.Context, min(x.steps*poolStep, o.Context), o.KeyType, o.ValType)
		t := x.task
		if t != nil {
			if j, ok := at[t]; ok {
				broken("task %d is at work in the slots %d and %d", t.id, j, i)
			}
			at[t] = i
			if t.leader != nil && (t.leader == x || t.led.id >= t.id) {
				broken("task %d waits for task %d in slot %d", t.id, t.led.id, t.leader.id)
			}
		}
		if x.away() { // another goroutine has what follows
			continue
		}
		if x.life == s.e.lives && x.state.Pos() != len(x.tokens) {
			broken("slot %d holds %d tokens, its sequence %d", i, len(x.tokens), x.state.Pos())
		}
		if len(x.tokens) > x.steps*poolStep {
			broken("slot %d holds %d tokens in %d pages of %d", i, len(x.tokens), x.steps, poolStep)
		}
	}
	if steps > s.pool.steps {
		broken("slots have %d pages of context, of %d", steps, s.pool.steps)
	}
	if bytes = min(bytes, s.e.budget.KV); bytes != s.pool.taken {
		broken("sequences take %d bytes, %d were asked for", bytes, s.pool.taken)
	}
	s.mu.Lock()
	for i, t := range s.queue {
		if j, ok := at[t]; ok || i > 0 && s.queue[i-1].id >= t.id {
			broken("task %d is number %d in the queue, behind older ones or at work (%t, slot %d)", t.id, i, ok, j)
		}
	}
	s.mu.Unlock()
	s.e.gov.consistent(bytes)
}

// returnedAll checks, after a pass and before anybody is told of its results, that experts were given back.
func (s *Scheduler) returnedAll() {
	if c := s.e.cache; c != nil && s.e.gpu == nil { // one of a device's own may be out at any time
		if n := c.Counters().Leased; n != 0 {
			broken("%d experts are lent after a pass", n)
		}
	}
}

// consistent checks that the arena and what sequences have taken stay within the budget in force.
func (g *governor) consistent(kv int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spare != g.plan.KV-kv {
		broken("the budget counts %d bytes of sequences, they take %d", g.plan.KV-g.spare, kv)
	}
	if g.c.now > g.c.budget && g.c.now > g.c.least || g.c.now < g.c.least {
		broken("a budget of %d bytes is in force, of %d; the least is %d", g.c.now, g.c.budget, g.c.least)
	}
	target, _ := g.arena.Arena()
	if most := max(g.c.now, g.c.least); g.plan.Fixed()-g.spare+plan.Mapped(target) > most {
		broken("an arena of %d bytes beside %d others, in a budget of %d", target, g.plan.Fixed()-g.spare, most)
	}
}
