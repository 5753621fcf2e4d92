package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/contract"
)

// ear is a client of a stream of arrivals that notes what came when.
type ear struct {
	*httptest.ResponseRecorder
	began time.Time
	seen  int
	notes []string
	t     testing.TB
}

// Flush notes what was written since the last one.
func (e *ear) Flush() {
	fresh := e.Body.String()[e.seen:]
	e.seen += len(fresh)
	for _, event := range readEvents(e.t, fresh) {
		var came wire.Arrivals
		if err := json.Unmarshal(event.Data, &came); err != nil || event.Event != "arrivals" {
			e.t.Errorf("%s %s: %v", event.Event, event.Data, err)
		}
		for _, a := range came.Items {
			e.notes = append(e.notes, fmt.Sprintf("%v: %s %s %d at %v", time.Since(e.began), a.Outcome,
				a.Route, a.Cost, a.At.Sub(e.began)))
		}
	}
	if strings.Contains(fresh, ": alive\n\n") {
		e.notes = append(e.notes, fmt.Sprint(time.Since(e.began), ": beat"))
	}
}

// listen follows the arrivals of acme until ctx ends or the server drains.
func (b *bench) listen(ctx context.Context, query string) *ear {
	b.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://localhost/v1/tenants/acme/arrivals"+query, nil).
		WithContext(ctx)
	e := &ear{ResponseRecorder: httptest.NewRecorder(), began: time.Now(), t: b.t}
	b.s.Admin().ServeHTTP(e, r)
	b.admin.check(b.t, r, reply{ResponseRecorder: e.ResponseRecorder})
	return e
}

// TestArrivalsAreFollowed: submissions, and the instants of their events.
func TestArrivalsAreFollowed(t *testing.T) {
	acme := headers{"Sluice-Tenant": "acme"}
	for _, tt := range []struct {
		name, query string
		want        []string
	}{
		{"all", "", []string{
			"0s: beat",
			"1s: admitted default 1 at 1s", "1.1s: admitted other 3 at 1.01s", "1.1s: refused default 1 at 1.02s",
			"15s: beat",
			"20s: refused default 1 at 20s",
		}},
		{"of a route", "?route=other", []string{"0s: beat", "1.01s: admitted other 3 at 1.01s", "15s: beat"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.admin.do(t, http.MethodPatch, "/v1/tenants/acme", nil, `{"capacity":2}`)
				go func() {
					time.Sleep(time.Second)
					b.submit(plainJob, acme)
					b.submit(plainJob, headers{"Sluice-Tenant": "else"})
					time.Sleep(10 * time.Millisecond)
					b.submit(`{"type":"t","payload":1,"route":"other","cost":3}`, acme)
					time.Sleep(10 * time.Millisecond)
					b.intake.do(t, http.MethodPost, "/v1/jobs", acme, plainJob)
					time.Sleep(18980 * time.Millisecond)
					b.intake.do(t, http.MethodPost, "/v1/jobs", acme, plainJob)
					b.s.Drain()
				}()
				if diff := cmp.Diff(tt.want, b.listen(t.Context(), tt.query).notes); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if got := openFollowers(b); got != 0 {
					t.Errorf("%v streams are left", got)
				}
			})
		})
	}
}

// openFollowers is how many follow somebody.
func openFollowers(b *bench) int {
	n := 0
	for {
		f, err := b.s.arrivals.Follow("anyone", "")
		if err != nil {
			break
		}
		defer f.Stop()
		n++
	}
	return 32 - n
}

func TestFollowersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		b.listen(ctx, "")
		if took := time.Since(began); took != time.Minute || openFollowers(b) != 0 {
			t.Errorf("after %v", took)
		}
	})
}

func TestFollowingThatIsRefused(t *testing.T) {
	b := newBench(t)
	for target, want := range map[string]int{
		"/v1/tenants/acme/arrivals?route=":                            http.StatusUnprocessableEntity,
		"/v1/tenants/acme/arrivals?speed=1":                           http.StatusUnprocessableEntity,
		"/v1/tenants/" + strings.Repeat("x", 256) + "/arrivals":       http.StatusUnprocessableEntity,
		"/v1/tenants/acme/arrivals?route=" + strings.Repeat("x", 256): http.StatusUnprocessableEntity,
	} {
		b.admin.do(t, http.MethodGet, target, nil, "").want(t, want, "invalid-request")
	}
	r := b.admin.do(t, http.MethodHead, "/v1/tenants/acme/arrivals", nil, "")
	if r.Code != http.StatusOK || r.Header().Get("Content-Type") != contract.StreamFormat {
		t.Errorf("%d %v", r.Code, r.Header())
	}
	for range 32 {
		f, err := b.s.arrivals.Follow("anyone", "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Stop()
	}
	b.admin.do(t, http.MethodGet, "/v1/tenants/acme/arrivals", nil, "").want(t, http.StatusServiceUnavailable,
		"too-many-streams")
}
