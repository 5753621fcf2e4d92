package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// check is one promise put to the test. To add one, write a function and name it in the list of its
// file; see all.
type check struct {
	id, what, target string
	quick, full      scale
	fullOnly         bool // too long for -quick
	peer             bool // another system on the same work: its figures get no verdict
	run              func(ctx context.Context, w *world, f *findings) error
}

// scale is how large a check is. A check reads what it needs.
type scale struct {
	jobs, tenants, kills int
	rounds               int           // of repeated work
	slow                 int           // connections to each listener that mean harm
	window               time.Duration // of observation
	limit                time.Duration // the check has failed by then; 0 is a minute and a half
}

// all lists the checks in their order. rates comes last: it uses the stamps of the others.
func all() []check {
	return slices.Concat(
		crashes(), outages(), disks(), forwarded(), fences(), paces(), isolation(), limits(), hostile(),
		starvation(), bounds(), clusters(), durableClusters(), sentinels(), upgrades(), losses(), points(),
		clocks(), guests(), rotations(), predictions(), peers(), bugs(), rates())
}

// figure is one number that a check has found.
type figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Bound  string  `json:"bound,omitempty"` // "≤" or "≥"; empty: for information
	Target float64 `json:"target,omitempty"`
	OK     bool    `json:"ok"`
	Timed  bool    `json:"timed,omitempty"` // a miss may be the machine's
}

func (f figure) String() string {
	text := f.Name + " " + strconv.FormatFloat(f.Value, 'g', 4, 64)
	if f.Value == float64(int64(f.Value)) {
		text = f.Name + " " + strconv.FormatInt(int64(f.Value), 10)
	}
	if f.Unit != "" {
		text += " " + f.Unit
	}
	if f.Bound != "" && f.Target != 0 {
		text += fmt.Sprintf(" (%s %s)", f.Bound, strconv.FormatFloat(f.Target, 'g', 5, 64))
	}
	return text
}

// findings collects the figures of a check, with explanations of those that miss their bounds.
type findings struct {
	figures []figure
	why     []string
}

// info adds a figure without a bound.
func (f *findings) info(name string, value float64, unit string) {
	f.figures = append(f.figures, figure{Name: name, Value: value, Unit: unit, OK: true})
}

func (f *findings) atMost(name string, value, most float64, unit string) {
	f.figures = append(f.figures, figure{
		Name: name, Value: value, Unit: unit, Bound: "≤", Target: most, OK: value <= most,
	})
}

func (f *findings) atLeast(name string, value, least float64, unit string) {
	f.figures = append(f.figures, figure{
		Name: name, Value: value, Unit: unit, Bound: "≥", Target: least, OK: value >= least,
	})
}

// none is a count that must be 0; examples say what was counted.
func (f *findings) none(name string, examples []string) {
	f.atMost(name, float64(len(examples)), 0, "")
	for _, e := range examples[:min(3, len(examples))] {
		f.because("%s: %s", name, e)
	}
}

// timed marks the last figure as dependent on the speed of this machine.
func (f *findings) timed() { f.figures[len(f.figures)-1].Timed = true }

// because explains a miss.
func (f *findings) because(format string, args ...any) {
	f.why = append(f.why, fmt.Sprintf(format, args...))
}

func (f *findings) missed() bool {
	return slices.ContainsFunc(f.figures, func(g figure) bool { return !g.OK })
}

func (f *findings) String() string {
	texts := make([]string, len(f.figures))
	for i, g := range f.figures {
		texts[i] = g.String()
		if !g.OK {
			texts[i] = "!! " + texts[i]
		}
	}
	return strings.Join(texts, ", ")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
