package server

import (
	"container/list"
	"encoding/json"
	"fmt"
	"sync"

	"terrace/chat"
	"terrace/engine"
	"terrace/grammar"
	"terrace/sample"
)

// limits are what an answer must keep to; several answers may share them. The zero value allows everything.
type limits struct {
	g  *grammar.Grammar
	ix *grammar.Index
}

// limitMaker makes limits for one model. What a grammar learned of the vocabulary stays with it, so the grammars of late are
// kept: clients send one schema again and again. Half of most is for those that are kept, half for what those at work learn.
type limitMaker struct {
	most   int64
	slots  int
	once   sync.Once
	ix     *grammar.Index
	mu     sync.Mutex
	recent *list.List // of *kept, the latest first
}

// keptGrammars is how many are kept, learnLeast what one may learn however little memory there is, and learnMost how much is of
// use.
const (
	keptGrammars = 16
	learnLeast   = 1 << 20
	learnMost    = 16 << 20
)

type kept struct {
	key string
	g   *grammar.Grammar
}

// limit gives the grammar of a key, made anew if it is not there. What is made anew counts with the bodies of requests while c
// lasts.
func (l *limitMaker) limit(c *call, key string, parse func() (*grammar.Grammar, error)) (limits, error) {
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ix, l.recent = grammar.NewIndex(grammar.VocabOf(c.m.Engine.Tokenizer())), list.New()
		l.ix.Bound(int(min(max(l.most/2/int64(l.slots), learnLeast), learnMost)))
	})
	l.mu.Lock()
	for e := l.recent.Front(); e != nil; e = e.Next() {
		if k := e.Value.(*kept); k.key == key {
			l.recent.MoveToFront(e)
			l.mu.Unlock()
			return limits{k.g, l.ix}, nil
		}
	}
	l.mu.Unlock()
	g, err := parse()
	if err != nil {
		return limits{}, invalid("%s", err)
	}
	if _, err := g.New(l.ix); err != nil { // so that what it takes is known
		return limits{}, invalid("%s", err)
	}
	n := int64(g.Bytes())
	if err := c.s.gate.grow(n); err != nil {
		return limits{}, err
	}
	c.held += n
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent.PushFront(&kept{key, g})
	l.trim()
	return limits{g, l.ix}, nil
}

// trim gives up the grammars used longest ago that are too many, and answers what the others take. Callers hold mu.
func (l *limitMaker) trim() (bytes int64) {
	n := 0
	for e := l.recent.Front(); e != nil; {
		next := e.Next()
		size := int64(e.Value.(*kept).g.Bytes())
		if n++; n > keptGrammars || bytes+size > l.most/2 {
			l.recent.Remove(e)
		} else {
			bytes += size
		}
		e = next
	}
	return bytes
}

// bytes is what the kept grammars take, of which there are no more than may be.
func (l *limitMaker) bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recent == nil {
		return 0
	}
	return l.trim()
}

// over makes the chooser of a job from its sampler.
func (l limits) over(s *sample.Sampler) (engine.Chooser, error) {
	if l.g == nil {
		return s, nil
	}
	m, err := l.g.New(l.ix)
	if err != nil {
		return nil, invalid("%s", err)
	}
	return grammar.Constrain(s, m), nil
}

// textLimits are those of a plain completion.
func (c *call) textLimits(p *params) (limits, error) {
	if p.grammar != "" {
		return c.m.limits.limit(c, "gbnf "+p.grammar, func() (*grammar.Grammar, error) { return grammar.ParseGBNF(p.grammar) })
	}
	if p.schema != nil {
		return c.m.limits.limit(c, "schema "+string(p.schema), func() (*grammar.Grammar, error) { return grammar.FromSchema(p.schema, grammar.SchemaOptions{}) })
	}
	return limits{}, nil
}

// constraints are those of a chat's answer, which reader is to read: the calls that it may or must make, and what its visible
// text must be.
func (c *call) constraints(q *chatRequest, reader *chat.Parser) (limits, error) {
	t, family := c.m.Engine.Template(), reader.Family()
	o := grammar.ToolOptions{
		Required: q.choice == chooseRequired || q.choice == chooseNamed, Only: q.name, Parallel: q.parallel, InThoughts: reader.InReasoning(),
	}
	o.NoThoughts = !o.InThoughts && (q.conv.Continue || q.conv.EnableThinking != nil && !*q.conv.EnableThinking)
	switch {
	case q.p.grammar != "" && o.InThoughts && q.format != chat.ReasoningNone: // it is about what can be seen
		key, err := json.Marshal([]any{"gbnf answer", family, o, q.p.grammar})
		if err != nil {
			return limits{}, err
		}
		return c.m.limits.limit(c, string(key), func() (*grammar.Grammar, error) {
			g, err := grammar.ParseGBNF(q.p.grammar)
			if err != nil {
				return nil, err
			}
			return grammar.ForAnswer(t, family, g, o)
		})
	case q.p.grammar != "": // as it is, from the answer's first character on
		return c.textLimits(q.p)
	case q.active():
		key, err := json.Marshal([]any{"tools", family, o, q.conv.Tools, q.p.schema})
		if err != nil {
			return limits{}, err
		}
		return c.m.limits.limit(c, string(key), func() (*grammar.Grammar, error) {
			tools, err := c.callable(q.conv.Tools)
			if err != nil {
				return nil, err
			}
			if q.p.schema == nil || o.Required {
				return grammar.ForTools(t, family, tools, o)
			}
			g, err := grammar.FromSchema(q.p.schema, grammar.SchemaOptions{})
			if err != nil {
				return nil, err
			}
			return grammar.ForToolsOr(t, family, tools, g, o)
		})
	case q.p.schema != nil:
		key, err := json.Marshal([]any{"answer", family, o, q.p.schema})
		if err != nil {
			return limits{}, err
		}
		return c.m.limits.limit(c, string(key), func() (*grammar.Grammar, error) {
			g, err := grammar.FromSchema(q.p.schema, grammar.SchemaOptions{})
			if err != nil {
				return nil, err
			}
			return grammar.ForAnswer(t, family, g, o)
		})
	}
	return limits{}, nil
}

// callable are definitions whose schemas can all be enforced. One that cannot keeps its name, and its arguments may be any
// object: programs send what their own checks understand, and a tool is better called loosely than refused. Where a definition
// asks to be strict, the client is told instead.
func (c *call) callable(tools json.RawMessage) (json.RawMessage, error) {
	var list []map[string]json.RawMessage
	if json.Unmarshal(tools, &list) != nil {
		return tools, nil
	}
	changed := false
	for _, d := range list {
		var fn map[string]json.RawMessage
		if json.Unmarshal(d["function"], &fn) != nil || fn["parameters"] == nil {
			continue
		}
		if _, err := grammar.FromSchema(fn["parameters"], grammar.SchemaOptions{}); err != nil {
			if string(fn["strict"]) == "true" {
				return nil, fmt.Errorf("the strict tool %.80s: %w", fn["name"], err)
			}
			c.s.log.Warn("the arguments of a tool are not held to its schema", "tool", string(fn["name"]), "reason", err)
			fn["parameters"] = json.RawMessage(`{"type":"object","additionalProperties":true}`)
			d["function"], _ = json.Marshal(fn)
			changed = true
		}
	}
	if !changed {
		return tools, nil
	}
	return json.Marshal(list)
}
