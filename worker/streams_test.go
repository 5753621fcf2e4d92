package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreams()
		is := func(open int64, since time.Time) {
			t.Helper()
			oldest := int64(0)
			if !since.IsZero() {
				oldest = since.Unix()
			}
			if gotOpen, gotOldest := s.now(); gotOpen != open || gotOldest != oldest {
				t.Errorf("%d open since %d, want %d since %d", gotOpen, gotOldest, open, oldest)
			}
		}
		is(0, time.Time{})
		first := time.Now()
		endFirst := s.begin("a")
		time.Sleep(5 * time.Second)
		second := time.Now()
		endSecond := s.begin("b")
		is(2, first)
		endFirst()
		is(1, second)
		endSecond()
		is(0, time.Time{})
	})
}

func TestBrokenBy(t *testing.T) {
	for _, tt := range []struct {
		cause, err error
		want       string
	}{
		{nil, bodyError{io.ErrUnexpectedEOF}, "upstream"},
		{errLeft, bodyError{context.Canceled}, "client_left"},
		{errLong, errLong, "max_duration"},
		{errLost, errLost, "lease_lost"},
		{context.Canceled, context.Canceled, "worker_stopped"},
		{nil, errIdle, "idle_timeout"},
		{nil, errSlow, "client_slow"},
		{nil, fmt.Errorf("%w %d bytes", errLarge, 5), "max_response"},
		{nil, fmt.Errorf("store: %w", queue.ErrUnavailable), "store"},
		{nil, errors.New("another"), "store"},
	} {
		got := brokenBy(tt.cause, tt.err)
		if got != tt.want || newStreams().broken[got] == nil {
			t.Errorf("%v, %v: %q, want %q and a counter of it", tt.cause, tt.err, got, tt.want)
		}
	}
}
