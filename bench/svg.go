package bench

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Plots: a few panels with lines over named places, as SVG without anything from outside.

// Plot is one panel. Every series has a value for each place; NaN leaves a gap.
type Plot struct {
	Title  string
	XName  string
	YName  string
	X      []string
	Series []PlotSeries
}

// PlotSeries is one line with its spread.
type PlotSeries struct {
	Name   string
	Y      []float64
	Lo, Hi []float64 // nil: none
}

const (
	plotWidth  = 460
	plotHeight = 300
	plotLeft   = 58
	plotRight  = 14
	plotTop    = 30
	plotBottom = 62
)

// plotColours are told apart by people who do not tell red from green, too (Okabe and Ito, 2008).
var plotColours = []string{"#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00"}

// WriteSVG draws panels two in a row.
func WriteSVG(w io.Writer, panels []Plot) error {
	var b strings.Builder
	columns := min(2, max(len(panels), 1))
	rows := (len(panels) + columns - 1) / columns
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", columns*plotWidth, rows*plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", columns*plotWidth, rows*plotHeight)
	for i := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", i%columns*plotWidth, i/columns*plotHeight)
		panels[i].draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// plotStep is the distance between the marks of an axis from 0 to most: 1, 2 or 5 times a power of ten, some five marks.
func plotStep(most float64) float64 {
	s := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, f := range []float64{1, 2, 5, 10} {
		if most/(f*s) <= 6 {
			return f * s
		}
	}
	return 10 * s
}

func (p *Plot) draw(b *strings.Builder) {
	most := 0.0
	for _, s := range p.Series {
		for _, vs := range [][]float64{s.Y, s.Hi} {
			for _, v := range vs {
				if !math.IsNaN(v) && !math.IsInf(v, 0) {
					most = max(most, v)
				}
			}
		}
	}
	if most <= 0 {
		most = 1
	}
	step := plotStep(most)
	top := math.Ceil(most/step) * step
	w, h := float64(plotWidth-plotLeft-plotRight), float64(plotHeight-plotTop-plotBottom)
	x := func(i int) float64 { return plotLeft + w*(float64(i)+0.5)/float64(max(len(p.X), 1)) }
	y := func(v float64) float64 { return plotTop + h*(1-v/top) }
	text := func(px, py float64, anchor, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", px, py, anchor, html.EscapeString(s))
	}
	fmt.Fprintf(b, `<text x="%d" y="18" text-anchor="middle" font-weight="bold">%s</text>`+"\n", plotWidth/2, html.EscapeString(p.Title))
	for v := 0.0; v <= top*1.0001; v += step {
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#dddddd"/>`+"\n", plotLeft, y(v), plotWidth-plotRight, y(v))
		text(plotLeft-5, y(v)+4, "end", strconv.FormatFloat(v, 'g', 4, 64))
	}
	for i, name := range p.X {
		text(x(i), plotTop+h+15, "middle", name)
	}
	text(plotLeft+w/2, plotTop+h+31, "middle", p.XName)
	fmt.Fprintf(b, `<text transform="translate(14,%.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n", plotTop+h/2, html.EscapeString(p.YName))
	for k, s := range p.Series {
		colour := plotColours[k%len(plotColours)]
		shift := 3 * (float64(k) - float64(len(p.Series)-1)/2) // spreads beside one another
		var points []string
		flush := func() {
			if len(points) > 1 {
				fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(points, " "), colour)
			}
			points = nil
		}
		for i, v := range s.Y {
			if math.IsNaN(v) {
				flush()
				continue
			}
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(i)+shift, y(v)))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", x(i)+shift, y(v), colour)
			if s.Lo != nil {
				fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x(i)+shift, y(s.Lo[i]), x(i)+shift, y(s.Hi[i]), colour)
			}
		}
		flush()
		lx := plotLeft + w*(float64(k)+0.1)/float64(len(p.Series))
		ly := float64(plotHeight - 12)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2"/>`+"\n", lx, ly-4, lx+16, ly-4, colour)
		text(lx+20, ly, "start", s.Name)
	}
}

// Plot is the speed of each setting over the sizes of the arena.
func (r *LookaheadReport) Plot() Plot {
	p := Plot{Title: r.Label, XName: "experts with a slot, %", YName: "tokens/s"}
	if p.Title == "" {
		p.Title = "decode"
	}
	for _, a := range r.Arenas {
		p.X = append(p.X, fmt.Sprintf("%.0f", 100*ratio(int64(a.Slots), int64(a.Total))))
		for k, x := range a.Cells {
			if k == len(p.Series) {
				p.Series = append(p.Series, PlotSeries{Name: "lookahead " + x.Setting})
			}
			s := &p.Series[k]
			s.Y, s.Lo, s.Hi = append(s.Y, x.Rate.Median), append(s.Lo, x.Rate.Min), append(s.Hi, x.Rate.Max)
		}
	}
	return p
}
