package main

import (
	"testing"
	"time"
)

func TestJudgeStarts(t *testing.T) {
	const ms = time.Millisecond
	var starts []start
	for n := range 100 {
		// A flow on its grid, a little late each time; and one whose grid began anew 40 ms later in the middle.
		starts = append(starts, start{flow: 0, stamp: time.Duration(n) * 10 * ms, at: time.Duration(n)*10*ms + ms})
		at := time.Duration(n) * 10 * ms
		if n >= 50 {
			at += 40 * ms
		}
		starts = append(starts, start{flow: 1, stamp: at, at: at + 2*ms})
	}
	r := judgeStarts(parse("100/s"), 2, starts)
	// The stamps of the second flow are on time for themselves, but not for the grid that it began with.
	if r.Count != 200 || r.P50 != 2 || r.P99 != 42 || r.Max != 42 {
		t.Errorf("%+v", r)
	}
	if want := 990.0 / 1030; abs(r.Slowest-want) > 1e-9 {
		t.Errorf("slowest %v, want %v", r.Slowest, want)
	}
}

// A flow of which nothing is seen has not kept its rate.
func TestJudgeStartsOfAbsentFlows(t *testing.T) {
	if r := judgeStarts(parse("1/s"), 2, []start{{flow: 1}, {flow: 1, at: time.Second, stamp: time.Second}}); r.Slowest != 0 {
		t.Errorf("%+v", r)
	}
	if r := judgeStarts(parse("1/s"), 1, nil); r.Slowest != 0 || r.Count != 0 {
		t.Errorf("%+v", r)
	}
}

// Handlers of one flow may start in another order than that of their stamps.
func TestJudgeStartsInAnyOrder(t *testing.T) {
	const ms = time.Millisecond
	r := judgeStarts(parse("1000/s"), 1, []start{{stamp: ms, at: 1100 * time.Microsecond}, {stamp: 0, at: 1200 * time.Microsecond}, {stamp: 2 * ms, at: 2 * ms}})
	if r.Max != 1.1 || r.Count != 3 {
		t.Errorf("%+v", r)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, late := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 11 * time.Microsecond, time.Millisecond + 1, time.Hour} {
		h.add(late)
	}
	if h[0] != 4 || h[20] != 1 || h[len(h)-1] != 1 {
		t.Errorf("%v", h)
	}
	if e := h.edge(20); abs(e-1) > 1e-12 {
		t.Errorf("bin 20 begins at %v ms", e)
	}
}
