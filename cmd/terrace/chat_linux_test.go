package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"terrace/engine"
)

// mainVar has the test binary be the program.
const mainVar = "TERRACE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// terminal is the program at a pseudo terminal.
type terminal struct {
	t    *testing.T
	keys *os.File
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	seen int // bytes that expect has gone past
	done chan struct{}
}

// patience is how long anything may take.
const patience = 30 * time.Second

// open starts the program with a terminal of 80 columns.
func open(t *testing.T, home string, environ []string, args ...string) *terminal {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	fd := int(keys.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	x := &terminal{t: t, keys: keys, done: make(chan struct{})}
	x.size(80, 24)
	x.cmd = exec.Command(os.Args[0], args...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.Env = append([]string{mainVar + "=1", "HOME=" + home, "TERM=xterm-256color", "PATH=" + os.Getenv("PATH")}, environ...)
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.cmd.Process.Kill()
		keys.Close()
	})
	go func() {
		defer close(x.done)
		b := make([]byte, 4096)
		for {
			n, err := keys.Read(b)
			x.mu.Lock()
			x.out.Write(b[:n])
			x.mu.Unlock()
			if err != nil { // EIO when the program is gone
				return
			}
		}
	}()
	return x
}

func (x *terminal) size(w, h uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: w, Row: h}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) typed(s string) {
	x.t.Helper()
	if _, err := x.keys.WriteString(s); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

var escape = regexp.MustCompile(`\x1b(\[[0-9;?<>=$]*[ -/]*[a-zA-Z]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-Z]|[=>78MPc])`)

// expect waits for a text behind the one that was expected before.
func (x *terminal) expect(want string) {
	x.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		all := escape.ReplaceAllString(x.text(), "")
		if i := strings.Index(all[min(x.seen, len(all)):], want); i >= 0 {
			x.seen += i + len(want)
			return
		}
		select {
		case <-x.done:
			end = time.Time{}
		default:
		}
		if time.Now().After(end) {
			x.t.Fatalf("%q does not come; the terminal has\n%q", want, all[min(x.seen, len(all)):])
		}
	}
}

// until presses a key over and over, as a person does who is told to wait, until something is so. Enter in an empty editor does nothing.
func (x *terminal) until(key, what string, so func() bool) {
	x.t.Helper()
	for end := time.Now().Add(patience); ; {
		x.typed(key)
		for pause := time.Now().Add(300 * time.Millisecond); time.Now().Before(pause); time.Sleep(10 * time.Millisecond) {
			if so() {
				return
			}
		}
		if time.Now().After(end) {
			x.t.Fatalf("%s does not come; the terminal has\n%q", what, x.text())
		}
	}
}

// enter sends what was typed, as soon as it may be sent, which a text shows that was not there before.
func (x *terminal) enter(want string) {
	x.t.Helper()
	x.until("\r", want, func() bool {
		all := escape.ReplaceAllString(x.text(), "")
		i := strings.Index(all[min(x.seen, len(all)):], want)
		if i >= 0 {
			x.seen += i + len(want)
		}
		return i >= 0
	})
}

// leave presses a key until the program has ended.
func (x *terminal) leave(key string) {
	x.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		// Once the editor has given the terminal back, Ctrl-C would be a signal to a program that is saving.
		if text := x.text(); strings.LastIndex(text, "\x1b[?2004h") >= strings.LastIndex(text, "\x1b[?2004l") {
			_, _ = x.keys.WriteString(key) // it fails when nobody reads any more
		}
		select {
		case <-x.done:
			x.wait(exitOK)
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
	x.t.Fatalf("%q does not end it; the terminal has\n%q", key, x.text())
}

// wait waits for the end of the program.
func (x *terminal) wait(want int) {
	x.t.Helper()
	ended := make(chan struct{})
	go func() { x.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		x.t.Fatalf("the program does not end; the terminal has\n%q", x.text())
	}
	<-x.done
	if code := x.cmd.ProcessState.ExitCode(); code != want {
		x.t.Fatalf("exit %d, want %d; the terminal has\n%q", code, want, x.text())
	}
}

var chatArgs = []string{"chat", "-m", tinyMoE, "--temp", "0", "--expert-ram", "30%"}

// replies sends what was typed and waits until so many replies were made, by their statistics.
func (x *terminal) replies(file string, n int) {
	x.t.Helper()
	x.until("\r", fmt.Sprintf("reply %d", n), func() bool {
		b, err := os.ReadFile(file)
		return err == nil && bytes.Count(b, []byte("\n")) >= n
	})
}

func lastStats(t *testing.T, file string) (all []engine.Stats) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(b)); d.More(); {
		var st engine.Stats
		if err := d.Decode(&st); err != nil {
			t.Fatal(err)
		}
		all = append(all, st)
	}
	return all
}

// TestChatScreen: an answer, the status, completion, history, a new size, a paste, commands, the end; and only what is new is
// evaluated in later turns, also after a restart.
func TestChatScreen(t *testing.T) {
	home := t.TempDir()
	stats := filepath.Join(home, "stats.json")
	args := append(chatArgs, "--stats", "json", "--stats-file", stats)
	x := open(t, home, nil, args...)
	x.expect("/help lists")
	x.typed("What is the capital of France?\r")
	x.expect("Paris")
	x.replies(stats, 1)
	x.size(60, 20)
	x.typed("/sta\t")
	x.enter("tiers ")
	x.typed("\x1b[200~" + strings.Repeat("one more line\r", 49) + "the last line\x1b[201~")
	x.expect("the last line")
	x.enter("and 38 lines more")
	x.expect("tokens/s")
	x.typed("\x03")
	x.expect("(stopped)")
	x.typed("/undo")
	x.enter("taken back")
	x.typed("\x03") // the editor is emptied
	x.typed("\x1b[A\x1b[A")
	x.typed("\x03")
	x.typed("And of Italy?")
	x.replies(stats, 3)
	x.typed("/nothing")
	x.enter("unknown command /nothing")
	x.typed("/save trip")
	x.enter("saved 4 messages as trip, with")
	x.typed("/bye")
	x.leave("\r")

	all := lastStats(t, stats)
	if len(all) != 3 {
		t.Fatalf("statistics of %d replies, want 3", len(all))
	}
	if a, b := all[0], all[2]; b.PromptCached < a.PromptTokens+a.PredictedTokens-2 {
		t.Errorf("of the %d tokens after %d and %d, %d were kept", b.PromptTokens, a.PromptTokens, a.PredictedTokens, b.PromptCached)
	}

	x = open(t, home, nil, args...)
	x.expect("/help lists")
	x.typed("/load tr\t")
	x.enter("loaded 4 messages")
	x.expect("memory of")
	x.typed("Thank you.")
	x.replies(stats, 4)
	x.leave("\x03")
	all = lastStats(t, stats)
	if a, b := all[2], all[len(all)-1]; len(all) != 4 || b.PromptCached < a.PromptTokens+a.PredictedTokens-2 {
		t.Errorf("after a restart, of %d tokens %d were kept, %d were there", b.PromptTokens, b.PromptCached, a.PromptTokens+a.PredictedTokens)
	}

	// Without the state file, the prompt cache has it; a damaged conversation is refused and the chat goes on.
	saved := filepath.Join(home, ".local/state/terrace/chats/trip")
	if err := os.Remove(saved + ".state"); err != nil {
		t.Fatal(err)
	}
	x = open(t, home, nil, append(args, "--load", "trip")...)
	x.expect("prompt cache")
	x.typed("Thank you.")
	x.replies(stats, 5)
	b, err := os.ReadFile(saved + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(saved+".json", bytes.Replace(b, []byte("Paris"), []byte("Parma"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	x.typed("/load trip")
	x.enter("its content has the checksum")
	x.typed("/temp")
	x.enter("the temperature is 0")
	x.leave("\x04")
	all = lastStats(t, stats)
	if a, b := all[2], all[len(all)-1]; len(all) != 5 || b.PromptCached < a.PromptTokens+a.PredictedTokens-2 {
		t.Errorf("from the prompt cache, of %d tokens %d were kept, %d were there", b.PromptTokens, b.PromptCached, a.PromptTokens+a.PredictedTokens)
	}
}

// TestChatStops: Ctrl-C ends a reply, not the conversation; SIGTERM ends the program and leaves the terminal as it was.
func TestChatStops(t *testing.T) {
	x := open(t, t.TempDir(), nil, append(chatArgs, "--ignore-eos")...)
	x.expect("/help lists")
	x.typed("Who are you?\r")
	x.expect("tokens/s")
	x.typed("\x03")
	x.expect("(stopped)")
	x.typed("/undo")
	x.enter("taken back")
	x.cmd.Process.Signal(syscall.SIGTERM)
	x.wait(exitFailure)
	if !strings.Contains(x.text(), "\x1b[?2004l") {
		t.Errorf("pastes stay marked after the end: %q", x.text())
	}
}

// TestChatFull: where the context is full a reply is cut, and the next turn leaves out what is oldest.
func TestChatFull(t *testing.T) {
	x := open(t, t.TempDir(), nil, append(chatArgs, "--ignore-eos", "-c", "96")...)
	x.expect("context of 96 tokens")
	x.typed("Who are you?\r")
	x.expect("the context of 96 tokens is full and the reply is cut")
	x.typed("What is the capital of France?")
	x.enter("are left out")
	x.expect("Paris")
	x.expect("reply is cut")
	x.typed("\x1b[200~" + strings.Repeat("far too long ", 100) + "\x1b[201~")
	x.enter("the context holds 96")
	x.leave("\x04")
}

// colours are attributes other than none.
var colours = regexp.MustCompile(`\x1b\[[0-9;:]*[1-9][0-9;:]*m`)

func TestChatPlain(t *testing.T) {
	x := open(t, t.TempDir(), []string{"TERM=dumb"}, append(chatArgs, "--ignore-eos", "-n", "900")...)
	x.expect("> ")
	x.typed("What is the capital of France?\n")
	x.expect("Paris")
	x.typed("\x03")
	x.expect("(stopped)")
	x.expect("> ")
	x.typed("\"\"\"\nWho\nare you?\"\"\"\n")
	x.expect("... ")
	x.expect("> ")
	x.typed("/think maybe\n")
	x.expect("want on, off")
	x.typed("\x03")
	x.expect("Ctrl-C again")
	x.typed("\x03")
	x.wait(exitOK)
	if strings.Contains(x.text(), "\x1b") {
		t.Errorf("escape codes on a dumb terminal: %q", x.text())
	}

	x = open(t, t.TempDir(), []string{"NO_COLOR=1"}, chatArgs...)
	x.expect("/help lists")
	x.typed("What is the capital of France?\r")
	x.expect("Paris")
	x.expect("tokens/s")
	x.leave("\x04")
	if c := colours.FindString(x.text()); c != "" {
		t.Errorf("%q in spite of NO_COLOR: %q", c, x.text())
	}

	x = open(t, t.TempDir(), nil, chatArgs...) // and with colours, so that the test could fail
	x.expect("/help lists")
	x.leave("\x04")
	if !colours.MatchString(x.text()) {
		t.Errorf("no colours at all: %q", x.text())
	}
}

func TestChatPiped(t *testing.T) {
	code, out, errs := terrace("What is the capital of France?\n\n/temp 0\nWho are you?\n", append(chatArgs, "--no-think")...)
	if code != exitOK || strings.Count(out, "\n") != 2 || !strings.Contains(out, "Paris") || strings.Contains(out+errs, "\x1b") {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	for args, want := range map[string]string{"/nothing\n": "unknown command", "/load\n": "nowhere to keep", "/file /\n": "no file"} {
		if code, out, errs := terrace(args, chatArgs...); code != exitFailure || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, want) {
			t.Errorf("%q: exit %d, %q, %q", args, code, out, errs)
		}
	}
	if code, _, errs := terrace("", "run", "-m", tinyMoE, "--load", "x", "Hello"); code != exitUsage || !strings.Contains(errs, "--load") {
		t.Errorf("--load with a prompt: exit %d, %q", code, errs)
	}
}

// TestTmux looks at the conversation as a terminal shows it, where there is a tmux.
func TestTmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("no tmux")
	}
	cmd := exec.Command("testdata/tmux.sh", filepath.Join(t.TempDir(), "terrace"), tinyMoE)
	if err := os.WriteFile(cmd.Args[1], []byte(fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", mainVar, testBinary(t))), 0o755); err != nil {
		t.Fatal(err)
	}
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, b)
	}
}

func testBinary(t *testing.T) string {
	t.Helper()
	p, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	return p
}
