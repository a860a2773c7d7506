package chatui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"terrace/chat"
	"terrace/engine"
	"terrace/sample"
)

const model = "../testdata/tiny-moe-Q4_K.gguf"

// talking opens the demo model for a conversation.
func talking(t *testing.T, positions int, change func(*Options)) *talk {
	t.Helper()
	e, err := engine.Open(engine.Options{Path: model, Context: positions, ExpertRAM: engine.ExpertBudget{Percent: 40}, SlotFiles: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	s, err := e.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p := sample.Defaults(1)
	p.Temp, p.Vocab, p.EOG = 0, e.Model().Config().Vocab, e.Tokenizer().EOG()
	o := &Options{Engine: e, Session: s, Params: p, Name: "tiny", Dir: t.TempDir(), In: strings.NewReader(""), Out: io.Discard, Err: io.Discard,
		Explain: func(*engine.Stats) string { return "explained" }}
	if change != nil {
		change(o)
	}
	return newTalk(o)
}

type quietly struct{ notes []string }

func (q *quietly) begin(int)           {}
func (q *quietly) note(s string)       { q.notes = append(q.notes, s) }
func (q *quietly) grow(string, string) {}

func ask(t *testing.T, k *talk, text string) (string, []string) {
	t.Helper()
	k.say(text)
	q := &quietly{}
	z, err := k.reply(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return k.msgs[len(k.msgs)-1].Content, append(q.notes, z.notes...)
}

// TestOnlyNewTokens: a turn evaluates what it adds, whatever tokens the model chose for its replies. At a high temperature they
// are often not those that the reply's text would be cut into.
func TestOnlyNewTokens(t *testing.T) {
	k := talking(t, 1024, func(o *Options) {
		o.Params.Temp, o.Params.TopK, o.Params.TopP, o.Params.MinP, o.Params.Seed, o.Max = 3, 0, 1, 0, 7, 24
	})
	other := 0
	for i := range 5 {
		had := 0
		if i > 0 {
			had = k.last.PromptTokens + k.last.PredictedTokens
		}
		ask(t, k, "Tell me about the capital of France.")
		if had > 0 && k.last.PromptCached < had-2 {
			t.Errorf("turn %d: %d of %d tokens were kept, %d were there", i, k.last.PromptCached, k.last.PromptTokens, had)
		}
		m := k.marks[len(k.marks)-1]
		if anew := k.eng.Tokenizer().Encode(nil, m.text, true, true); !slices.Equal(anew, m.ids) {
			other++
		}
	}
	if other == 0 {
		t.Error("all replies are cut into the tokens that the model chose: the test shows nothing")
	}
}

func TestContextFull(t *testing.T) {
	k := talking(t, 128, func(o *Options) { o.Max = 16 })
	said := false
	for range 8 {
		text, notes := ask(t, k, "What is the capital of France?")
		if !strings.Contains(text, "Paris") {
			t.Fatalf("the reply is %q", text)
		}
		for _, n := range notes {
			said = said || strings.Contains(n, "left out") && strings.Contains(n, "128")
		}
	}
	if !said || k.skip == 0 || k.skip%2 != 0 {
		t.Errorf("%d messages were left out (said: %t)", k.skip, said)
	}
	was, skip := len(k.msgs), k.skip
	k.say(strings.Repeat("word ", 400))
	var long *engine.PromptTooLong
	if _, err := k.reply(t.Context(), &quietly{}); !errors.As(err, &long) || long.Context != 128 || long.Tokens <= 128 || len(k.msgs) != was || k.skip != skip {
		t.Errorf("%v; %d messages, %d before; %d left out, %d before", err, len(k.msgs), was, k.skip, skip)
	}
	if text, _ := ask(t, k, "What is the capital of France?"); !strings.Contains(text, "Paris") {
		t.Errorf("after a refusal: %q", text)
	}
}

func TestStopped(t *testing.T) {
	k := talking(t, 256, func(o *Options) { o.Params.IgnoreEOS = true })
	ctx, stop := context.WithCancelCause(t.Context())
	k.say("Who are you?")
	n := 0
	z, err := k.reply(ctx, growing(func() {
		if n++; n == 5 {
			stop(errStopped)
		}
	}))
	if err != nil || !z.stopped || len(k.msgs) != 2 || k.msgs[1].Content == "" {
		t.Fatalf("%+v, %v, %d messages", z, err, len(k.msgs))
	}
	k.say("And?")
	if z, err = k.reply(ctx, &quietly{}); err != nil || !z.stopped || !z.empty || len(k.msgs) != 2 {
		t.Errorf("stopped before it began: %+v, %v, %d messages", z, err, len(k.msgs))
	}
	k.params.IgnoreEOS = false
	if text, _ := ask(t, k, "What is the capital of France?"); text == "" {
		t.Error("no reply after a stop")
	}
}

type growing func()

func (growing) begin(int)             {}
func (growing) note(string)           {}
func (g growing) grow(string, string) { g() }

func TestSaved(t *testing.T) {
	k := talking(t, 512, nil)
	if _, err := k.save("x", true); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty conversation: %v", err)
	}
	ask(t, k, "What is the capital of France?")
	k.system = "Be brief."
	ask(t, k, "Who are you?")
	if say, err := k.save("x", true); err != nil || !strings.Contains(say, "4 messages") {
		t.Fatal(say, err)
	}
	path := filepath.Join(k.o.Dir, "chats", "x.json")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	msgs, marks := k.msgs, k.marks
	k.clear()
	k.system = ""
	if say, err := k.load("x"); err != nil || !strings.Contains(say, "memory") || len(k.msgs) != 4 || k.msgs[3].Content != msgs[3].Content || k.system != "Be brief." {
		t.Fatalf("%q, %v, %d messages", say, err, len(k.msgs))
	}
	if got := k.marks[len(k.marks)-1]; got.text != marks[len(marks)-1].text {
		t.Errorf("evaluated was %q, now %q", marks[len(marks)-1].text, got.text)
	}
	for name, bad := range map[string][]byte{
		"cut": good[:len(good)/2], "nothing": nil, "a letter": bytes.Replace(good, []byte("Paris"), []byte("Parma"), 1),
		"a role": bytes.Replace(good, []byte(`"user"`), []byte(`"root"`), 1), "a version": bytes.Replace(good, []byte(`"version": 1`), []byte(`"version": 9`), 1),
		"no JSON": []byte("hello"), "a list": []byte("[]"),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := k.load("x")
		if err == nil || !strings.Contains(err.Error(), "x.json") || strings.Contains(err.Error(), "\n") || len(k.msgs) != 4 {
			t.Errorf("%s: %v, %d messages", name, err, len(k.msgs))
		}
	}
	for _, name := range []string{"a/b", "..", ".x", "a b", strings.Repeat("x", 101), `a\b`} {
		if _, err := k.save(name, true); err == nil {
			t.Errorf("saved as %q", name)
		}
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	state := strings.TrimSuffix(path, "json") + "state"
	b, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(state, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if say, err := k.load("x"); err != nil || !strings.Contains(say, "evaluated again") || len(k.msgs) != 4 {
		t.Errorf("with a damaged state: %q, %v", say, err)
	}
	if text, _ := ask(t, k, "What is the capital of France?"); text == "" {
		t.Error("no reply after a damaged state")
	}
}

func TestHistory(t *testing.T) {
	dir := t.TempDir()
	a, err := newHistory(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := newHistory(dir)
	for _, s := range []string{"one", "two\nlines", "two\nlines", strings.Repeat("x", historyLine+1)} {
		if err := a.add(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.add("three"); err != nil {
		t.Fatal(err)
	}
	c, err := newHistory(dir)
	if got := strings.Join(c.lines, "|"); err != nil || got != "one|two\nlines|three" {
		t.Errorf("%q, %v", got, err)
	}
	for range historyLines + 5 {
		c.lines = append(c.lines, "y")
	}
	if err := os.WriteFile(c.path, []byte("no JSON\n\"fine\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := newHistory(dir)
	if err == nil || !strings.Contains(err.Error(), "1 lines are damaged and left out") || len(d.lines) != 1 || d.lines[0] != "fine" {
		t.Errorf("%v, %v", d, err)
	}
	if err := d.add("next"); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(d.path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: nobody else may read it", st, err)
	}
	if d, err = newHistory(dir); err != nil || strings.Join(d.lines, "|") != "fine|next" {
		t.Errorf("after it was written anew: %v, %v", d, err)
	}
	later := "{\"format\":\"terrace chat history\",\"version\":2}\n\"kept\"\n"
	if err := os.WriteFile(c.path, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err = newHistory(dir); !errors.Is(err, errNewHistory) || len(d.lines) != 0 {
		t.Errorf("of a later version: %v, %v", d, err)
	}
	if err := d.add("here"); !errors.Is(err, errNewHistory) || len(d.lines) != 1 {
		t.Errorf("it is kept here alone: %v, %v", d, err)
	}
	if b, err := os.ReadFile(c.path); err != nil || string(b) != later {
		t.Errorf("the file of the newer program became %q, %v", b, err)
	}
}

func TestCommands(t *testing.T) {
	k := talking(t, 256, func(o *Options) { o.Params.Seed = 3 })
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, []byte("a ``` b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "raw"), []byte{0xff, 0}, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, says string
		do         action
		fails      bool
	}{
		{"/help", "/regen", actNone, false}, {"/regen", "no message", actNone, true}, {"/undo", "no message", actNone, true},
		{"/stats", "before the first", actNone, true}, {"/temp", "0", actNone, false}, {"/temp x", "number", actNone, true}, {"/temp -1", "-1", actNone, true},
		{"/temp 0.5", "0.5", actNone, false}, {"/system Be kind.", "set", actNone, false}, {"/system", "Be kind.", actNone, false}, {"/system -", "taken away", actNone, false},
		{"/file " + text, "notes.txt", actNone, false}, {"/file", "notes.txt", actNone, false}, {"/file " + dir, "no file", actNone, true},
		{"/file " + filepath.Join(dir, "raw"), "UTF-8", actNone, true}, {"/file " + dir + "/none", "none", actNone, true},
		{"/think show", "shown", actNone, false}, {"/bye", "", actEnd, false}, {"/quit", "", actEnd, false}, {"/what", "unknown command /what", actNone, true},
		{"/clear now", "takes nothing", actNone, true}, {"/load", "no conversation", actNone, true},
	} {
		say, do, err := k.do(c.line)
		if err != nil {
			say = err.Error()
		}
		if do != c.do || (err != nil) != c.fails || !strings.Contains(say, c.says) || c.fails && strings.Contains(say, "\n") {
			t.Errorf("%s: %q, %v, %v", c.line, say, do, err)
		}
	}
	k.say("What is in it?")
	if got := k.msgs[0].Content; got != "notes.txt:\n````\na ``` b\n````\n\nWhat is in it?" || len(k.files) > 0 {
		t.Errorf("the message is %q", got)
	}
	k.msgs = append(k.msgs, chat.Message{Role: "assistant", Content: "b"})
	if _, do, err := k.do("/regen"); do != actReply || err != nil || len(k.msgs) != 1 || k.again != 1 {
		t.Errorf("/regen: %v, %v, %d messages", do, err, len(k.msgs))
	}
	if say, do, err := k.do("/undo"); do != actEdit || err != nil || len(k.msgs) != 0 || !strings.HasSuffix(say, "in it?") {
		t.Errorf("/undo: %q, %v, %v, %d messages", say, do, err, len(k.msgs))
	}
	for line, want := range map[string]string{"/st": "/stats", "/think s": "/think show", "/file " + dir + "/n": "/file " + text, "/x": ""} {
		if got := strings.Join(k.complete(line), "|"); got != want {
			t.Errorf("%s is completed to %q, want %q", line, got, want)
		}
	}
	for line, want := range map[string]bool{"/help": true, "/system a\nb": true, "/etc/passwd is what?": false, "a /b": false, "/": false, "/x\ny": false} {
		if isCommand(line) != want {
			t.Errorf("%q is taken for a command: %t", line, !want)
		}
	}
}

// TestLines holds a conversation without a screen.
func TestLines(t *testing.T) {
	var out, errs bytes.Buffer
	k := talking(t, 256, func(o *Options) {
		o.In, o.Out, o.Err, o.Prompt = strings.NewReader("What is the capital \\\nof France?\n/stats\n\"\"\"one\ntwo\"\"\"\n/undo\n"), &out, &errs, true
	})
	if err := Run(t.Context(), *k.o); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "Paris") || strings.Count(out.String(), "\n") < 2 || strings.Contains(out.String()+errs.String(), "\x1b") {
		t.Errorf("replies are %q", out.String())
	}
	for _, want := range []string{"context of 256 tokens", "> ", "... ", "explained", "taken back: one\ntwo"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("no %q in %q", want, errs.String())
		}
	}
}
