package shaper_test

import (
	"slices"
	"testing"

	"github.com/7509e464/sluice/shaper"
)

var (
	states = []shaper.State{
		shaper.Scheduled, shaper.Queued, shaper.Leased, shaper.Retrying,
		shaper.Succeeded, shaper.Dead, shaper.Cancelled, shaper.Expired,
	}
	events = []shaper.Event{
		shaper.Due, shaper.Stamped, shaper.Succeed, shaper.Retry, shaper.Die, shaper.Hold,
		shaper.Release, shaper.LeaseExpired, shaper.Cancel, shaper.Overdue, shaper.Replay,
	}
)

// TestLifeOfAJob goes through every state and every event: the arrows of the diagram in doc.go
// exist, and no others.
func TestLifeOfAJob(t *testing.T) {
	type arrow struct {
		from  shaper.State
		event shaper.Event
	}
	diagram := map[arrow]shaper.State{
		{shaper.Scheduled, shaper.Due}:       shaper.Queued,
		{shaper.Scheduled, shaper.Cancel}:    shaper.Cancelled,
		{shaper.Scheduled, shaper.Overdue}:   shaper.Expired,
		{shaper.Queued, shaper.Stamped}:      shaper.Leased,
		{shaper.Queued, shaper.Cancel}:       shaper.Cancelled,
		{shaper.Queued, shaper.Overdue}:      shaper.Expired,
		{shaper.Retrying, shaper.Due}:        shaper.Queued,
		{shaper.Retrying, shaper.Cancel}:     shaper.Cancelled,
		{shaper.Retrying, shaper.Overdue}:    shaper.Expired,
		{shaper.Leased, shaper.Succeed}:      shaper.Succeeded,
		{shaper.Leased, shaper.Retry}:        shaper.Retrying,
		{shaper.Leased, shaper.Die}:          shaper.Dead,
		{shaper.Leased, shaper.Hold}:         shaper.Queued,
		{shaper.Leased, shaper.Release}:      shaper.Queued,
		{shaper.Leased, shaper.LeaseExpired}: shaper.Queued,
		{shaper.Dead, shaper.Replay}:         shaper.Queued,
	}
	for _, from := range append([]shaper.State{0, '?'}, states...) {
		for _, event := range append([]shaper.Event{"", "explode"}, events...) {
			want, drawn := diagram[arrow{from, event}]
			if got, ok := from.After(event); ok != drawn || got != want {
				t.Errorf("%v after %q = %v, %v; want %v, %v", from, event, got, ok, want, drawn)
			}
		}
	}
}

func TestStateKinds(t *testing.T) {
	waiting := []shaper.State{shaper.Scheduled, shaper.Queued, shaper.Retrying}
	for _, s := range states {
		waits := slices.Contains(waiting, s)
		if s.Waiting() != waits {
			t.Errorf("%v: Waiting = %v", s, s.Waiting())
		}
		if done := !waits && s != shaper.Leased; s.Done() != done {
			t.Errorf("%v: Done = %v", s, s.Done())
		}
		// Only waiting jobs are cancelled or expire, and nothing leaves a done state but a replay.
		if _, ok := s.After(shaper.Cancel); ok != waits {
			t.Errorf("%v can be cancelled: %v", s, ok)
		}
		for _, e := range events {
			if _, ok := s.After(e); ok && s.Done() && e != shaper.Replay {
				t.Errorf("%v is done, yet %q leaves it", s, e)
			}
		}
	}
	if s := shaper.State(0); s.Waiting() || s.Done() {
		t.Error("the zero state is neither waiting nor done")
	}
}

// TestStateBytes pins what stored records hold: these must never change.
func TestStateBytes(t *testing.T) {
	if got := string([]byte{
		byte(shaper.Scheduled), byte(shaper.Queued), byte(shaper.Leased), byte(shaper.Retrying),
		byte(shaper.Succeeded), byte(shaper.Dead), byte(shaper.Cancelled), byte(shaper.Expired),
	}); got != "sqlrSdcx" {
		t.Errorf("stored bytes = %q", got)
	}
}

func TestStateNamesRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for _, want := range states {
		text, err := want.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(text)] {
			t.Errorf("two states are called %s", text)
		}
		seen[string(text)] = true
		var got shaper.State
		if err := got.UnmarshalText(text); err != nil || got != want {
			t.Errorf("%v is %s, which is %v, %v", want, text, got, err)
		}
	}
	for _, name := range []string{"", "Queued", "queue", "done", "State(0)", "q"} {
		got := shaper.Leased
		if err := got.UnmarshalText([]byte(name)); err == nil || got != shaper.Leased {
			t.Errorf("%q is read as %v, %v", name, got, err)
		}
	}
	if got := shaper.State(0).String(); got != "State(0)" {
		t.Errorf("the zero state prints %q", got)
	}
}
