package chatui

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// markdown draws Markdown on lines of a terminal: GitHub's kind without raw HTML, which is shown as it is.
type markdown struct {
	md     goldmark.Markdown
	colour bool // attributes may be used
}

func newMarkdown(colour bool) *markdown {
	return &markdown{md: goldmark.New(goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.TaskList)), colour: colour}
}

// lines draws src, whose control characters are gone (clean), at most width columns wide. Each line is complete in itself: its
// attributes end with it.
func (m *markdown) lines(src string, width int) []string {
	b := []byte(src)
	d := &drawing{m: m, src: b}
	out := d.blocks(m.md.Parser().Parse(text.NewReader(b)), max(width, 8), false)
	return m.complete(out)
}

// drawing is one call of lines.
type drawing struct {
	m   *markdown
	src []byte
}

// Attributes, on and off.
var (
	styleBold   = [2]string{"\x1b[1m", "\x1b[22m"}
	styleFaint  = [2]string{"\x1b[2m", "\x1b[22m"}
	styleItalic = [2]string{"\x1b[3m", "\x1b[23m"}
	styleUnder  = [2]string{"\x1b[4m", "\x1b[24m"}
	styleStrike = [2]string{"\x1b[9m", "\x1b[29m"}
	styleCode   = [2]string{"\x1b[36m", "\x1b[39m"}
	styleHead   = [2]string{"\x1b[34m", "\x1b[39m"}
	stylePerson = [2]string{"\x1b[32m", "\x1b[39m"}
	styleWarn   = [2]string{"\x1b[33m", "\x1b[39m"}
)

// paint gives s an attribute, where there may be any.
func (m *markdown) paint(s string, style [2]string) string {
	if !m.colour || s == "" {
		return s
	}
	return style[0] + s + style[1]
}

// blocks draws the children of a node; tight leaves no empty lines between them.
func (d *drawing) blocks(n ast.Node, width int, tight bool) []string {
	var out []string
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		ls := d.block(c, width)
		if len(out) > 0 && len(ls) > 0 && !tight {
			out = append(out, "")
		}
		out = append(out, ls...)
	}
	return out
}

func (d *drawing) block(n ast.Node, width int) []string {
	m := d.m
	switch n := n.(type) {
	case *ast.Heading:
		s := d.inline(n)
		if !m.colour {
			s = strings.Repeat("#", n.Level) + " " + s
		}
		if n.Level == 1 {
			s = m.paint(s, styleUnder)
		}
		return wrap(m.paint(m.paint(s, styleBold), styleHead), width)
	case *ast.FencedCodeBlock:
		return d.code(n, string(n.Language(d.src)), width)
	case *ast.CodeBlock:
		return d.code(n, "", width)
	case *ast.HTMLBlock:
		return d.code(n, "", width)
	case *ast.Blockquote:
		return prefixed(d.blocks(n, max(width-2, 8), false), m.paint("│ ", styleFaint), m.paint("│ ", styleFaint))
	case *ast.List:
		return d.list(n, width)
	case *ast.ThematicBreak:
		return []string{m.paint(strings.Repeat("─", min(width, 40)), styleFaint)}
	case *east.Table:
		return d.table(n, width)
	}
	if n.Type() == ast.TypeBlock && n.FirstChild() != nil && n.FirstChild().Type() == ast.TypeBlock {
		return d.blocks(n, width, false)
	}
	return wrap(d.inline(n), width)
}

// code draws lines as they are.
func (d *drawing) code(n ast.Node, language string, width int) []string {
	m := d.m
	var out []string
	if language != "" {
		out = append(out, m.paint("  "+language, styleFaint))
	}
	for i := range n.Lines().Len() {
		s := n.Lines().At(i)
		line := strings.ReplaceAll(strings.TrimRight(string(s.Value(d.src)), "\r\n"), "\t", "    ")
		for _, l := range strings.Split(ansi.Hardwrap(line, max(width-2, 8), true), "\n") {
			out = append(out, "  "+m.paint(l, styleCode))
		}
	}
	return out
}

func (d *drawing) list(n *ast.List, width int) []string {
	var out []string
	number := n.Start
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		sign := "• "
		if !d.m.colour {
			sign = "- "
		}
		if n.IsOrdered() {
			sign = fmt.Sprintf("%d%c ", number, n.Marker)
			number++
		}
		if len(out) > 0 && !n.IsTight {
			out = append(out, "")
		}
		pad := ansi.StringWidth(sign)
		ls := d.blocks(c, max(width-pad, 8), n.IsTight)
		if len(ls) == 0 {
			ls = []string{""}
		}
		out = append(out, prefixed(ls, sign, strings.Repeat(" ", pad))...)
	}
	return out
}

// table draws columns as wide as they need, or, where there is no room, as wide as their share of it.
func (d *drawing) table(n *east.Table, width int) []string {
	var rows [][]string
	var wide []int
	for r := n.FirstChild(); r != nil; r = r.NextSibling() {
		var row []string
		for c := r.FirstChild(); c != nil; c = c.NextSibling() {
			s := d.inline(c)
			if len(rows) == 0 {
				s = d.m.paint(s, styleBold)
			}
			if len(row) == len(wide) {
				wide = append(wide, 1)
			}
			wide[len(row)] = max(wide[len(row)], ansi.StringWidth(s))
			row = append(row, s)
		}
		rows = append(rows, row)
	}
	if len(wide) == 0 {
		return nil
	}
	for room := max(width-3*(len(wide)-1), 3*len(wide)); ; { // the widest gives way
		sum, most := 0, 0
		for i, w := range wide {
			sum += w
			if w > wide[most] {
				most = i
			}
		}
		if sum <= room {
			break
		}
		wide[most]--
	}
	bar := d.m.paint(" │ ", styleFaint)
	var out []string
	for i, row := range rows {
		cells, high := make([][]string, len(wide)), 1
		for j := range wide {
			if j < len(row) {
				cells[j] = wrap(row[j], wide[j])
			}
			high = max(high, len(cells[j]))
		}
		for k := range high {
			var b strings.Builder
			for j, w := range wide {
				s := ""
				if k < len(cells[j]) {
					s = cells[j][k]
				}
				space := max(0, w-ansi.StringWidth(s))
				left := 0
				if j < len(n.Alignments) {
					switch n.Alignments[j] {
					case east.AlignRight:
						left = space
					case east.AlignCenter:
						left = space / 2
					}
				}
				if j > 0 {
					b.WriteString(bar)
				}
				b.WriteString(strings.Repeat(" ", left) + s)
				if j < len(wide)-1 {
					b.WriteString(strings.Repeat(" ", space-left))
				}
			}
			out = append(out, b.String())
		}
		if i == 0 {
			var b strings.Builder
			for j, w := range wide {
				if j > 0 {
					b.WriteString("─┼─")
				}
				b.WriteString(strings.Repeat("─", w))
			}
			out = append(out, d.m.paint(b.String(), styleFaint))
		}
	}
	return out
}

// inline draws the text of a node on one line, but for hard breaks.
func (d *drawing) inline(n ast.Node) string {
	m := d.m
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			s := string(c.Segment.Value(d.src))
			if !c.IsRaw() {
				s = unescape(s)
			}
			b.WriteString(s)
			if c.HardLineBreak() {
				b.WriteByte('\n')
			} else if c.SoftLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.CodeSpan:
			s := d.plain(c)
			if !m.colour {
				s = "`" + s + "`"
			}
			b.WriteString(m.paint(s, styleCode))
		case *ast.Emphasis:
			style, sign := styleItalic, "*"
			if c.Level == 2 {
				style, sign = styleBold, "**"
			}
			s := d.inline(c)
			if !m.colour {
				s = sign + s + sign
			}
			b.WriteString(m.paint(s, style))
		case *east.Strikethrough:
			s := d.inline(c)
			if !m.colour {
				s = "~~" + s + "~~"
			}
			b.WriteString(m.paint(s, styleStrike))
		case *ast.Link:
			label, url := d.inline(c), string(c.Destination)
			b.WriteString(m.paint(label, styleUnder))
			if url != "" && url != ansi.Strip(label) {
				b.WriteString(m.paint(" ("+url+")", styleFaint))
			}
		case *ast.Image:
			b.WriteString("[" + d.inline(c) + "]" + m.paint(" ("+string(c.Destination)+")", styleFaint))
		case *ast.AutoLink:
			b.WriteString(m.paint(string(c.URL(d.src)), styleUnder))
		case *ast.RawHTML:
			for i := range c.Segments.Len() {
				s := c.Segments.At(i)
				b.Write(s.Value(d.src))
			}
		case *east.TaskCheckBox:
			if c.IsChecked {
				b.WriteString("[x] ")
			} else {
				b.WriteString("[ ] ")
			}
		default:
			b.WriteString(d.inline(c))
		}
	}
	return b.String()
}

// plain is the text of a code span.
func (d *drawing) plain(n ast.Node) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, ok := c.(*ast.Text); ok {
			b.WriteString(strings.ReplaceAll(string(t.Segment.Value(d.src)), "\n", " "))
		}
	}
	return b.String()
}

// unescape takes away the backslashes before punctuation.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", s[i+1]) >= 0 {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// wrap breaks s into lines of at most width columns, between words where there are any.
func wrap(s string, width int) []string {
	if s == "" {
		return nil
	}
	width = max(width, 1)
	ls := strings.Split(ansi.Wrap(s, width, ""), "\n")
	for i := 0; i < len(ls); i++ { // a hyphen by itself is put behind a line that is full
		if at := strings.LastIndexByte(ls[i], ' '); ansi.StringWidth(ls[i]) > width && at >= 0 {
			over := ls[i][at+1:]
			if ls[i] = ls[i][:at]; i+1 < len(ls) {
				over += " " + ls[i+1]
				ls = slices.Delete(ls, i+1, i+2)
			}
			ls = slices.Insert(ls, i+1, strings.Split(ansi.Wrap(over, width, ""), "\n")...)
		}
	}
	return ls
}

// prefixed puts first before the first line and rest before the others.
func prefixed(ls []string, first, rest string) []string {
	out := make([]string, len(ls))
	for i, l := range ls {
		if i == 0 {
			out[i] = first + l
		} else {
			out[i] = rest + l
		}
	}
	return out
}

// complete ends each line's attributes with it and begins them again on the next.
func (m *markdown) complete(ls []string) []string {
	if !m.colour {
		return ls
	}
	var open []string // attributes in force
	for i, l := range ls {
		begin := strings.Join(open, "")
		for rest := l; ; {
			at := strings.Index(rest, "\x1b[")
			if at < 0 {
				break
			}
			end := strings.IndexByte(rest[at:], 'm')
			if end < 0 {
				break
			}
			code := rest[at : at+end+1]
			rest = rest[at+end+1:]
			switch code {
			case "\x1b[22m", "\x1b[23m", "\x1b[24m", "\x1b[29m", "\x1b[39m":
				for j := len(open) - 1; j >= 0; j-- {
					if closes(code, open[j]) {
						open = append(open[:j:j], open[j+1:]...)
						break
					}
				}
			default:
				open = append(open, code)
			}
		}
		l = begin + l
		if len(open) > 0 {
			l += "\x1b[0m"
		}
		ls[i] = l
	}
	return ls
}

func closes(off, on string) bool {
	switch off {
	case "\x1b[22m":
		return on == "\x1b[1m" || on == "\x1b[2m"
	case "\x1b[23m":
		return on == "\x1b[3m"
	case "\x1b[24m":
		return on == "\x1b[4m"
	case "\x1b[29m":
		return on == "\x1b[9m"
	}
	return strings.HasPrefix(on, "\x1b[3") && on != "\x1b[3m"
}

// settled is the length of the beginning of a growing Markdown text that what comes will not change: whole blocks, up to an
// empty line outside of fences after which another block has begun.
func settled(s string) int {
	done, at := 0, 0
	fence := ""
	blank := false // the line before was empty, outside of fences
	list := false  // the block may be a list, which goes on over empty lines
	for at < len(s) {
		end := strings.IndexByte(s[at:], '\n')
		if end < 0 {
			end = len(s) - at // it may still grow, but it is there
		}
		line := s[at : at+end]
		trim := strings.TrimLeft(line, " \t")
		switch {
		case fence != "":
			if strings.HasPrefix(trim, fence) && strings.Trim(trim, fence[:1]+" \t") == "" {
				fence = ""
			}
		case trim == "":
			blank = true
		default:
			item := isItem(trim)
			if blank && line == trim && !(list && item) && at > 0 {
				done, list = at, false
			}
			blank = false
			list = list || item
			if f := fenceOf(trim); f != "" {
				fence = f
			}
		}
		if at += end + 1; at > len(s) {
			break
		}
	}
	return done
}

// fenceOf is the sign that begins a fenced block, "" if the line begins none.
func fenceOf(line string) string {
	for _, c := range []string{"`", "~"} {
		if n := len(line) - len(strings.TrimLeft(line, c)); n >= 3 && !(c == "`" && strings.Contains(line[n:], "`")) {
			return strings.Repeat(c, n)
		}
	}
	return ""
}

// isItem tells whether a line begins like an item of a list, or like what may become one.
func isItem(line string) bool {
	if strings.IndexByte("-*+", line[0]) >= 0 {
		return len(line) == 1 || line[1] == ' '
	}
	digits := len(line) - len(strings.TrimLeft(line, "0123456789"))
	return digits > 0 && digits < 10 && (len(line) == digits || line[digits] == '.' || line[digits] == ')')
}

// standing finds how much of a growing block, drawn on rows, can be put above before it has ended: n bytes of src that make rows of
// their own as the rest does of its own, 0 where there are none; before that rest, reopen makes it Markdown by itself. So paragraphs
// go up row by row, code line by line, lists item by item. What changes rows that stand already, such as emphasis that has begun
// and not ended, keeps a block together; an underline makes a heading of those rows alone that do not stand above.
func (m *markdown) standing(src string, rows []string, width int) (n int, reopen string) {
	first, _, _ := strings.Cut(src, "\n")
	if f := fenceOf(first); f != "" {
		if n := strings.LastIndexByte(src, '\n') + 1; n > len(first)+1 {
			return n, f + "\n"
		}
		return 0, ""
	}
	fits := func(at int) bool {
		head := m.lines(src[:at], width)
		k := len(head)
		if k == 0 || k >= len(rows) || !slices.Equal(head, rows[:k]) || m.open(src[:at]) {
			return false
		}
		return slices.Equal(m.lines(src[at:], width), rows[k:])
	}
	tries := 0
	for at := len(src) - 1; at > 0 && tries < standingTries; at-- {
		next, _ := utf8.DecodeRuneInString(src[at:])
		item := src[at-1] == '\n' && (isItem(src[at:]) && len(src) > at+3)
		if !item && !(unicode.IsLetter(next) && (src[at-1] == ' ' || src[at-1] == '\n')) {
			continue
		}
		if tries++; fits(at) {
			return at, ""
		}
	}
	return 0, ""
}

// standingTries bounds the places that standing looks at: the words of a few rows.
const standingTries = 64

// open tells whether there is a sign in src that what comes after it may still pair with another.
func (m *markdown) open(src string) bool {
	b, open := []byte(src), false
	_ = ast.Walk(m.md.Parser().Parse(text.NewReader(b)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering && n.Parent().Kind() != ast.KindCodeSpan && strings.ContainsAny(string(t.Segment.Value(b)), "*_`~[<|") {
			open = true
			return ast.WalkStop, nil
		}
		return ast.WalkContinue, nil
	}) // it fails only where the function does
	return open
}
