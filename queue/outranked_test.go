package queue_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// A file that comes into force has its settings named that the API has set to other values: with
// tenant or pool, route, setting and both values. Equal ones, and settings of one source, are not.
func TestOutrankedSettingsAreLogged(t *testing.T) {
	var log bytes.Buffer
	rate := func(n int64) *shaper.Rate { return &shaper.Rate{Limit: n, Period: time.Second} }
	logger := slog.New(slog.NewTextHandler(&log, nil))
	q, err := queue.Connect(t.Context(), queue.EngineOptions{Embedded: true, Logger: logger},
		queue.Options{Shards: 2, Logger: logger, Tiers: map[string]shaper.Overrides{"free": {}, "pro": {}}, Pools: map[string]shaper.PoolSettings{
			"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: rate(9)}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	to := func(o shaper.Overrides) queue.Change {
		return queue.Change{Edit: func(shaper.Overrides) (shaper.Overrides, error) { return o, nil }}
	}
	api := shaper.Overrides{Rate: rate(5), Capacity: new(int64(7)), Rates: &[]shaper.PaceJSON{}, Tier: new("pro"),
		Routes: map[string]shaper.Overrides{"default": {Paused: new(true)}}}
	if _, err = q.Tune(t.Context(), "acme", to(api)); err == nil {
		_, err = q.TunePool(t.Context(), "erp", to(shaper.Overrides{Rate: rate(4)}))
	}
	if err != nil {
		t.Fatal(err)
	}
	log.Reset()
	file := shaper.Overrides{Rate: rate(10), Capacity: new(int64(7)), Burst: new(int64(3)), Tier: new("free"),
		Rates:  &[]shaper.PaceJSON{{Limit: 60, PeriodMS: 60_000, Burst: 1}},
		Routes: map[string]shaper.Overrides{"default": {Paused: new(false)}, "erp": {Paused: new(true)}}}
	err = q.SetPolicies(t.Context(), shaper.Baseline{Defaults: shaper.DefaultPolicy(),
		Tiers: map[string]shaper.Overrides{"free": {}, "pro": {}},
		Pools: map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: rate(9)}}},
	}, map[string]shaper.Overrides{"acme": file})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(log.String()) {
		if _, attrs, is := strings.Cut(line, `msg="the API has set a setting of the file to another value, which is in force" `); is {
			got = append(got, strings.TrimSpace(attrs))
		}
	}
	want := []string{
		"pool=erp setting=rate file=9/s api=4/s",
		"tenant=acme setting=rate file=10/s api=5/s",
		`tenant=acme setting=rates file="60/m burst 1" api=none`,
		"tenant=acme setting=tier file=free api=pro",
		"tenant=acme route=default setting=paused file=false api=true",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the log has\n%s\nwant\n%s\nof\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), log.String())
	}
}
