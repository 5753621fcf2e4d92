package api

import (
	"net/http"
	"slices"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

// counts reports whether the guard counts the job.
func (g *intakeGuard) counts(job queue.Submission) bool {
	return (len(g.of.Routes) == 0 || slices.Contains(g.of.Routes, job.Route)) &&
		(len(g.of.Types) == 0 || slices.Contains(g.of.Types, job.Type))
}

// guardJob is guardJobs for one job.
func (s *Server) guardJob(c *call, job queue.Submission) error {
	if err := c.who.RequireJob(job.Route, job.Type); err != nil {
		return s.forbidden(err)
	}
	if len(s.guards) == 0 { // the usual case, on the path of every job
		return nil
	}
	return s.guardJobs(c, []queue.Submission{job}, make([]*problem.Problem, 1), true)
}

// guardJobs checks that the credential allows every job, and asks the guards that count jobs, once
// the routes of the jobs are known and before any job is admitted. One job that the credential does
// not allow refuses all. Jobs that are refused already are not counted.
//
// With together false each job counts for itself. Of the jobs with one key the first ones pass, up
// to the limit, and refused gets a problem for each of the others. With together true they pass all
// or none, and the error is the refusal. A 503 of a guard that fails closed refuses the whole
// request.
//
// Jobs from the admin listener are not counted, because its operations are not JobEndpoints.
func (s *Server) guardJobs(
	c *call, jobs []queue.Submission, refused []*problem.Problem, together bool,
) error {
	for i, job := range jobs {
		if refused[i] != nil {
			continue
		}
		if err := c.who.RequireJob(job.Route, job.Type); err != nil {
			return s.forbidden(err)
		}
	}
	for _, g := range s.guards {
		if !g.ofJobs || !slices.Contains(guard.JobEndpoints(), c.op) || !g.covers(c.op) {
			continue
		}
		keys, groups := g.group(c, jobs, refused)
		for _, key := range keys {
			group := groups[key]
			passed, p := g.admit(c, key, len(group), together)
			switch {
			case p == nil:
				continue
			case together || p.Status != http.StatusTooManyRequests:
				return p
			}
			for _, i := range group[passed:] {
				refused[i] = p
			}
		}
	}
	return nil
}

// group returns the indices of the jobs that the guard counts and that are not refused, by key.
// keys are in the order of their first jobs.
func (g *intakeGuard) group(
	c *call, jobs []queue.Submission, refused []*problem.Problem,
) (keys []string, groups map[string][]int) {
	groups = map[string][]int{}
	for i, job := range jobs {
		if refused[i] != nil || !g.counts(job) {
			continue
		}
		key, counted := g.key(c.r, c.op, &c.who, job)
		if !counted {
			continue
		}
		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], i)
	}
	return keys, groups
}

// admit counts n jobs of a key, together or each for itself. refusal is that of the jobs after the
// passed ones.
func (g *intakeGuard) admit(
	c *call, key string, n int, together bool,
) (passed int, refusal *problem.Problem) {
	if !together {
		passed, result := g.TakeEach(c.r.Context(), key, n)
		return passed, refusedBy(result)
	}
	if result := g.Take(c.r.Context(), key, n); result.Refusal != nil {
		return 0, refusedBy(result)
	}
	return n, nil
}
