package chatui

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"pgregory.net/rapid"
)

const sampleText = `# A *title*

Some **bold** and ` + "`code`" + `, a [link](https://example.org) and a line that
goes on \*here\*.

1. one
2. two
   - inner

> quoted
> text

` + "```go\nfunc main() {}\n\n\tx := 1\n```" + `

| a | long head |
|---|----------:|
| 1 | 2 |

- [x] done
- [ ] not

***

~~gone~~ end`

const samplePlain = `# A *title*

Some **bold** and ` + "`code`" + `, a link
(https://example.org) and a line that
goes on *here*.

1. one
2. two
   - inner

│ quoted text

  go
  func main() {}
  ` + `
      x := 1

a │ long head
──┼──────────
1 │         2

- [x] done
- [ ] not

────────────────────────────────────────

~~gone~~ end`

func TestMarkdown(t *testing.T) {
	plain := strings.Join(newMarkdown(false).lines(sampleText, 40), "\n")
	if plain != samplePlain {
		t.Errorf("drawn is\n%s\nwant\n%s", plain, samplePlain)
	}
	if strings.Contains(plain, "\x1b") {
		t.Errorf("escape codes without colour: %q", plain)
	}
	for _, l := range newMarkdown(true).lines(sampleText, 40) {
		if ansi.StringWidth(l) > 40 {
			t.Errorf("%d columns: %q", ansi.StringWidth(l), l)
		}
		if open, closed := strings.Count(l, "\x1b["), strings.Count(l, "\x1b[0m")+strings.Count(l, "\x1b[22m")+strings.Count(l, "\x1b[23m")+
			strings.Count(l, "\x1b[24m")+strings.Count(l, "\x1b[29m")+strings.Count(l, "\x1b[39m"); open > 0 && closed == 0 {
			t.Errorf("attributes go on behind %q", l)
		}
	}
	bold := newMarkdown(true).lines("**"+strings.Repeat("word ", 20)+"end**", 30)
	for _, l := range bold {
		if !strings.HasPrefix(l, "\x1b[1m") || !strings.HasSuffix(l, "\x1b[0m") && !strings.HasSuffix(l, "\x1b[22m") {
			t.Errorf("a bold line is %q", l)
		}
	}
}

// TestSettled: however a text is cut, the settled beginnings drawn one by one are what the whole is, but for the numbering and
// spacing of lists, which are never cut within.
func TestSettled(t *testing.T) {
	m := newMarkdown(false)
	whole := strings.Join(m.lines(sampleText, 40), "\n")
	rapid.Check(t, func(r *rapid.T) {
		var parts []string
		at, end := 0, 0
		for end < len(sampleText) {
			end = min(len(sampleText), end+rapid.IntRange(1, 60).Draw(r, "piece"))
			if n := settled(sampleText[at:end]); n > 0 {
				parts = append(parts, strings.Join(m.lines(sampleText[at:at+n], 40), "\n"))
				at += n
			}
		}
		parts = append(parts, strings.Join(m.lines(sampleText[at:], 40), "\n"))
		if got := strings.Join(parts, "\n\n"); got != whole {
			r.Fatalf("drawn in %d pieces:\n%s\nwant\n%s", len(parts), got, whole)
		}
	})
	for text, want := range map[string]int{
		"a": 0, "a\n\n": 0, "a\n\nb": 3, "a\n\n ": 0, "- a\n\n- b": 0, "- a\n\nb": 5, "```\na\n\nb": 0, "```\na\n```\n\nb": 11, "a\n\n  b": 0, "": 0,
		"1. a\n\n2": 0, "~~~\n```\n\nx": 0,
	} {
		if got := settled(text); got != want {
			t.Errorf("settled(%q) is %d, want %d", text, got, want)
		}
	}
}

func TestMarkdownAnything(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		text := clean(rapid.StringOf(rapid.RuneFrom([]rune("ab *_`~#->|[]()!\\\n\t1.é漢\x1b\u202e"))).Draw(r, "text"))
		width := rapid.IntRange(1, 50).Draw(r, "width")
		for _, l := range newMarkdown(rapid.Bool().Draw(r, "colour")).lines(text, width) {
			if strings.ContainsAny(l, "\n\u202e") {
				r.Fatalf("a line is %q", l)
			}
		}
		if n := settled(text); n < 0 || n > len(text) {
			r.Fatalf("settled is %d of %d", n, len(text))
		}
	})
}

func TestClean(t *testing.T) {
	if got := clean("a\x1b[31mb\r\n\tc\x00\u202e\u009b2J"); got != "a[31mb\n\tc2J" {
		t.Errorf("%q", got)
	}
}
