// Command _gen draws what a program printed as a picture of a terminal, light or dark as its reader's system is.
//
//	terrace plan FILE | go run ./docs/_gen -prompt "terrace plan FILE" -cols 120 > docs/img/plan.svg
//
// Lines longer than -cols are wrapped; what follows hangs under the second word.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"html"
	"os"
	"strings"
	"unicode/utf8"
)

const (
	size  = 13.0 // of the letters, in pixels
	width = 7.83 // of one letter
	lead  = 18.5 // from line to line
	pad   = 18.0
	bar   = 34.0
)

func main() {
	prompt := flag.String("prompt", "", "the command that is shown first")
	title := flag.String("title", "", "what the picture shows, for those who do not see it")
	cols := flag.Int("cols", 110, "letters of a line")
	hang := flag.Int("hang", 0, "letters by which a wrapped line's rest is moved in")
	flag.Parse()
	var lines []string
	s := bufio.NewScanner(os.Stdin)
	for s.Scan() {
		lines = append(lines, wrap(strings.TrimRight(s.Text(), " "), *cols, *hang)...)
	}
	if s.Err() != nil || len(lines) == 0 {
		fmt.Fprintln(os.Stderr, "nothing to draw:", s.Err())
		os.Exit(1)
	}
	n := 2 + utf8.RuneCountInString(*prompt)
	for _, l := range lines {
		n = max(n, utf8.RuneCountInString(l))
	}
	w, h := float64(n)*width+2*pad, float64(len(lines)+1)*lead+2*pad+bar-6
	fmt.Printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">
<style>
:root{--bg:#f6f8fa;--fg:#1f2328;--dim:#59636e;--cmd:#0550ae;--edge:#d1d9e0}
@media (prefers-color-scheme: dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--cmd:#79c0ff;--edge:#3d444d}}
rect{fill:var(--bg);stroke:var(--edge)} circle{fill:var(--edge)} text{fill:var(--fg);font:%gpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}
.d{fill:var(--dim)} .c{fill:var(--cmd)}
</style>
<rect x=".5" y=".5" width="%.0f" height="%.0f" rx="9"/>
<circle cx="20" cy="18" r="5.5"/><circle cx="38" cy="18" r="5.5"/><circle cx="56" cy="18" r="5.5"/>
`, w, h, html.EscapeString(*title), size, w-1, h-1)
	y := bar + pad
	put := func(class, l string) {
		if l != "" { // the length is given, so that another font does not move the columns
			fmt.Printf(`<text%s x="%g" y="%.1f" textLength="%.1f" xml:space="preserve">%s</text>`+"\n", class, pad, y, float64(utf8.RuneCountInString(l))*width, html.EscapeString(l))
		}
		y += lead
	}
	put(` class="c"`, "$ "+*prompt)
	for _, l := range lines {
		put("", l)
	}
	fmt.Println("</svg>")
}

// wrap cuts a line at spaces into pieces of at most n letters.
func wrap(l string, n, hang int) (out []string) {
	for utf8.RuneCountInString(l) > n {
		r := []rune(l)
		cut := n
		for cut > hang+1 && r[cut] != ' ' {
			cut--
		}
		if cut <= hang+1 {
			cut = n
		}
		out = append(out, strings.TrimRight(string(r[:cut]), " "))
		l = strings.Repeat(" ", hang) + strings.TrimLeft(string(r[cut:]), " ")
	}
	return append(out, l)
}
