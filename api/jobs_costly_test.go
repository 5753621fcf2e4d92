package api

import (
	"errors"
	"testing"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// The refusal of an atomic batch names the job that costs too much, also after one that costs as
// much and fits, or whose key is another job's.
func TestRefusedBatchNamesTheJob(t *testing.T) {
	for field, a := range map[string]shaper.Admission{
		"jobs[1].cost":            {Outcome: shaper.TooCostly, Cost: 5, MaxCost: 4},
		"jobs[1].idempotency_key": {Outcome: shaper.KeyReused},
	} {
		v := queue.Decision{Refused: 1, Admission: a}
		var p *problem.Problem
		if err := refusedWhole((&Server{}).refusal(v.Admission, "", "default", ""), v, 3); !errors.As(err, &p) || len(p.Errors) != 1 ||
			p.Errors[0].Field != field {
			t.Errorf("%v, with the errors %+v", err, p)
		}
	}
}
