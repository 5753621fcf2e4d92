package api

import (
	"errors"
	"testing"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// The refusal of an atomic batch names the job that costs too much, also after one that costs as
// much and fits.
func TestRefusedBatchNamesTheCostlyJob(t *testing.T) {
	v := queue.Decision{Refused: 1, Admission: shaper.Admission{Outcome: shaper.TooCostly, Cost: 5, MaxCost: 4}}
	var p *problem.Problem
	if err := refusedWhole((&Server{}).refusal(v.Admission, "", "default", ""), v, 3); !errors.As(err, &p) || len(p.Errors) != 1 ||
		p.Errors[0].Field != "jobs[1].cost" {
		t.Errorf("%v, with the errors %+v", err, p)
	}
}
