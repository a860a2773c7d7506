package server

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"terrace/engine"
)

// slots answers GET /slots.
func slots(c *call) error {
	if c.s.opt.NoSlots {
		return unsupported("this server does not show its slots: start it without --no-slots")
	}
	infos := c.m.Scheduler.Slots()
	if v := c.r.URL.Query().Get("fail_on_no_slot"); v != "" && v != "0" {
		idle := 0
		for _, i := range infos {
			if !i.Processing {
				idle++
			}
		}
		if idle == 0 {
			return unavailable(1, "no slot available: all %d are at work", len(infos))
		}
	}
	out := make([]map[string]any, len(infos))
	for k, i := range infos {
		o := map[string]any{"id": i.ID, "n_ctx": i.Context, "speculative": false, "is_processing": i.Processing}
		if j, ok := i.Info.(*job); ok {
			o["id_task"] = i.TaskID
			o["n_prompt_tokens"], o["n_prompt_tokens_processed"], o["n_prompt_tokens_cache"] = i.PromptTokens, i.Processed, i.Cached
			o["params"] = j.p.settings(j.seed)
			o["next_token"] = []any{map[string]any{
				"has_next_token": i.Processing, "has_new_line": j.newline.Load(), "n_remain": i.Remain, "n_decoded": i.Decoded,
			}}
		}
		out[k] = o
	}
	return c.json(out)
}

// slotAction answers POST /slots/{id}?action=...
func slotAction(c *call) error {
	if !c.s.opt.SaveSlots {
		return unsupported("slots are saved nowhere: start the server with --slot-save-path")
	}
	id, err := strconv.Atoi(c.id)
	if err != nil {
		return invalid("slot id is %.40q, want an integer", c.id)
	}
	if n := c.m.Slots; id < 0 || id >= n {
		return invalid("slot id is %d, want 0 to %d", id, n-1)
	}
	action := c.r.URL.Query().Get("action")
	switch action {
	case "erase":
		file, err := c.m.Scheduler.EraseSlot(c.ctx, id)
		if err != nil {
			return slotError(err)
		}
		return c.json(map[string]any{"id_slot": id, "n_erased": file.Tokens})
	case "save", "restore":
	default:
		return invalid("action is %.40q, want save, restore or erase", action)
	}
	f, err := c.fields()
	if err != nil {
		return err
	}
	name := f.str("filename", "")
	if f.err == nil {
		f.err = checkFileName(name)
	}
	if f.err != nil {
		return f.err
	}
	if action == "save" {
		file, err := c.m.Scheduler.SaveSlot(c.ctx, id, name)
		if errors.Is(err, engine.ErrState) { // nothing to save
			return invalid("%s", err)
		}
		if err != nil {
			return slotError(err)
		}
		return c.json(map[string]any{"id_slot": id, "filename": name, "n_saved": file.Tokens, "n_written": file.Bytes, "timings": map[string]float64{"save_ms": ms(file.Elapsed)}})
	}
	file, err := c.m.Scheduler.RestoreSlot(c.ctx, id, name)
	if err != nil {
		return restoreError(err)
	}
	return c.json(map[string]any{"id_slot": id, "filename": name, "n_restored": file.Tokens, "n_read": file.Bytes, "timings": map[string]float64{"restore_ms": ms(file.Elapsed)}})
}

// slotError words what the scheduler says about a slot or its file.
func slotError(err error) error {
	switch {
	case errors.Is(err, engine.ErrNotOn), errors.Is(err, engine.ErrUnsupported):
		return unsupported("%s", err)
	case errors.Is(err, engine.ErrNoSlot):
		return invalid("%s", err)
	}
	return err
}

// restoreError does so for a file to be restored: one that is missing, damaged or another model's is the client's fault.
func restoreError(err error) error {
	err = slotError(err)
	if errors.Is(err, engine.ErrState) || errors.Is(err, fs.ErrNotExist) {
		return invalid("%s", err)
	}
	return err
}

// checkFileName refuses what is no plain name of a file, on any system.
func checkFileName(name string) error {
	switch {
	case name == "":
		return invalid("filename is empty")
	case len(name) > 255:
		return invalid("filename has %d bytes, at most 255 are taken", len(name))
	case strings.ContainsAny(name, `/\:*?"<>|`), strings.Contains(name, ".."):
		return invalid("filename %.80q holds a character that is not allowed: / \\ : * ? \" < > | or two dots", name)
	case strings.TrimSpace(name) != name, strings.HasSuffix(name, "."), name == ".":
		return invalid("filename %.80q begins or ends with a space, or ends with a dot", name)
	}
	for _, r := range name {
		if r < 0x20 || r == 0x7f || r == 0xfffd || r >= 0x80 && r < 0xa0 {
			return invalid("filename %.80q holds a control character", name)
		}
	}
	return nil
}

// watched are the answers of chats that a client may steer while they run, by the id of the reply.
type watched struct {
	mu   sync.Mutex
	jobs map[string][]*job
}

// watch enters a reply; the returned function takes it out.
func (s *Server) watch(id string, jobs []*job) func() {
	if jobs[0].think == nil {
		return func() {}
	}
	s.watched.mu.Lock()
	defer s.watched.mu.Unlock()
	s.watched.jobs[id] = jobs
	return func() {
		s.watched.mu.Lock()
		delete(s.watched.jobs, id)
		s.watched.mu.Unlock()
	}
}

// control answers POST /v1/chat/completions/control.
func control(c *call) error {
	f, err := c.fields()
	if err != nil {
		return err
	}
	id, action := f.str("id", ""), f.str("action", "")
	if f.err == nil && id == "" {
		f.fail("id is not given")
	}
	if f.err == nil && action != "reasoning_end" {
		f.fail("action is %.40q, want reasoning_end", action)
	}
	if f.err != nil {
		return f.err
	}
	c.s.watched.mu.Lock()
	jobs := c.s.watched.jobs[id]
	c.s.watched.mu.Unlock()
	for _, j := range jobs {
		j.think.endThinking()
	}
	return c.json(map[string]bool{"success": len(jobs) > 0})
}

// adapters answers GET /lora-adapters: there are none.
func adapters(c *call) error { return c.json([]any{}) }

// setAdapters answers POST /lora-adapters.
func setAdapters(c *call) error {
	if k := kindOf(c.body); k != "array" {
		return invalid("the body is a JSON %s, want an array of {id, scale}", k)
	}
	if err := c.shape(); err != nil {
		return err
	}
	f, err := parseObject([]byte(`{"adapters":` + string(c.body) + `}`))
	if err != nil {
		return err
	}
	if n := len(f.array("adapters")); f.err == nil && n > 0 {
		f.fail("%d adapters are named, and none is loaded", n)
	}
	if f.err != nil {
		return f.err
	}
	return c.json(map[string]bool{"success": true})
}

// setProps answers POST /props.
func setProps(c *call) error {
	if !c.s.opt.Props {
		return unsupported("properties cannot be changed: start the server with --props")
	}
	return c.json(map[string]bool{"success": true})
}
