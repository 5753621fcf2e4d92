package worker

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	retry := Retry{MaxAttempts: 3, MinBackoff: time.Second, MaxBackoff: time.Minute}
	tests := []struct {
		status     int
		retryAfter string
		attempt    int
		event      shaper.Event
		response   bool
		hold       time.Duration
	}{
		{200, "", 1, shaper.Succeed, true, 0},
		{202, "", 1, shaper.Succeed, true, 0},
		{204, "5", 1, shaper.Succeed, true, 0},
		{299, "", 1, shaper.Succeed, true, 0},
		{101, "", 1, shaper.Die, true, 0},
		{300, "", 1, shaper.Die, true, 0},
		{301, "", 1, shaper.Die, true, 0},
		{307, "", 1, shaper.Die, true, 0},
		{304, "", 1, shaper.Die, true, 0},
		{400, "", 1, shaper.Die, true, 0},
		{401, "5", 1, shaper.Die, true, 0},
		{404, "", 1, shaper.Die, true, 0},
		{410, "", 1, shaper.Die, true, 0},
		{422, "", 1, shaper.Die, true, 0},
		{600, "", 1, shaper.Die, true, 0},
		{408, "", 1, shaper.Retry, false, 0},
		{425, "5", 1, shaper.Retry, false, 0},
		{429, "", 1, shaper.Retry, false, 0},
		{429, "soon", 1, shaper.Retry, false, 0},
		{500, "5", 1, shaper.Retry, false, 0},
		{502, "", 2, shaper.Retry, false, 0},
		{503, "", 1, shaper.Retry, false, 0},
		{504, "", 3, shaper.Retry, true, 0}, // the last attempt: the answer is kept with the dead job
		{599, "", 1, shaper.Retry, false, 0},
		{429, "5", 1, shaper.Hold, false, 5 * time.Second},
		{503, "7", 3, shaper.Hold, false, 7 * time.Second},
		{429, "0", 1, shaper.Hold, false, time.Second},
		{503, "Fri, 20 Nov 2026 12:00:30 GMT", 1, shaper.Hold, false, 30 * time.Second},
		{503, "Fri, 20 Nov 2026 11:00:00 GMT", 1, shaper.Hold, false, time.Second},
		{429, "86400", 1, shaper.Hold, false, time.Hour},
	}
	for _, tt := range tests {
		l := &queue.Lease{LeaseRef: queue.LeaseRef{ID: "x", Epoch: 4}, Attempt: tt.attempt, MaxAttempts: 9}
		s := retry.decide(l, &queue.Response{Status: tt.status}, tt.retryAfter, now)
		what := fmt.Sprintf("%d, Retry-After %q, attempt %d: ", tt.status, tt.retryAfter, tt.attempt)
		queuetest.Compare(t, what+"settlement", queuetest.Only(s, "LeaseRef", "Event", "MaxAttempts"),
			queue.Settlement{LeaseRef: l.LeaseRef, Event: tt.event, MaxAttempts: 3})
		queuetest.Compare(t, what+"the answer is kept", s.Response != nil, tt.response)
		if (s.Error == nil) != (tt.event == shaper.Succeed) || s.Error != nil && s.Error.Status != tt.status {
			t.Errorf("%d: error %+v", tt.status, s.Error)
		}
		if overload := tt.event == shaper.Retry && (tt.status == 429 || tt.status == 503); s.Overload != overload {
			t.Errorf("%d, Retry-After %q: overload is %v", tt.status, tt.retryAfter, s.Overload)
		}
		switch {
		case tt.event == shaper.Hold && s.Delay != tt.hold:
			t.Errorf("%d, Retry-After %q: held for %v, want %v", tt.status, tt.retryAfter, s.Delay, tt.hold)
		case tt.event == shaper.Retry && s.Delay < 800*time.Millisecond:
			t.Errorf("%d: retried after %v", tt.status, s.Delay)
		}
	}
}

var retryAfterCases = []struct {
	value string
	wait  time.Duration
	ok    bool
}{
	{"", 0, false},
	{"  ", 0, false},
	{"0", 0, true},
	{"120", 2 * time.Minute, true},
	{" 5 ", 5 * time.Second, true},
	{"007", 7 * time.Second, true},
	{"3600", time.Hour, true},
	{"3601", time.Hour, true},
	{"99999999999999999999999999", time.Hour, true},
	{"9223372036854775807", time.Hour, true},
	{"-1", 0, false},
	{"+1", 0, false},
	{"1.5", 1500 * time.Millisecond, true},
	{"0.2501", 251 * time.Millisecond, true},
	{".", 0, false},
	{"1.2.3", 0, false},
	{"2, 3", 3 * time.Second, true},
	{"3,2", 3 * time.Second, true},
	{"2,", 0, false},
	{"Fri, 20 Nov 2026 12:01:00 UTC", time.Minute, true},
	{"Fri, 20 Nov 2026 12:01:00 +0000", time.Minute, true},
	{"NaN", 0, false},
	{"Inf", 0, false},
	{"1e3", 0, false},
	{"5 seconds", 0, false},
	{"٥", 0, false},
	{"Fri, 20 Nov 2026 12:01:00 GMT", time.Minute, true},
	{"Friday, 20-Nov-26 12:01:00 GMT", time.Minute, true},
	{"Fri Nov 20 12:01:00 2026", time.Minute, true},
	{"Fri, 20 Nov 2026 11:59:00 GMT", 0, true},
	{"Mon, 01 Jan 0001 00:00:00 GMT", 0, true},
	{"Fri, 31 Dec 9999 23:59:59 GMT", time.Hour, true},
	{"2026-11-20T12:01:00Z", 0, false},
}

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, tt := range retryAfterCases {
		if wait, ok := parseRetryAfter(tt.value, now); wait != tt.wait || ok != tt.ok {
			t.Errorf("%q: %v %v, want %v %v", tt.value, wait, ok, tt.wait, tt.ok)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, tt := range retryAfterCases {
		f.Add(tt.value, int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		now := time.Unix(unix%(1<<35), 0)
		wait, ok := parseRetryAfter(value, now)
		if wait < 0 || wait > maxHold || !ok && wait != 0 {
			t.Errorf("%q: %v %v", value, wait, ok)
		}
		// What the standard library takes for a date in reach must be met exactly.
		date, err := http.ParseTime(strings.TrimSpace(value))
		if err == nil && ok && date.After(now) && date.Before(now.Add(maxHold)) && wait != date.Sub(now) {
			t.Errorf("%q: %v, want %v", value, wait, date.Sub(now))
		}
	})
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"short", 10, "short"}, {"exact", 5, "exact"}, {"longer", 4, "long"}, {"añb", 2, "a"},
		{"añb", 3, "añ"}, {"a\xffb", 9, "ab"}, {"日本", 5, "日"}, {"", 3, ""},
	} {
		if got := outbound.CutTo(tt.in, tt.n); got != tt.want || !utf8.ValidString(got) {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
}
