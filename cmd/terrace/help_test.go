package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

func testApp() *cli.App {
	var none string
	d := &diverter{w: os.Stderr}
	return newApp(env{out: os.Stdout, err: d, getenv: func(string) string { return "" }, notice: &none, tty: &tty{err: d}})
}

// TestHelpScreen: the first help is a screen, each command is in it, and each flag of each command is named by the command's help.
func TestHelpScreen(t *testing.T) {
	code, out, errs := terrace("", "--help")
	if code != exitOK || errs != "" || strings.Count(out, "\n") > 24 {
		t.Fatalf("exit %d, %d lines, %q", code, strings.Count(out, "\n"), errs)
	}
	for _, l := range strings.Split(out, "\n") {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
	app := testApp()
	for _, c := range app.Commands {
		if c.Name != "help" && !strings.Contains(out, "\n  "+c.Name+" ") {
			t.Errorf("%s is not in the first help", c.Name)
		}
	}
	for _, n := range nodes(app) {
		code, out, errs := terrace("", append(slices.Clone(n.path), "--help")...)
		all := out
		if strings.Contains(out, "--help-all") {
			var more string
			if code, more, errs = terrace("", append(slices.Clone(n.path), "--help-all")...); code != exitOK || errs != "" {
				t.Fatalf("%s --help-all: exit %d, %q", n.path, code, errs)
			}
			all += more
			if a, b := strings.Count(out, "\n"), strings.Count(more, "\n"); a >= b || a > 75 {
				t.Errorf("%s: %d lines of help, %d of all", n.path, a, b)
			}
		}
		if code != exitOK || errs != "" || !strings.Contains(out, strings.Join(n.path, " ")) {
			t.Errorf("%s --help: exit %d, %q, %q", n.path, code, out, errs)
		}
		for _, f := range visibleFlags(n.Command) {
			_, _, usage := flagWords(f)
			if name := f.Names()[0]; !strings.Contains(out, name) || !strings.Contains(all, strings.Fields(usage)[0]) {
				t.Errorf("%s: --%s is not in its help", n.path, name)
			}
		}
		for _, l := range strings.Split(all, "\n") {
			if w := utf8.RuneCountInString(l); w > helpWidth {
				t.Errorf("%s: %d columns: %s", n.path, w, l)
			}
		}
	}
}

// TestGroups: a flag is in one group, and the groups name flags that there are.
func TestGroups(t *testing.T) {
	have := map[string]bool{}
	for _, n := range nodes(testApp()) {
		for _, f := range visibleFlags(n.Command) {
			have[f.Names()[0]] = true
		}
	}
	seen := map[string]string{}
	for _, g := range flagGroups {
		for _, n := range g.flags {
			if seen[n] != "" {
				t.Errorf("--%s is in %s and in %s", n, seen[n], g.title)
			}
			if seen[n] = g.title; !have[n] {
				t.Errorf("%s has --%s, which no command has", g.title, n)
			}
		}
	}
	for n := range flagValues {
		if !have[n] {
			t.Errorf("values for --%s, which no command has", n)
		}
	}
}

func TestMan(t *testing.T) {
	code, out, errs := terrace("", "man")
	if code != exitOK || errs != "" || !strings.HasPrefix(out, ".TH TERRACE 1") {
		t.Fatalf("exit %d, %.80q, %q", code, out, errs)
	}
	for _, n := range nodes(testApp()) {
		if !strings.Contains(out, ".SS terrace "+roff(strings.Join(n.path, " "))) {
			t.Errorf("%s is missing", n.path)
		}
	}
	man, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("no groff to read the page with")
	}
	cmd := exec.Command(man, "-man", "-Tascii", "-ww", "-z")
	cmd.Stdin = strings.NewReader(out)
	if b, err := cmd.CombinedOutput(); err != nil || len(b) > 0 {
		t.Errorf("%v: %s", err, b)
	}
}

func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	file := map[string]string{}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, errs := terrace("", "completion", shell)
		if code != exitOK || errs != "" {
			t.Fatalf("%s: exit %d, %q", shell, code, errs)
		}
		for _, want := range []string{"calibrate", "lookahead", "gate-ahead", "decode"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %s", shell, want)
			}
		}
		file[shell] = filepath.Join(dir, "_"+shell)
		if err := os.WriteFile(file[shell], []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
		if path, err := exec.LookPath(shell); err == nil {
			if b, err := exec.Command(path, "-n", file[shell]).CombinedOutput(); err != nil || len(b) > 0 {
				t.Errorf("%s does not like it: %v %s", shell, err, b)
			}
		}
	}
	if code, _, errs := terrace("", "completion", "tcsh"); code != exitUsage || !strings.Contains(errs, "tcsh") {
		t.Errorf("tcsh: exit %d, %q", code, errs)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash")
	}
	for line, want := range map[string]string{
		"terrace ca": "calibrate", "terrace run --look": "--lookahead", "terrace run --store u": "uring", "terrace bench dec": "decode",
		"terrace bench decode --js": "--json", "terrace completion f": "fish", "terrace heat ex": "export", "terrace -": "--help --version",
	} {
		words := strings.Split(line, " ")
		script := `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _terrace; echo "${COMPREPLY[*]}"`
		cmd := exec.Command(bash, append([]string{"--norc", "-c", script, "bash", file["bash"]}, words...)...)
		cmd.Dir = dir
		if b, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%q: %q, want %q (%v)", line, b, want, err)
		}
	}
}
