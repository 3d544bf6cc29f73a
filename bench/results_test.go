package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestRatioComparesRoundByRound(t *testing.T) {
	var r results
	for _, sample := range []struct{ ours, theirs float64 }{{100, 200}, {10, 40}, {50, 100}} {
		r.add("ours", sample.ours, "rows/s")
		r.add("theirs", sample.theirs, "rows/s")
	}
	r.add("missed a round", 1, "rows/s")
	r.ratio("ours", "theirs", ">= 0.5")
	r.ratio("ours", "missed a round", "")
	r.ratio("ours", "never measured", "")
	for name, want := range map[string]float64{"ours / theirs": 0.5, "ours / missed a round": 100} {
		if f := r.find(name); f == nil || f.Median != want {
			t.Errorf("%s: %+v, want a median of %v", name, f, want)
		}
	}
	if f := r.find("ours / never measured"); f != nil {
		t.Errorf("a ratio to nothing: %+v", f)
	}
}

func TestTableHasRatiosFirst(t *testing.T) {
	var r results
	r.add("ours", 3, "rows/s")
	r.add("theirs", 4, "rows/s")
	r.ratio("ours", "theirs", ">= 0.7")
	r.note("something was odd")
	var out strings.Builder
	if err := r.table(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "ours / theirs") || !strings.Contains(lines[0], "0.75") ||
		!strings.Contains(lines[0], "goal >= 0.7") || !strings.Contains(lines[3], "something was odd") {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestPlotIsWellFormedAndShowsEveryFigure(t *testing.T) {
	r := results{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, v := range []float64{120_000, 0} { // nothing above zero must not break a scale
		r.add("rowferry none", v, "rows/s")
	}
	r.add(rivalTuned+goingOn, 9000, "rows/s")
	r.add("rowferry at 300 tx/s, commit to consumer p50", 0, "ms")
	r.add("rowferry at <300> & more tx/s, commit to consumer p99", 25, "ms")
	var texts []string
	d := xml.NewDecoder(bytes.NewReader(r.plot()))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, string(text))
		}
	}
	all := strings.Join(texts, "\n")
	for _, f := range r.Figures {
		if !strings.Contains(all, strings.Replace(f.Name, ", commit to consumer", "", 1)) {
			t.Errorf("the plot does not show %q", f.Name)
		}
	}
	if strings.Contains(string(r.plot()), "NaN") || strings.Contains(string(r.plot()), "Inf") {
		t.Error("the plot has a length that is no number")
	}
}

func TestBarsKeepTheirProportions(t *testing.T) {
	linear := panel{bars: []bar{{value: 50}, {value: 100}}}
	low, high := linear.scale()
	if half, full := linear.length(50, low, high), linear.length(100, low, high); math.Abs(half*2-full) > 1e-9 {
		t.Errorf("half of the value has a bar of %v of %v", half, full)
	}
	logarithmic := panel{log: true, bars: []bar{{value: 2}, {value: 10}, {value: 100}}}
	low, high = logarithmic.scale()
	if low != 1 || high != 100 {
		t.Errorf("the scale goes from %v to %v, want 1 to 100", low, high)
	}
	if ten, hundred := logarithmic.length(10, low, high), logarithmic.length(100, low, high); math.Abs(ten*2-hundred) > 1e-9 {
		t.Errorf("10 of 1..100 has a bar of %v of %v", ten, hundred)
	}
}
