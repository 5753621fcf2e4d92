package ticket

import (
	"maps"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
)

func TestTicketRoundTrip(t *testing.T) {
	want := Ticket{
		Ref: queue.LeaseRef{ID: "06ah2k0000000000000000000g0f", Epoch: 31}, Within: 90 * time.Minute,
		MaxAttempts: 5,
	}
	id := TaskID(want.Ref)
	if id != "06ah2k0000000000000000000g0f:31" {
		t.Errorf("the task's id is %q", id)
	}
	got, ok := Parse(id, want.Headers())
	if !ok || got != want {
		t.Errorf("got %+v %v, want %+v", got, ok, want)
	}
}

// TestTasksThatAreNotTouched: tasks of others are left unchanged.
func TestTasksThatAreNotTouched(t *testing.T) {
	ours := Ticket{Ref: queue.LeaseRef{ID: "a", Epoch: 1}, Within: time.Hour, MaxAttempts: 1}.Headers()
	with := func(name, value string) map[string]string {
		h := maps.Clone(ours)
		h[name] = value
		return h
	}
	for name, tt := range map[string]struct {
		id      string
		headers map[string]string
	}{
		"no headers":        {"a:1", nil},
		"a UUID":            {"5e1b1a86-0f5d-4f2c-8d6a-2f2c1a3b4c5d", ours},
		"no epoch":          {"a:", ours},
		"no id":             {":1", ours},
		"epoch is a word":   {"a:first", ours},
		"epoch 0":           {"a:0", ours},
		"two epochs":        {"a:1:2", ours},
		"empty":             {"", ours},
		"within missing":    {"a:1", map[string]string{maxAttemptsHeader: "5"}},
		"within 0":          {"a:1", with(withinHeader, "0")},
		"within a duration": {"a:1", with(withinHeader, "1h")},
		"within too long":   {"a:1", with(withinHeader, "9223372036854775807")},
		"no attempts":       {"a:1", with(maxAttemptsHeader, "0")},
		"attempts a word":   {"a:1", with(maxAttemptsHeader, "many")},
	} {
		if got, ok := Parse(tt.id, tt.headers); ok {
			t.Errorf("%s: taken for %+v", name, got)
		}
	}
}
