package server

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"terrace/engine"
	"terrace/sample"
)

// Model is what a server serves once it is loaded. The server closes neither engine nor scheduler.
type Model struct {
	Engine    *engine.Engine
	Scheduler *engine.Scheduler
	Alias     string   // the name in replies; "": the file's
	Aliases   []string // further names
	Path      string   // the file's, as shown
	Planner   Planner  // for GET /v1/plan; nil: it answers 501

	Slots   int // filled in by the server
	Context int // tokens of a slot's window, likewise

	limits limitMaker
	dry    struct {
		mu  sync.Mutex
		key string
		b   *sample.Breakers
	}
	facts facts
}

// facts are what routes tell of the file.
type facts struct {
	params, size uint64
	ftype        string
	vocabType    int
}

// complete fills in what the server needs to know.
func (m *Model) complete() error {
	if m.Engine == nil || m.Scheduler == nil {
		panic("server: ready without an engine or a scheduler")
	}
	f := m.Engine.File()
	if m.Path == "" {
		m.Path = f.Path
	}
	if m.Alias == "" {
		m.Alias = filepath.Base(m.Path)
	}
	m.Slots, m.Context = len(m.Scheduler.Slots()), m.Engine.Options().Context
	for i := range f.Tensors {
		m.facts.params += f.Tensors[i].Elements()
	}
	for _, s := range f.Shards {
		m.facts.size += uint64(s.Size - s.DataStart)
	}
	n, err := f.Metadata.UintOr("general.file_type", 0)
	if err != nil {
		return err
	}
	m.facts.ftype = fileType(n)
	kind, err := f.Metadata.StringOr("tokenizer.ggml.model", "")
	if err != nil {
		return err
	}
	m.facts.vocabType = map[string]int{"llama": 1, "gpt2": 2, "gemma4": 2}[kind]
	return nil
}

// fileTypes are the names of general.file_type.
var fileTypes = map[uint64]string{
	0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium",
	13: "Q3_K - Large", 14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium", 18: "Q6_K", 19: "IQ2_XXS - 2.0625 bpw",
	20: "IQ2_XS - 2.3125 bpw", 21: "Q2_K - Small", 22: "IQ3_XS - 3.3 bpw", 23: "IQ3_XXS - 3.0625 bpw", 24: "IQ1_S - 1.5625 bpw", 25: "IQ4_NL - 4.5 bpw",
	26: "IQ3_S - 3.4375 bpw", 27: "IQ3_S mix - 3.66 bpw", 28: "IQ2_S - 2.5 bpw", 29: "IQ2_M - 2.7 bpw", 30: "IQ4_XS - 4.25 bpw",
	31: "IQ1_M - 1.75 bpw", 32: "BF16", 36: "TQ1_0 - 1.69 bpw ternary", 37: "TQ2_0 - 2.06 bpw ternary", 38: "MXFP4 MoE",
}

func fileType(n uint64) string {
	if s, ok := fileTypes[n]; ok {
		return s
	}
	return fmt.Sprintf("file type %d", n)
}

// fingerprint is OpenAI's system_fingerprint.
func (s *Server) fingerprint() string { return "terrace-" + s.opt.Build }

// models answers GET /v1/models.
func models(c *call) error {
	m := c.m
	cfg := m.Engine.Model().Config()
	aliases := append([]string{m.Alias}, m.Aliases...)
	capabilities := []string{"completion"}
	if c.s.opt.Embed {
		capabilities = append(capabilities, "embedding")
	}
	return c.json(map[string]any{
		"object": "list",
		"data": []any{map[string]any{
			"id": m.Alias, "aliases": aliases, "tags": []string{}, "object": "model", "created": c.s.born.Unix(), "owned_by": "terrace",
			"meta": map[string]any{
				"vocab_type": m.facts.vocabType, "n_vocab": cfg.Vocab, "n_ctx": m.Context, "n_ctx_train": cfg.Context, "n_embd": cfg.Embd,
				"n_params": m.facts.params, "size": m.facts.size, "ftype": m.facts.ftype,
			},
		}},
		"models": []any{map[string]any{
			"name": m.Alias, "model": m.Alias, "type": "model", "capabilities": capabilities, "modified_at": "", "size": "", "digest": "",
			"description": "", "tags": []string{""}, "parameters": "",
			"details": map[string]any{"format": "gguf", "family": "", "families": []string{""}, "parameter_size": "", "quantization_level": "", "parent_model": ""},
		}},
	})
}

// props answers GET /props.
func props(c *call) error {
	m, s := c.m, c.s
	p, err := c.params(&fields{}, false)
	if err != nil {
		return err
	}
	t, tmpl := m.Engine.Tokenizer(), m.Engine.Template()
	caps := tmpl.Caps()
	text := func(id int32) string {
		if id < 0 {
			return ""
		}
		return t.Text(id)
	}
	abs, err := filepath.Abs(m.Path)
	if err != nil || strings.Contains(m.Path, "://") {
		abs = m.Path
	}
	b := m.Engine.Budget()
	return c.json(map[string]any{
		"default_generation_settings": map[string]any{"params": p.settings(p.sample.Seed), "n_ctx": m.Context},
		"total_slots":                 m.Slots, "model_alias": m.Alias, "model_path": abs, "model_ftype": m.facts.ftype,
		"chat_template": tmpl.Source(),
		"chat_template_caps": map[string]bool{
			"supports_tools": caps.Tools, "supports_tool_calls": caps.ToolCalls, "supports_parallel_tool_calls": caps.ParallelCalls,
			"supports_system_role": caps.System, "supports_thinking": caps.Thinking, "requires_typed_content": caps.TypedContent,
			"supports_object_arguments": !caps.StringCalls,
		},
		"bos_token": text(t.BOS()), "eos_token": text(t.EOS()),
		"modalities":     map[string]bool{"vision": false, "audio": false, "video": false},
		"endpoint_slots": !s.opt.NoSlots, "endpoint_props": s.opt.Props, "endpoint_metrics": s.opt.Metrics,
		"build_info": s.fingerprint(), "is_sleeping": false, "ui": !s.opt.NoPage, "ui_settings": map[string]any{}, "cors_proxy_enabled": false,
		"terrace": map[string]any{
			"n_ctx_train": m.Engine.Model().Config().Context,
			"ram":         b.RAM, "ram_now": b.Now, "dense_bytes": b.Dense, "kv_bytes": b.KV, "arena_bytes": b.Arena, "slots": b.Slots, "experts": b.Experts,
		},
	})
}
