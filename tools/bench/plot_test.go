package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

// pictures are those of made-up measurements.
func pictures() *bench {
	b := &bench{}
	runs := []peerRun{
		{Name: "Sluice", departures: grid(0, 5, 1000)},
		{Name: "nginx", departures: grid(0, 5, 1000)},
		{Name: "BullMQ", departures: append(make([]time.Duration, 200), at(1000, 1001, 2000)...)},
		{Name: "BullMQ 1/5 ms", Absent: "no node on PATH"},
	}
	b.departures(crowds(), runs)
	for _, c := range []crowd{oneFlow, manyFlows} {
		var h histogram
		for i := range 1000 {
			h.add(time.Duration(i) * 100 * time.Microsecond)
		}
		b.lateness(c, []lateRun{{Histogram: h}, {}})
	}
	b.scale([]scaleCell{
		{Tenants: 1, Waiting: 10, Admit: 30, Drain: 20}, {Tenants: 1, Waiting: 1000, Admit: 31, Drain: 22},
		{Tenants: 100_000, Waiting: 1_000_000, Admit: 35, Drain: 60},
	})
	return b
}

func TestPicturesAreSVG(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "docs")
	if err := pictures().draw(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"departures", "lateness", "scale"} {
		raw, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(bytes.NewReader(raw))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if bytes.Contains(raw, []byte("NaN")) || bytes.Contains(raw, []byte("Inf")) {
			t.Errorf("%s has something at no place", name)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	if err := (&bench{}).draw(t.TempDir()); err == nil {
		t.Error("a directory without pictures, and no word of it")
	}
}

// With no runs at all the pictures are empty, not broken.
func TestPicturesOfNothing(t *testing.T) {
	for name, p := range map[string]picture{
		"departures": {plots: departurePlots(nil), width: 9 * vg.Inch, height: 7 * vg.Inch}, "lateness": latenessPicture([]spread{{name: "x", target: 1}}),
		"scale":   scalePicture(nil),
		"forward": {plots: [][]*plot.Plot{{delayPlot([]*delays{{Absent: "x"}})}}, width: vg.Inch, height: vg.Inch},
	} {
		if _, err := p.encode("svg"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestThousands(t *testing.T) {
	for x, want := range map[float64]string{
		0.01: "0.01", 1: "1", 100: "100", 1000: "1,000", 10_000: "10,000", 1_000_000: "1,000,000",
	} {
		if got := thousands(x); got != want {
			t.Errorf("%v: %s", x, got)
		}
	}
}

func TestDecades(t *testing.T) {
	ticks := decades(thousands).Ticks(-2, 4)
	if len(ticks) != 6*9+1 || ticks[0].Label != "0.01" || ticks[1].Label != "" ||
		ticks[len(ticks)-1].Label != "10,000" {
		t.Errorf("%v", ticks)
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]string{10: "10", 1000: "1 k", 100_000: "100 k", 1_000_000: "1 M"} {
		if got := short(x); got != want {
			t.Errorf("%v: %s", x, got)
		}
	}
}

func TestCumulative(t *testing.T) {
	points := cumulative([]time.Duration{0, 0, time.Second, 9 * time.Second}, 8)
	if len(points) != 3 || points[0].Y != 2 || points[1].X != 1 || points[1].Y != 3 || points[2].X != 8 ||
		points[2].Y != 3 {
		t.Errorf("%v", points)
	}
}

func TestTicksAtMultiples(t *testing.T) {
	ticks := every(0.5, "%.1f").Ticks(0, 1)
	if len(ticks) != 3 || ticks[0].Label != "0.0" || ticks[2].Label != "1.0" {
		t.Errorf("%v", ticks)
	}
}
