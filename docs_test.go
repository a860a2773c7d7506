// The documentation is tried: every command of README.md and docs/ runs here, with the program that is built here.
package terrace_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// docPages are the pages whose commands must work as they are written.
func docPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"README.md"}, pages...)
}

// notRun lists, by page and first line, the blocks that are not run; each has a comment "not run: REASON" in its page.
var notRun = []string{
	"README.md: make test     # the tests",
	"README.md: make release  # into dist/",
	"docs/benchmarks.md: terrace bench synth qwen3-30b-a3b --quant q4_k_m --skew 0.7 --corr 0.5 -o qwen30.gguf",
	"docs/benchmarks.md: terrace bench peer -m qwen30.gguf --llama-bench ./llama-bench -t 2 --pairs 5 --prompt 512 --decode 64",
	"docs/benchmarks.md: bench/capped.sh 1000000000 /dev/vda terrace bench decode -m qwen30.gguf --lookahead 0,1,2,auto --expert-ram 25%,50%,90% --svg plot.svg",
	"docs/cli.md: terrace calibrate",
}

// block is a fenced block of a page.
type block struct {
	page, lang, why string // why it is not run, "" if it is
	line            int    // of its first line
	text            string
}

// commands is how many commands a block has: lines that are neither empty nor comments and go on no other, or those behind "$ ".
func (b *block) commands() int {
	n, goesOn := 0, false
	for _, l := range strings.Split(b.text, "\n") {
		l = strings.TrimSpace(l)
		if b.lang == "console" && strings.HasPrefix(l, "$ ") || b.lang == "sh" && l != "" && l[0] != '#' && !goesOn {
			n++
		}
		goesOn = strings.HasSuffix(l, "\\")
	}
	return n
}

var (
	fence  = regexp.MustCompile("^ *```([a-z]*)$")
	marked = regexp.MustCompile(`^ *<!-- not run: (.+) -->$`)
)

// blocksOf reads the fenced blocks of a page.
func blocksOf(t *testing.T, page string) (bs []block) {
	t.Helper()
	src, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var open *block
	why := ""
	for i, l := range strings.Split(string(src), "\n") {
		m := fence.FindStringSubmatch(l)
		switch {
		case open != nil && m != nil:
			if m[1] != "" {
				t.Errorf("%s:%d: a fence opens within another", page, i+1)
			}
			bs, open, why = append(bs, *open), nil, ""
		case open != nil:
			open.text += l + "\n"
		case m != nil:
			open = &block{page: page, lang: m[1], why: why, line: i + 2}
		case marked.MatchString(l):
			why = marked.FindStringSubmatch(l)[1]
		case strings.TrimSpace(l) != "":
			if why != "" {
				t.Errorf("%s:%d: a \"not run\" that is before no block", page, i+1)
			}
			if strings.HasPrefix(l, "    ") {
				t.Errorf("%s:%d: an indented block: fence it and name its language", page, i+1)
			}
		}
	}
	if open != nil {
		t.Errorf("%s: a fence stays open", page)
	}
	return bs
}

// TestDocs runs the commands. A sh block is given to bash as a whole. In a console block each line that begins with "$ " is a command
// and what follows is its output, where "..." stands for any text. "terrace serve" at the start of a block goes on in the background
// until the next one or the end of the page. At the end it says how many commands ran, and which did not and why.
func TestDocs(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the commands are tried on Linux")
	}
	if testing.Short() {
		t.Skip("builds the program")
	}
	var skipped []string
	var left tally // not run
	all := map[string][]block{}
	for _, page := range docPages(t) {
		for _, b := range blocksOf(t, page) {
			switch b.lang {
			case "sh", "console":
				if b.why != "" {
					first, _, _ := strings.Cut(b.text, "\n")
					skipped = append(skipped, page+": "+strings.TrimPrefix(first, "$ "))
					left.add(&b, b.why)
					continue
				}
				all[page] = append(all[page], b)
			case "json", "text", "go", "powershell":
			default:
				t.Errorf("%s:%d: a block of language %q", page, b.line, b.lang)
			}
		}
	}
	slices.Sort(skipped)
	want := slices.Sorted(slices.Values(notRun))
	if !slices.Equal(skipped, want) {
		t.Errorf("blocks that are not run:\n%s\nlisted here:\n%s", strings.Join(skipped, "\n"), strings.Join(want, "\n"))
	}

	program, tree := builtProgram(t), t.TempDir()
	copyTree(t, tree)
	hub := newDocHub(t, map[string]string{
		"Qwen3-30B-A3B-Q4_K_M.gguf": "testdata/tiny-moe-Q4_K.gguf",
		"Qwen3-30B-A3B-Q8_0.gguf":   "testdata/protocol-random/protocol-random.gguf",
	})
	environ := []string{
		"PATH=" + filepath.Dir(program) + ":" + os.Getenv("PATH"), "HF_ENDPOINT=" + hub, "GOPATH=" + goEnv(t, "GOPATH"), "GOMODCACHE=" + goEnv(t, "GOMODCACHE"), "GOCACHE=" + goEnv(t, "GOCACHE"),
		"GOFLAGS=" + os.Getenv("GOFLAGS"), "GOPROXY=" + goEnv(t, "GOPROXY"), "LANG=C.UTF-8", "TERM=dumb",
	}
	var ran tally
	var mu sync.Mutex
	t.Run("pages", func(t *testing.T) { // it ends when all of them have
		for _, page := range docPages(t) {
			home := t.TempDir() // the commands of a page follow each other; pages do not
			t.Run(page, func(t *testing.T) {
				t.Parallel()
				s := &shell{dir: tree, env: append([]string{"HOME=" + home, "XDG_CACHE_HOME=" + filepath.Join(home, "cache"), "TMPDIR=" + home}, environ...)}
				defer s.stop(t)
				for _, b := range all[page] {
					why := s.run(t, b)
					mu.Lock()
					if why != "" {
						left.add(&b, why)
					} else {
						ran.add(&b, "")
					}
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("run: %d commands in %d blocks of %d pages; not run: %d commands in %d blocks:\n%s",
		ran.commands, ran.blocks, len(docPages(t)), left.commands, left.blocks, strings.Join(left.why, "\n"))
	if ran.commands == 0 {
		t.Error("no command was run")
	}
}

// tally counts blocks and their commands.
type tally struct {
	blocks, commands int
	why              []string
}

func (z *tally) add(b *block, why string) {
	z.blocks++
	z.commands += b.commands()
	if why != "" {
		z.why = append(z.why, fmt.Sprintf("%s:%d: %s (%s)", b.page, b.line, strings.TrimSpace(b.text), why))
	}
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "terrace-docs")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "terrace"), "./cmd/terrace").CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// builtProgram builds the program once and gives its path.
func builtProgram(t *testing.T) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	builtDir = dir
	return filepath.Join(dir, "terrace")
}

var builtDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

// shell runs the blocks of one page.
type shell struct {
	dir    string
	env    []string
	addr   string // where the server that runs listens
	server *exec.Cmd
	said   bytes.Buffer // what the server printed
}

// run runs a block; a block that cannot be run here is left out and why answered.
func (s *shell) run(t *testing.T, b block) (why string) {
	t.Helper()
	at := fmt.Sprintf("%s:%d", b.page, b.line)
	if strings.Contains(b.text, "curl ") {
		if _, err := exec.LookPath("curl"); err != nil {
			return "there is no curl here"
		}
	}
	if b.lang == "sh" {
		if strings.HasPrefix(b.text, "terrace serve ") || b.text == "terrace serve\n" {
			s.serve(t, at, b.text)
			return ""
		}
		if out, err := s.bash(b.text); err != nil {
			t.Errorf("%s: %v\n%s\n%s", at, err, b.text, out)
		}
		return ""
	}
	for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
		cmd, want, _ := strings.Cut(part, "\n")
		got, err := s.bash(cmd)
		if strings.HasPrefix(want, "terrace: ") { // an error is shown
			err = nil
		}
		if pattern := outputPattern(want); err != nil || !pattern.MatchString(got) {
			t.Errorf("%s: %s (%v) printed\n%s\nand should\n%s", at, cmd, err, got, want)
		}
	}
	return ""
}

// outputPattern is what a shown output matches: "..." any text, a run of spaces any run of spaces.
func outputPattern(want string) *regexp.Regexp {
	p := regexp.QuoteMeta(strings.TrimSpace(want))
	p = strings.ReplaceAll(p, regexp.QuoteMeta("..."), `(?s:.*)`)
	p = regexp.MustCompile(` +`).ReplaceAllString(p, ` +`)
	return regexp.MustCompile(`^\s*` + p + `\s*$`)
}

// bash runs text; the server, if one runs, is met where it really listens.
func (s *shell) bash(text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if s.addr != "" {
		text = strings.ReplaceAll(text, "127.0.0.1:8080", s.addr)
	}
	c := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", text)
	c.Dir, c.Env, c.WaitDelay = s.dir, s.env, time.Second
	out, err := c.CombinedOutput()
	return string(out), err
}

// serve starts a server on a free port and waits until it has its model.
func (s *shell) serve(t *testing.T, at, text string) {
	t.Helper()
	s.stop(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	s.said.Reset()
	s.server = exec.Command("bash", "-c", "exec "+strings.TrimSpace(text))
	s.server.Dir, s.server.Env = s.dir, append(slices.Clone(s.env), "LLAMA_ARG_PORT="+port)
	s.server.Stdout, s.server.Stderr = &s.said, &s.said
	if err := s.server.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if r, err := http.Get("http://" + s.addr + "/health"); err == nil {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
	}
	s.stop(t)
	t.Fatalf("%s: %s has not answered within a minute:\n%s", at, text, s.said.String())
}

// stop ends the server as Ctrl-C does.
func (s *shell) stop(t *testing.T) {
	if s.server == nil {
		return
	}
	s.server.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- s.server.Wait() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		s.server.Process.Kill()
		t.Errorf("the server did not end within 30 s of an interrupt:\n%s", s.said.String())
	}
	s.server, s.addr = nil, ""
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// copyTree gives the commands a checkout of their own, so that what they write is not in this one: hard links where the file system has them.
func copyTree(t *testing.T, to string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dst := filepath.Join(to, path)
		switch {
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || path == "bin" || path == "dist"):
			return filepath.SkipDir
		case d.IsDir():
			return os.MkdirAll(dst, 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(dst, b, 0o644|d.Type().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
}
