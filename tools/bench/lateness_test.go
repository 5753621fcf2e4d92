package main

import (
	"testing"
	"time"
)

func TestJudgeStarts(t *testing.T) {
	const ms = time.Millisecond
	var starts []start
	for n := range 100 {
		// A flow on its grid, a little late each time; and one whose grid began anew 40 ms later in
		// the middle.
		starts = append(starts, start{flow: 0, stamp: time.Duration(n) * 10 * ms, at: time.Duration(n)*10*ms + ms})
		at := time.Duration(n) * 10 * ms
		if n >= 50 {
			at += 40 * ms
		}
		starts = append(starts, start{flow: 1, stamp: at, at: at + 2*ms})
	}
	r := seen{starts: starts}.judge(parse("100/s"), 2)
	// The stamps of the second flow are on time for themselves, but not for the grid that it began
	// with.
	if r.Count != 200 || r.P50 != 2 || r.P99 != 42 || r.Max != 42 {
		t.Errorf("%+v", r)
	}
	if want := 990.0 / 1030; abs(r.Slowest-want) > 1e-9 {
		t.Errorf("slowest %v, want %v", r.Slowest, want)
	}
}

// A flow without starts has not kept its rate. What should have started by the end is late.
func TestJudgeStartsOfAbsentFlows(t *testing.T) {
	if r := (seen{starts: []start{{flow: 1}, {flow: 1, at: time.Second, stamp: time.Second}},
		until: 4 * time.Second}).judge(parse("1/s"), 2); r.Slowest != 0 || r.Max != 4000 || r.Count != 2 {
		t.Errorf("%+v", r)
	}
	if r := (seen{from: time.Second, until: 2500 * time.Millisecond}).
		judge(parse("1/s"), 1); r.Slowest != 0 || r.Count != 0 || r.Max != 1500 || r.P50 != 1500 {
		t.Errorf("%+v", r)
	}
}

// Handlers of one flow may start in another order than that of their stamps.
func TestJudgeStartsInAnyOrder(t *testing.T) {
	const ms = time.Millisecond
	r := seen{starts: []start{
		{stamp: ms, at: 1100 * time.Microsecond}, {stamp: 0, at: 1200 * time.Microsecond},
		{stamp: 2 * ms, at: 2 * ms},
	}}.judge(parse("1000/s"), 1)
	if r.Max != 1.1 || r.Count != 3 {
		t.Errorf("%+v", r)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, late := range []time.Duration{
		-time.Second, 0, 10 * time.Microsecond, 11 * time.Microsecond, time.Millisecond + 1, time.Hour,
	} {
		h.add(late)
	}
	if h[0] != 4 || h[20] != 1 || h[len(h)-1] != 1 {
		t.Errorf("%v", h)
	}
	if !h.beyond(20) || h.beyond(len(h)-1) || (histogram{}).beyond(0) {
		t.Error("where the values end")
	}
	if e := h.edge(20); abs(e-1) > 1e-12 {
		t.Errorf("bin 20 begins at %v ms", e)
	}
}
