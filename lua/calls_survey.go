package lua

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// SurveyCall reads what waits of some of a shard's tenants.
type SurveyCall struct {
	At             At
	Clock, Tenants string        // keys
	Cursor         string        // "0" begins
	Count          int           // tenants, about; a small shard is read at once
	Retention      time.Duration // of dead letters
}

// Survey is one page of it.
type Survey struct {
	Now      shaper.Instant
	Next     string // cursor of the next page, "0" at the end
	Backlogs []TenantBacklog
}

// TenantBacklog is what waits of one tenant.
type TenantBacklog struct {
	Entry                string // in the index of tenants
	Depth, Running, Dead int64
	Oldest               shaper.Instant // since when the oldest job could have left; 0 for none
}

// Call is the call in the form that is sent.
func (c SurveyCall) Call() Call {
	return Call{Commands.Survey, []string{c.Clock, c.Tenants}, []any{string(c.At), c.Cursor, c.Count, int64(c.Retention.Seconds())}}
}

// Decode reads the answer.
func (c SurveyCall) Decode(values []any) (Survey, error) {
	r := reader{values: values}
	s := Survey{Now: shaper.Instant(r.int()), Next: r.text()}
	for r.more() {
		s.Backlogs = append(s.Backlogs, TenantBacklog{Entry: r.text(), Depth: r.int(), Running: r.int(), Dead: r.int(), Oldest: shaper.Instant(r.int())})
	}
	return s, r.err
}
