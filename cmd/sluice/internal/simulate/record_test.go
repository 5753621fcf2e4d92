package simulate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper/simulate"
)

var began = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// arrival returns an arrival at the given time after the beginning.
func arrival(after time.Duration, outcome string) wire.Arrival {
	return wire.Arrival{At: began.Add(after), Cost: 1, Route: "default", Outcome: outcome}
}

// telling is a server whose streams of arrivals begin with these texts, the n-th with the n-th; the
// last of them stays open.
func telling(t *testing.T, texts ...string) server {
	t.Helper()
	var n atomic.Int64
	end := make(chan struct{})
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := int(n.Add(1)) - 1
		if i >= len(texts) {
			http.Error(w, "no more", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": here\n\n"+texts[i])
		_ = http.NewResponseController(w).Flush()
		if i < len(texts)-1 {
			return
		}
		select {
		case <-r.Context().Done():
		case <-end:
		}
	}))
	t.Cleanup(h.Close)
	t.Cleanup(func() { close(end) })
	c, err := client.New(h.URL, "", h.Client())
	if err != nil {
		t.Fatal(err)
	}
	return server{c, h.URL}
}

// eventText is an event of arrivals as the server writes it.
func eventText(lost int, items ...string) string {
	return fmt.Sprintf("event: arrivals\ndata: {\"items\":[%s],\"lost\":%d}\n\n", strings.Join(items, ","), lost)
}

func item(at, outcome string) string {
	return fmt.Sprintf(`{"at":"2026-03-01T%sZ","cost":1,"route":"a,b","outcome":%q}`, at, outcome)
}

// The arrivals at two servers become one trace, in order.
func TestRecording(t *testing.T) {
	one := telling(t,
		eventText(0, item("12:00:00.000001", "admitted"), item("12:00:01", "refused"))+eventText(3,
			item("12:00:04", "admitted")))
	two := telling(t, eventText(0, item("12:00:02.5", "admitted"))+"event: other\ndata: {}\n\n")
	var out, stderr strings.Builder
	r := &recording{
		tenant: "acme", stderr: &stderr, came: make(chan wire.Arrivals, 64), retry: time.Millisecond,
	}
	streams, err := r.connect(t.Context(), []server{one, two})
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.run(t.Context(), []server{one, two}, streams, newTraceFile(&out), 100*time.Millisecond,
		func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if want := (recorded{Seconds: 0.1, Arrivals: 4, Admitted: 3, Refused: 1, Lost: 3}); s != want ||
		stderr.Len() > 0 {
		t.Errorf("%+v, want %+v; %s", s, want, stderr.String())
	}
	want := `at,cost,outcome,route
2026-03-01T12:00:00.000001Z,1,admitted,"a,b"
2026-03-01T12:00:01Z,1,refused,"a,b"
2026-03-01T12:00:02.5Z,1,admitted,"a,b"
2026-03-01T12:00:04Z,1,admitted,"a,b"
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	trace, _, err := simulate.Read(strings.NewReader(out.String()), simulate.Auto)
	if err != nil {
		t.Fatalf("the trace cannot be read again: %v", err)
	}
	queuetest.Compare(t, "the arrivals that are read again", len(trace), 4)
	queuetest.Compare(t, "their span", trace.Span(), 4*time.Second-time.Microsecond)
}

// A stream that breaks is opened again, and each break is reported.
func TestRecordingOverABreak(t *testing.T) {
	s := telling(t, eventText(0, item("12:00:00", "admitted")), "event: arrivals\ndata: nonsense\n\n",
		eventText(0, item("12:00:01", "admitted")))
	var stderr strings.Builder
	r := &recording{tenant: "acme", stderr: &stderr, came: make(chan wire.Arrivals), retry: time.Millisecond}
	streams, err := r.connect(t.Context(), []server{s})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.follow(ctx, s, streams[0])
	}()
	for range 2 {
		if came := <-r.came; len(came.Items) != 1 {
			t.Errorf("an event has the arrivals %+v, want one", came.Items)
		}
	}
	cancel()
	<-done
	text := stderr.String()
	queuetest.Compare(t, "the breaks", r.breaks, 2)
	queuetest.Compare(t, "how often a break is reported", strings.Count(text, "is reopened\n"), 2)
	queuetest.Contains(t, "what is reported", text, "has ended the stream", "is not valid")
}

// A recording does not begin without one of its servers, and names it.
func TestRecordingNeedsAllServers(t *testing.T) {
	one, two := telling(t, ""), telling(t)
	r := &recording{tenant: "acme"}
	_, err := r.connect(t.Context(), []server{one, two})
	if err == nil || !strings.Contains(err.Error(), two.address) {
		t.Errorf("%v, want an error that names %s", err, two.address)
	}
}

// An arrival is written when no earlier one can follow any longer.
func TestTraceFile(t *testing.T) {
	var out strings.Builder
	f := newTraceFile(&out)
	write := func(all bool, came ...float64) (lines int) {
		for _, s := range came {
			f.add([]wire.Arrival{arrival(time.Duration(s*float64(time.Second)), "admitted")})
		}
		if err := f.write(all); err != nil {
			t.Fatal(err)
		}
		return strings.Count(out.String(), "\n") - 1
	}
	for i, c := range []struct {
		come []float64
		want int
	}{{nil, 0}, {[]float64{1}, 0}, {[]float64{0.5, 3.2, 2}, 2}, {[]float64{1.5, 5.5}, 5}} {
		if got := write(false, c.come...); got != c.want {
			t.Errorf("step %d: %d lines, want %d", i, got, c.want)
		}
	}
	if got := write(true); got != 6 {
		t.Errorf("at the end: %d lines", got)
	}
	last := -1.0
	for line := range strings.Lines(out.String()) {
		if text, is := strings.CutPrefix(line, "2026-03-01T12:00:"); is {
			second, err := strconv.ParseFloat(strings.TrimSuffix(text, "Z,1,admitted,default\n"), 64)
			if err != nil || second < last {
				t.Errorf("%v after %v, %v", second, last, err)
			}
			last = second
		}
	}
}
