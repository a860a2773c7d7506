package chatui

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"terrace/chat"
	"terrace/internal/host"
)

// savedVersion is that of the files of conversations.
const savedVersion = 1

// lastName is the conversation that is kept after each reply, whether anybody asks or not.
const lastName = "last"

// mostSaved bounds what is read of a file of a conversation.
const mostSaved = 256 << 20

// saved is a conversation as it lies in a file. What its tokens left behind in the model lies beside it, and in the prompt cache.
type saved struct {
	Version  int            `json:"version"`
	Model    string         `json:"model"`
	Print    string         `json:"fingerprint"` // of the model's file: its tokens mean nothing to another
	Saved    time.Time      `json:"saved"`
	System   string         `json:"system,omitempty"`
	Think    *bool          `json:"think,omitempty"`
	Skip     int            `json:"left_out"`
	Messages []savedMessage `json:"messages"`
	Marks    []savedMark    `json:"evaluated,omitempty"`
	State    bool           `json:"state"` // a state file was written beside it
	Sum      string         `json:"sha256"`
}

type savedMessage struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning,omitempty"`
}

type savedMark struct {
	Text   string  `json:"text"`
	Tokens []int32 `json:"tokens"`
}

// sum is the checksum of everything but itself.
func (v saved) sum() (string, error) {
	v.Sum = ""
	b, err := json.Marshal(&v)
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:]), nil
}

func (o *Options) chats() string { return filepath.Join(o.Dir, "chats") }

// chatPath is where the conversation of that name lies, without an ending.
func (o *Options) chatPath(name string) (string, error) {
	switch {
	case o.Dir == "":
		return "", errors.New("nowhere to keep conversations: neither XDG_STATE_HOME (an absolute path) nor HOME is set")
	case name == "":
		return "", errors.New("the name of the conversation is missing")
	case len(name) > 100:
		return "", fmt.Errorf("a name of %d bytes, at most 100", len(name))
	case strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_' && r != '.'
	}), strings.HasPrefix(name, "."):
		return "", fmt.Errorf("%q cannot be a name: letters, digits, - _ and . (not first) can", clean(name))
	}
	return filepath.Join(o.chats(), name), nil
}

// names are the saved conversations, the latest first.
func (o *Options) names() []string {
	es, err := os.ReadDir(o.chats())
	if err != nil {
		return nil
	}
	type one struct {
		name string
		at   time.Time
	}
	var all []one
	for _, e := range es {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if i, err := e.Info(); ok && err == nil && !strings.HasPrefix(name, ".") {
			all = append(all, one{name, i.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b one) int { return b.at.Compare(a.at) })
	out := make([]string, len(all))
	for i, x := range all {
		out[i] = x.name
	}
	return out
}

// save writes the conversation, with its state if that is wanted, and says what it wrote.
func (t *talk) save(name string, state bool) (string, error) {
	path, err := t.o.chatPath(name)
	if err != nil {
		return "", err
	}
	if len(t.msgs) == 0 {
		return "", errors.New("the conversation is empty: 0 messages, want at least 1 to save")
	}
	if err := os.MkdirAll(t.o.chats(), 0o700); err != nil {
		return "", err
	}
	v := saved{Version: savedVersion, Model: t.o.Name, Saved: time.Now().UTC().Truncate(time.Second), System: t.system, Think: t.think, Skip: t.skip}
	if v.Print, err = t.eng.File().Fingerprint(); err != nil {
		return "", err
	}
	for _, m := range t.msgs {
		v.Messages = append(v.Messages, savedMessage{m.Role, m.Content, m.Reasoning})
	}
	if n := len(t.marks); n > 0 { // the longest is the last
		v.Marks = []savedMark{{t.marks[n-1].text, t.marks[n-1].ids}}
	}
	var size int64
	note := ""
	if state && t.s.Pos() > 0 {
		if size, err = t.s.Save(path + ".state"); err != nil {
			note = fmt.Sprintf("; what the model remembers is not saved and will be evaluated again: %v", err)
		}
		v.State = err == nil
	}
	if v.Sum, err = v.sum(); err != nil {
		return "", err
	}
	b, err := json.MarshalIndent(&v, "", " ")
	if err != nil {
		return "", err
	}
	unlock, err := host.LockFile(path+".lock", 5*time.Second)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := host.ReplacePrivate(path+".json", append(b, '\n')); err != nil {
		return "", err
	}
	out := fmt.Sprintf("saved %s as %s", count(len(t.msgs), "message"), name)
	if v.State {
		out += fmt.Sprintf(", with %s of the model's memory of %s", sizeText(size), count(t.s.Pos(), "token"))
	}
	return out + note, nil
}

// readSaved reads and checks a file.
func readSaved(path string) (*saved, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostSaved+1))
	if err != nil {
		return nil, err
	}
	if len(b) > mostSaved {
		return nil, fmt.Errorf("%s is no conversation: it has more than %d bytes", path, mostSaved)
	}
	damaged := func(format string, a ...any) error {
		return fmt.Errorf("%s is damaged: %s", path, fmt.Sprintf(format, a...))
	}
	v := new(saved)
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return nil, damaged("after %d of %d bytes: %v", d.InputOffset(), len(b), err)
	}
	if v.Version != savedVersion {
		return nil, fmt.Errorf("%s is of version %d, this program reads %d", path, v.Version, savedVersion)
	}
	sum, err := v.sum()
	if err != nil {
		return nil, err
	}
	if sum != v.Sum {
		return nil, damaged("its content has the checksum %.12s, written was %.12s", sum, v.Sum)
	}
	for i, m := range v.Messages {
		if want := []string{"user", "assistant"}[i%2]; m.Role != want {
			return nil, damaged("message %d is of role %q, want %s", i, m.Role, want)
		}
	}
	if len(v.Messages) == 0 || v.Skip < 0 || v.Skip > len(v.Messages) || v.Skip%2 != 0 {
		return nil, damaged("%d messages, of which %d are left out", len(v.Messages), v.Skip)
	}
	return v, nil
}

// load takes the place of the conversation by a saved one and says what it found. After an error all is as it was.
func (t *talk) load(name string) (string, error) {
	if name == "" {
		name = lastName
	}
	path, err := t.o.chatPath(name)
	if err != nil {
		return "", err
	}
	v, err := readSaved(path + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		if all := t.o.names(); len(all) > 0 {
			return "", fmt.Errorf("no conversation is saved as %s; there are %s", name, strings.Join(all[:min(len(all), 10)], ", "))
		}
		return "", fmt.Errorf("no conversation is saved as %s", name)
	} else if err != nil {
		return "", err
	}
	print, err := t.eng.File().Fingerprint()
	if err != nil {
		return "", err
	}
	t.clear()
	t.system, t.think, t.skip = v.System, v.Think, v.Skip
	for _, m := range v.Messages {
		t.msgs = append(t.msgs, chat.Message{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning})
	}
	t.thoughts = t.msgs[len(t.msgs)-1].Reasoning
	out := fmt.Sprintf("loaded %s of %s", count(len(t.msgs), "message"), v.Saved.Local().Format("2006-01-02 15:04"))
	if print != v.Print {
		return out + fmt.Sprintf("; they were exchanged with another model (%s), so all is evaluated again", clean(v.Model)), nil
	}
	vocab := int32(t.eng.Model().Config().Vocab)
	for _, m := range v.Marks {
		if !slices.ContainsFunc(m.Tokens, func(id int32) bool { return id < 0 || id >= vocab }) {
			t.marks = append(t.marks, mark{m.Text, m.Tokens})
		}
	}
	if !v.State {
		return out, nil
	}
	switch size, err := t.s.Load(path + ".state"); {
	case errors.Is(err, fs.ErrNotExist):
		out += "; the model's memory of them is gone, what the prompt cache lacks is evaluated again"
	case err != nil:
		out += fmt.Sprintf("; the model's memory of them cannot be used, what the prompt cache lacks is evaluated again: %v", err)
	default:
		out += fmt.Sprintf(", with %s of the model's memory of %s", sizeText(size), count(t.s.Pos(), "token"))
	}
	return out, nil
}
