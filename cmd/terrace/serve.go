package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"terrace/chat"
	"terrace/engine"
	"terrace/internal/host"
	"terrace/server"
)

// serveFlags are llama-server's, beside those that all commands share.
func serveFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "host", Value: "127.0.0.1", Usage: "`ADDRESS` to listen on, or the path of a Unix socket that ends with .sock"},
		&cli.IntFlag{Name: "port", Value: 8080, Usage: "port to listen on (0: any)"},
		&cli.IntFlag{Name: "parallel", Aliases: []string{"np"}, Value: -1, Usage: "requests decoded together, which share the positions of -c (-1: 4)"},
		&cli.StringFlag{Name: "alias", Aliases: []string{"a"}, Usage: "`NAME` of the model in replies, further ones behind commas (default: the file's name)"},
		&cli.StringSliceFlag{Name: "api-key", Usage: "`KEY` that requests must bring, several behind commas"},
		&cli.StringFlag{Name: "api-key-file", Usage: "`FILE` with a key a line"},
		&cli.StringFlag{Name: "api-prefix", Usage: "`PATH` in front of every route"},
		&cli.IntFlag{Name: "predict", Aliases: []string{"n", "n-predict"}, Value: -1, Usage: "tokens to generate at most where a request does not say (-1: no limit)"},
		&cli.StringFlag{Name: "samplers", Usage: "`NAMES` of the samplers in their order, between semicolons"},
		&cli.StringFlag{Name: "chat-template", Usage: "Jinja `SOURCE` in place of the file's template, or chatml"},
		&cli.StringFlag{Name: "chat-template-file", Usage: "`FILE` with the Jinja source"},
		&cli.StringFlag{Name: "chat-template-kwargs", Usage: "`JSON` object of further template variables"},
		&cli.StringFlag{Name: "reasoning-format", Value: "auto", Usage: "where thoughts go: auto, deepseek, deepseek-legacy or none"},
		&cli.IntFlag{Name: "reasoning-budget", Value: -1, Usage: "tokens of thinking at most (-1: no limit, 0: no thinking)"},
		&cli.StringFlag{Name: "reasoning", Aliases: []string{"rea"}, Value: "auto", Usage: "thinking: on, off or auto"},
		&cli.BoolFlag{Name: "ui", Aliases: []string{"webui"}, Value: true, Usage: "show a web page at / : chat, monitor, planner"},
		&cli.BoolFlag{Name: "no-ui", Aliases: []string{"no-webui"}, Usage: "do not"},
		&cli.BoolFlag{Name: "metrics", Usage: "answer GET /metrics"},
		&cli.BoolFlag{Name: "slots", Value: true, Usage: "answer GET /slots"},
		&cli.BoolFlag{Name: "no-slots", Usage: "do not answer GET /slots"},
		&cli.BoolFlag{Name: "props", Usage: "answer POST /props"},
		&cli.StringFlag{Name: "slot-save-path", Usage: "`FOLDER` where slots may be saved"},
		&cli.Float64Flag{Name: "slot-prompt-similarity", Aliases: []string{"sps"}, Value: 0.1, Usage: "share of a prompt that a slot must hold to be chosen for it"},
		&cli.BoolFlag{Name: "cache-prompt", Value: true, Usage: "go on from what a slot holds of a prompt"},
		&cli.BoolFlag{Name: "no-cache-prompt", Usage: "evaluate every prompt anew"},
		&cli.IntFlag{Name: "cache-ram", Aliases: []string{"cram"}, Value: -1, Usage: "MiB for prompts kept beside the slots (-1: 8192 or 5 % of the budget, the smaller; 0: none)"},
		&cli.StringFlag{Name: "cache-dir", Usage: "`FOLDER` where prompts are kept over a restart (default: prompts in Terrace's cache folder)"},
		&cli.StringFlag{Name: "cache-disk", Value: "auto", Usage: "`SIZE` that they may take there (auto: 16GiB or a tenth of what is free, the smaller; 0: none)"},
		&cli.IntFlag{Name: "timeout", Aliases: []string{"to"}, Value: 3600, Usage: "seconds without progress after which a request ends"},
		&cli.IntFlag{Name: "sse-ping-interval", Value: 30, Usage: "seconds of silence before a stream gets a comment line (-1: never)"},
		&cli.StringFlag{Name: "cors-origins", Usage: "`ORIGINS` whose pages may read replies, between commas (default: all)"},
		&cli.StringFlag{Name: "cors-methods", Usage: "`METHODS` told to a browser that asks"},
		&cli.StringFlag{Name: "cors-headers", Usage: "`HEADERS` told to a browser that asks"},
		&cli.BoolFlag{Name: "cors-credentials", Value: true, Usage: "let pages of other origins send credentials"},
		&cli.BoolFlag{Name: "no-cors-credentials", Usage: "do not"},
		&cli.BoolFlag{Name: "embeddings", Aliases: []string{"embedding"}, Usage: "answer embedding routes"},
		&cli.StringFlag{Name: "pooling", Usage: "how the vectors of tokens become a text's: none, mean, cls (the first), last (default: as the file says, else mean)"},
		&cli.BoolFlag{Name: "reranking", Aliases: []string{"rerank"}, Usage: "answer rerank routes"},
		&cli.BoolFlag{Name: "spm-infill", Usage: "infill: the suffix goes before the prefix"},
		&cli.BoolFlag{Name: "context-shift", Usage: "where the context is full, give up half of what is behind --keep, evaluate the rest anew and go on (default: the answer ends)"},
		&cli.BoolFlag{Name: "no-context-shift", Usage: "do not"},
		&cli.IntFlag{Name: "keep", Usage: "tokens at the beginning that a shift keeps, as n_keep of requests (-1: the prompt)"},
		&cli.StringFlag{Name: "grammar", Usage: "GBNF `TEXT` for requests that bring none"},
		&cli.StringFlag{Name: "json-schema", Aliases: []string{"j"}, Usage: "`JSON` schema for requests that bring none"},
	}
}

// ignored are flags of llama-server's that change nothing here, and why. Those in ignoredSwitches take no value.
var ignored = map[string]string{
	"flash-attn": "attention has one form", "threads-batch": "prompts use the threads of -t", "ubatch-size": "a pass has the tokens of -b",
	"threads-http": "each connection has its own", "cache-reuse": "parts behind a changed prefix are not shifted", "load-mode": "--store and --dense say how weights are read",
	"n-cpu-moe": "experts lie where --ram and --vram put them", "override-tensor": "experts lie where --ram and --vram put them",
	"lora": "adapters are not supported", "lora-scaled": "adapters are not supported", "numa": "not used",
	"path": "no files are served", "log-file": "redirect standard error", "mmproj": "the model takes text only", "model-draft": "there is no speculation",
	"draft-max": "there is no speculation", "draft-min": "there is no speculation", "draft-p-min": "there is no speculation", "ctx-size-draft": "there is no speculation",
	"gpu-layers-draft": "there is no speculation",
}

var ignoredAliases = map[string][]string{
	"flash-attn": {"fa"}, "threads-batch": {"tb"}, "ubatch-size": {"ub"}, "load-mode": {"lm"}, "n-cpu-moe": {"ncmoe"}, "override-tensor": {"ot"},
	"cpu-moe": {"cmoe"}, "cont-batching": {"cb"}, "no-cont-batching": {"nocb"}, "model-draft": {"md"}, "draft-max": {"draft", "draft-n"}, "draft-min": {"draft-n-min"},
	"ctx-size-draft": {"cd"}, "gpu-layers-draft": {"ngld"},
}

var ignoredSwitches = map[string]string{
	"no-jinja": "templates are always Jinja", "no-cont-batching": "it is always on",
	"no-mmap": "--store and --dense say how weights are read", "cpu-moe": "experts lie where --ram and --vram put them",
	"log-disable": "redirect standard error",
}

// granted are switches of llama-server's for what is so in any case.
var granted = []string{"jinja", "cont-batching", "mlock", "no-warmup"}

// ignoredFlags make the parser take what is ignored or granted.
func ignoredFlags(have []cli.Flag) []cli.Flag {
	taken := map[string]bool{}
	for _, f := range have {
		for _, n := range f.Names() {
			taken[n] = true
		}
	}
	var out []cli.Flag
	for _, name := range sortedNames(ignored) {
		if !taken[name] {
			out = append(out, &cli.StringFlag{Name: name, Aliases: ignoredAliases[name], Usage: "ignored: " + ignored[name], Hidden: true})
		}
	}
	for _, name := range sortedNames(ignoredSwitches) {
		if !taken[name] {
			out = append(out, &cli.BoolFlag{Name: name, Aliases: ignoredAliases[name], Usage: "ignored: " + ignoredSwitches[name], Hidden: true})
		}
	}
	for _, name := range granted {
		if !taken[name] {
			out = append(out, &cli.BoolFlag{Name: name, Aliases: ignoredAliases[name], Usage: "it is so in any case", Hidden: true})
		}
	}
	return out
}

func sortedNames(m map[string]string) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// twins are the environment variables of flags whose name is not LLAMA_ARG_ and the flag's.
var twins = map[string]string{
	"parallel": "LLAMA_ARG_N_PARALLEL", "gpu-layers": "LLAMA_ARG_N_GPU_LAYERS", "api-key": "LLAMA_API_KEY", "predict": "LLAMA_ARG_N_PREDICT",
	"batch-size": "LLAMA_ARG_BATCH", "ubatch-size": "LLAMA_ARG_UBATCH", "chat-template-kwargs": "LLAMA_CHAT_TEMPLATE_KWARGS", "metrics": "LLAMA_ARG_ENDPOINT_METRICS",
	"slots": "LLAMA_ARG_ENDPOINT_SLOTS", "props": "LLAMA_ARG_ENDPOINT_PROPS", "hf-token": "HF_TOKEN", "reasoning-format": "LLAMA_ARG_THINK",
	"reasoning-budget": "LLAMA_ARG_THINK_BUDGET", "path": "LLAMA_ARG_STATIC_PATH",
}

// twin is the environment variable that stands for a flag.
func twin(flag string) string {
	if v, ok := twins[flag]; ok {
		return v
	}
	return "LLAMA_ARG_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line does not, from their twins.
func fromEnvironment(c *cli.Context, e env) error {
	other := map[string]string{"model": "hf-repo", "hf-repo": "model"} // either says which model is meant
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		v := e.getenv(twin(name))
		if name == "help" || v == "" || c.IsSet(name) || other[name] != "" && c.IsSet(other[name]) {
			continue
		}
		if _, ok := f.(*cli.BoolFlag); ok {
			on, err := parseSwitch(v)
			if err != nil {
				return usagef("%s: %w", twin(name), err)
			}
			v = strconv.FormatBool(on)
		}
		if err := c.Set(name, v); err != nil {
			return usagef("%s: %w", twin(name), err)
		}
	}
	return nil
}

// parseSwitch reads what llama.cpp takes for a switch in the environment.
func parseSwitch(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "on", "enabled", "true", "yes":
		return true, nil
	case "0", "off", "disabled", "false", "no":
		return false, nil
	}
	return false, fmt.Errorf("%q is no switch, want on or off", s)
}

func serveCommand(e env) *cli.Command {
	flags := append(append(append(modelFlags(), samplingFlags()...), heatFlag(), stallFlag()), serveFlags()...)
	return &cli.Command{
		Name:  "serve",
		Usage: "answer HTTP as llama-server, OpenAI and Anthropic do",
		Description: "Flags are llama-server's where it has the same; each has a twin in the environment, LLAMA_ARG_ and its name\n" +
			"(LLAMA_ARG_CTX_SIZE, LLAMA_API_KEY), over which the command line wins. llama-server's other flags are taken and ignored.",
		Flags: append(flags, ignoredFlags(flags)...),
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("serve takes no argument, and %q is one; the model goes to -m FILE", c.Args().First())
			}
			return runServe(c.Context, c, e)
		},
	}
}

// What the server itself may hold counts in the RAM budget: bodies of requests, compiled grammars, and what is on its way to
// clients.
const (
	grammarsMost  = 128 << 20
	grammarsLeast = 4 << 20
	bodiesMost    = 256 << 20
	bodiesLeast   = 8 << 20
	repliesShare  = 16 << 20
)

func runServe(ctx context.Context, c *cli.Context, e env) error {
	if err := fromEnvironment(c, e); err != nil {
		return err
	}
	if c.Int("threads") < 0 {
		c.Set("threads", "0")
	}
	o, err := engineOptions(c, e)
	if err != nil {
		return err
	}
	if o.HeatDir, err = heatDir(c, e); err != nil {
		return err
	}
	if o.StallReport, err = stallReport(c); err != nil {
		return err
	}
	so, err := serverOptions(c, o.Log)
	if err != nil {
		return err
	}
	if o.Template, err = templateSource(c); err != nil {
		return err
	}
	// One sequence may have the whole of -c, as far as the model was made for it; all share as many positions.
	o.CapContext, o.Pool = true, o.Context
	if o.Context == 0 {
		o.Context = engine.ContextMost
	}
	if o.Slots = c.Int("parallel"); o.Slots == -1 {
		o.Slots = 4
	}
	if o.Slots < 1 {
		return usagef("--parallel is %d, want 1 or more, or -1", o.Slots)
	}
	so.MaxBodies = bodiesMost
	if o.RAM > 0 {
		so.MaxBodies = max(bodiesLeast, min(so.MaxBodies, o.RAM/16))
	}
	so.MaxGrammars = grammarsMost
	if o.RAM > 0 {
		so.MaxGrammars = max(grammarsLeast, min(so.MaxGrammars, o.RAM/64))
	}
	o.Reserve = so.MaxBodies + so.MaxGrammars + repliesShare
	sched := engine.SchedulerOptions{Slots: o.Slots, Similarity: c.Float64("slot-prompt-similarity"), SaveDir: c.String("slot-save-path"), Log: o.Log}
	if dir := sched.SaveDir; dir != "" {
		if st, err := os.Stat(dir); err != nil {
			return fmt.Errorf("--slot-save-path: %w", err)
		} else if !st.IsDir() {
			return usagef("--slot-save-path: %s is no folder", dir)
		}
	}
	cache, err := cacheOptions(c, e, &o)
	if err != nil {
		return err
	}
	o.SlotFiles = sched.SaveDir != ""
	so.OnReady = func(m *server.Model) {
		b := m.Engine.Budget()
		fmt.Fprintf(e.err, "terrace: ready: %d slots of %d tokens, room for %d of %d experts\n", m.Slots, m.Context, b.Slots, b.Experts)
	}
	s, err := server.New(so)
	if err != nil {
		return usageError{err}
	}
	for name, why := range ignored {
		if c.IsSet(name) {
			fmt.Fprintf(e.err, "terrace: --%s is ignored: %s\n", name, why)
		}
	}
	for name, why := range ignoredSwitches {
		if c.IsSet(name) {
			fmt.Fprintf(e.err, "terrace: --%s is ignored: %s\n", name, why)
		}
	}
	ln, err := listen(c.String("host"), c.Int("port"))
	if err != nil {
		return err
	}
	e.tell()
	fmt.Fprintf(e.err, "terrace: listening on %s, loading %s\n", shownAddress(ln.Addr()), o.Path)
	var model *server.Model
	var prompts *engine.PromptCache
	err = s.Serve(ctx, ln, func(ctx context.Context) (*server.Model, error) {
		eng, err := engine.Open(o)
		if err != nil {
			return nil, err
		}
		if eng.Budget().Cache > 0 {
			if prompts, err = eng.NewPromptCache(cache); err != nil {
				return nil, errors.Join(err, eng.Close())
			}
			sched.Cache = prompts
		}
		sc, err := eng.NewScheduler(sched)
		if err != nil {
			if prompts != nil {
				err = errors.Join(err, prompts.Close(ctx))
			}
			return nil, errors.Join(err, eng.Close())
		}
		eng.MeasureRates() // while nothing runs
		names := strings.Split(c.String("alias"), ",")
		model = &server.Model{Engine: eng, Scheduler: sc, Alias: names[0], Aliases: names[1:], Path: o.Path, Planner: &servedPlan{e: e, eng: eng, store: diskOf(c, e, o.Path)}}
		return model, nil
	})
	if model != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if e := model.Scheduler.Close(end); !errors.Is(e, context.DeadlineExceeded) {
			err = errors.Join(err, e)
		}
		if prompts != nil {
			err = errors.Join(err, prompts.Close(end))
		}
		err = errors.Join(err, model.Engine.Close())
	}
	return err
}

// cacheOptions reads the flags about prompts that are kept: their RAM goes to o, the rest is the cache's.
func cacheOptions(c *cli.Context, e env, o *engine.Options) (engine.PromptCacheOptions, error) {
	z := engine.PromptCacheOptions{Log: o.Log, Dir: c.String("cache-dir")}
	switch n := c.Int("cache-ram"); {
	case n < -1:
		return z, usagef("--cache-ram is %d, want at least 0 MiB, or -1", n)
	case n == -1:
		o.CacheRAM = engine.CacheAuto
	default:
		o.CacheRAM = int64(n) << 20
	}
	if dir := cacheDir(e); z.Dir == "" && dir != "" {
		z.Dir = filepath.Join(dir, "prompts")
	}
	if z.Dir == "" {
		return z, nil
	}
	if s := c.String("cache-disk"); s != "auto" {
		n, err := parseSize(s)
		if err != nil {
			return z, usagef("--cache-disk: %w", err)
		}
		if z.Disk = n; n == 0 {
			z.Dir = ""
		}
		return z, nil
	}
	z.Disk = engine.DefaultCacheDisk
	at := z.Dir
	for parent := filepath.Dir(at); parent != at; parent = filepath.Dir(at) { // the folder may have to be made
		if _, err := os.Stat(at); err == nil {
			break
		}
		at = parent
	}
	if free, err := host.DiskFree(at); err == nil {
		z.Disk = max(min(z.Disk, free/10), 1)
	}
	return z, nil
}

// serverOptions turns flags into what the server takes.
func serverOptions(c *cli.Context, log *slog.Logger) (server.Options, error) {
	o := server.Options{
		Prefix: c.String("api-prefix"), NoSlots: c.Bool("no-slots") || !c.Bool("slots"), NoPage: c.Bool("no-ui") || !c.Bool("ui"), Metrics: c.Bool("metrics"), Props: c.Bool("props"),
		Embed: c.Bool("embeddings"), Rerank: c.Bool("reranking"), SuffixFirst: c.Bool("spm-infill"), Shift: c.Bool("context-shift") && !c.Bool("no-context-shift"), SaveSlots: c.String("slot-save-path") != "", Build: version, Log: log,
		CORS: server.CORS{Methods: c.String("cors-methods"), Headers: c.String("cors-headers"), NoCredentials: c.Bool("no-cors-credentials") || !c.Bool("cors-credentials")},
	}
	var err error
	if o.Keys, err = apiKeys(c); err != nil {
		return o, err
	}
	for _, s := range strings.Split(c.String("cors-origins"), ",") {
		if s = strings.TrimSpace(s); s != "" {
			o.CORS.Origins = append(o.CORS.Origins, s)
		}
	}
	if s := c.String("pooling"); s != "" {
		p, ok := server.Poolings[s]
		if !ok {
			return o, usagef("--pooling is %q, want none, mean, cls or last", s)
		}
		o.Pooling = &p
	}
	if n := c.Int("timeout"); n < 1 {
		return o, usagef("--timeout is %d, want at least 1 second", n)
	}
	o.Timeout = time.Duration(c.Int("timeout")) * time.Second
	if n := c.Int("sse-ping-interval"); n < -1 || n == 0 {
		return o, usagef("--sse-ping-interval is %d, want at least 1 second, or -1", n)
	}
	o.Ping = time.Duration(c.Int("sse-ping-interval")) * time.Second
	d := &o.Defaults
	if d.Predict = c.Int("predict"); d.Predict < -1 || d.Predict == 0 {
		return o, usagef("--predict is %d, want at least 1, or -1 for no limit", d.Predict)
	}
	d.Sample = samplerParams(c)
	if s := c.String("samplers"); s != "" {
		if d.Sample.Samplers, err = server.Samplers(s); err != nil {
			return o, usagef("--samplers: %w", err)
		}
	}
	if err := d.Sample.Validate(); err != nil {
		return o, usageError{err}
	}
	d.StopLoops = c.Bool("stop-loops")
	d.Keep, d.NoCache, d.Grammar = c.Int("keep"), c.Bool("no-cache-prompt") || !c.Bool("cache-prompt"), c.String("grammar")
	if s := c.String("json-schema"); s != "" {
		if d.Schema = json.RawMessage(s); !json.Valid(d.Schema) {
			return o, usagef("--json-schema is no JSON")
		}
	}
	if o.Chat.Reasoning, err = chat.ReasoningByName(c.String("reasoning-format")); err != nil {
		return o, usagef("--reasoning-format: %w", err)
	}
	if n := c.Int("reasoning-budget"); n >= 0 {
		o.Chat.Budget = &n
	} else if n < -1 {
		return o, usagef("--reasoning-budget is %d, want -1 or more", n)
	}
	switch s := c.String("reasoning"); s {
	case "on", "auto":
	case "off":
		o.Chat.NoThink = true
	default:
		return o, usagef("--reasoning is %q, want on, off or auto", s)
	}
	if s := c.String("chat-template-kwargs"); s != "" {
		var m map[string]any
		if json.Unmarshal([]byte(s), &m) != nil || m == nil {
			return o, usagef("--chat-template-kwargs is no JSON object")
		}
		o.Chat.Kwargs = json.RawMessage(s)
	}
	return o, nil
}

// apiKeys are those of the flags and of the file.
func apiKeys(c *cli.Context) ([]string, error) {
	var keys []string
	for _, k := range c.StringSlice("api-key") {
		if k = strings.TrimSpace(k); k != "" {
			keys = append(keys, k)
		}
	}
	if c.IsSet("api-key") && len(keys) == 0 { // an unset variable, perhaps: nobody meant a server that is open
		return nil, usagef("--api-key is empty")
	}
	path := c.String("api-key-file")
	if path == "" {
		return keys, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--api-key-file: %w", err)
	}
	defer f.Close()
	n := len(keys)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k := strings.TrimSpace(lines.Text()); k != "" {
			keys = append(keys, k)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--api-key-file: %w", err)
	}
	if len(keys) == n {
		return nil, usagef("--api-key-file: %s holds no key", path)
	}
	return keys, nil
}

// templateSource is the chat template that flags give, "" for the file's.
func templateSource(c *cli.Context) (string, error) {
	if path := c.String("chat-template-file"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("--chat-template-file: %w", err)
		}
		return string(b), nil
	}
	s := c.String("chat-template")
	switch {
	case s == "chatml":
		return chat.ChatML, nil
	case s != "" && !strings.Contains(s, "{{") && !strings.Contains(s, "{%"):
		return "", usagef("--chat-template is %.40q, want Jinja source or chatml", s)
	}
	return s, nil
}

// listen opens the socket.
func listen(host string, port int) (net.Listener, error) {
	if strings.HasSuffix(host, ".sock") {
		return net.Listen("unix", host)
	}
	if port < 0 || port > 65535 {
		return nil, usagef("--port is %d, want 0 to 65535", port)
	}
	return net.Listen("tcp", net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)))
}

// shownAddress is where clients find the server.
func shownAddress(a net.Addr) string {
	if a.Network() == "unix" {
		return filepath.ToSlash(a.String())
	}
	return "http://" + a.String()
}
