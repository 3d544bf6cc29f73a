package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// The plot is plain SVG without script or outside fonts: dark text on white, hues
// that stay apart in grey print, and every value written beside its bar.
const (
	plotWidth  = 900
	labelWidth = 300
	valueWidth = 110
	barHeight  = 20
	barGap     = 6
	panelTop   = 44 // from a panel's begin to its first bar
	panelGap   = 22
)

const (
	colorOurs    = "#1f6feb"
	colorCeiling = "#8b949e"
	colorBare    = "#57606a"
	colorRival   = "#d4761f"
)

// bar is one line of a panel.
type bar struct {
	label string
	color string
	value float64
}

// panel is one bar chart. On a logarithmic one the bars begin at the power of ten
// below the least value.
type panel struct {
	title string
	unit  string
	log   bool
	bars  []bar
}

// plot draws what was measured; panels without a figure are left out.
func (r *results) plot() []byte {
	var panels []panel
	for _, p := range r.panels() {
		if len(p.bars) > 0 {
			panels = append(panels, p)
		}
	}
	return drawSVG("rowferry benchmark, "+r.At.Format("2006-01-02"), panels)
}

// panels picks the figures worth a picture, by parts of their names.
func (r *results) panels() []panel {
	rates := panel{title: "Drain of a backlog, rows a second (longer is better)", unit: "rows/s"}
	for _, name := range []string{
		"ceiling: broker", "bare loop", "rowferry none", "ceiling: ledger", "bare loop that marks", "rowferry status", "rowferry delete",
		rivalTuned + goingOn, rivalDefaults + goingOn,
	} {
		rates.add(r.find(name), "")
	}
	latency := panel{title: "Commit to consumer, ms, logarithmic (shorter is better)", unit: "ms", log: true}
	memory := panel{title: "Peak resident memory, MiB", unit: "MiB"}
	cpu := panel{title: "CPU seconds for 100,000 messages, logarithmic (shorter is better)", unit: "s", log: true}
	for _, f := range r.Figures {
		switch {
		case f.Unit == "ratio" || strings.HasPrefix(f.Name, "growth"):
		case strings.HasSuffix(f.Name, "p50") || strings.HasSuffix(f.Name, "to consumer p99"):
			latency.add(f, ", commit to consumer")
		case strings.Contains(f.Name, "peak memory"):
			memory.add(f, ", peak memory")
		case strings.Contains(f.Name, "CPU for 100,000"):
			cpu.add(f, ", CPU for 100,000 messages")
		}
	}
	return []panel{rates, latency, memory, cpu}
}

// add makes a figure a bar; leftOut is what the panel's title says already.
func (p *panel) add(f *figure, leftOut string) {
	if f != nil {
		p.bars = append(p.bars, bar{strings.Replace(f.Name, leftOut, "", 1), colorOf(f.Name), f.Median})
	}
}

func colorOf(name string) string {
	switch {
	case strings.HasPrefix(name, "Debezium"):
		return colorRival
	case strings.HasPrefix(name, "bare"):
		return colorBare
	case strings.HasPrefix(name, "ceiling"):
		return colorCeiling
	}
	return colorOurs
}

func drawSVG(title string, panels []panel) []byte {
	height := 50
	for _, p := range panels {
		height += p.height()
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1f2328">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="16" y="30" font-size="18" font-weight="bold">%s</text>
`, plotWidth, height, plotWidth, height, html.EscapeString(title))
	y := 50
	for _, p := range panels {
		p.draw(&out, y)
		y += p.height()
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (p panel) height() int { return panelTop + len(p.bars)*(barHeight+barGap) + panelGap }

func (p panel) draw(out *bytes.Buffer, top int) {
	fmt.Fprintf(out, `<text x="16" y="%d" font-size="14" font-weight="bold">%s</text>`+"\n", top+26, html.EscapeString(p.title))
	low, high := p.scale()
	for i, b := range p.bars {
		y := top + panelTop + i*(barHeight+barGap)
		width := p.length(b.value, low, high)
		fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, y+15, html.EscapeString(b.label))
		fmt.Fprintf(out, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y, width, barHeight, b.color)
		fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", labelWidth+width+6, y+15, html.EscapeString(printed(b.value)+" "+p.unit))
	}
}

// scale returns the values at the left and right end of the bars.
func (p panel) scale() (low, high float64) {
	if p.log {
		low = math.Inf(1)
	}
	for _, b := range p.bars {
		high = max(high, b.value)
		if p.log && b.value > 0 {
			low = min(low, math.Pow(10, math.Floor(math.Log10(b.value))))
		}
	}
	return low, high
}

// length returns how long a value's bar is, at least one unit so that it is seen.
func (p panel) length(value, low, high float64) float64 {
	share := value / high
	if p.log {
		share = math.Log(value/low) / math.Log(high/low)
	}
	if math.IsNaN(share) || math.IsInf(share, 0) { // nothing above zero
		share = 0
	}
	return max(1, share*(plotWidth-labelWidth-valueWidth))
}

// printed writes a value with as many digits as mean something.
func printed(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
