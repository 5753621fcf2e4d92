package api

import (
	"maps"
	"net/http"
	"slices"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

// JobEndpoints are the ids of the operations that bring jobs, which guards can count by route and
// type.
func JobEndpoints() []string { return []string{"submit-job", "submit-batch", "replay-job"} }

// CountsJobs reports whether the guard counts jobs in the place of requests.
func (of IntakeGuard) CountsJobs() bool {
	return len(of.Routes) > 0 || len(of.Types) > 0 || slices.Contains(of.By, GuardByRoute) || slices.Contains(of.By, GuardByType)
}

// counts reports whether it counts the job of an operation.
func (g *intakeGuard) counts(job queue.Submission) bool {
	return (len(g.of.Routes) == 0 || slices.Contains(g.of.Routes, job.Route)) && (len(g.of.Types) == 0 || slices.Contains(g.of.Types, job.Type))
}

// guardJob asks the guards that count jobs for one; the error is the refusal.
func (s *Server) guardJob(c *call, job queue.Submission) error {
	if len(s.guards) == 0 { // most have none, and this is the way of every job
		return nil
	}
	return s.guardJobs(c, []queue.Submission{job}, make([]*problem.Problem, 1), true)
}

// guardJobs asks the guards that count jobs for those of a request, once it is known where they go
// and before any is admitted. A job of a batch counts as one that comes alone: of those with the
// same key as many pass as may, the first ones, and refused gets a problem for each of the others.
// Those that are refused already are not counted. Together they pass all or none, and the error is
// the refusal; while a guard that then refuses cannot ask its store, so is it of every request.
//
// What came from the admin listener is not counted: its operations are others.
func (s *Server) guardJobs(c *call, jobs []queue.Submission, refused []*problem.Problem, together bool) error {
	for _, g := range s.guards {
		if !g.ofJobs || !slices.Contains(JobEndpoints(), c.op) || !g.covers(c.op) {
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

// group finds the places of the jobs that the guard counts and no guard before has refused, by key;
// keys are in the order of their first jobs.
func (g *intakeGuard) group(c *call, jobs []queue.Submission, refused []*problem.Problem) (keys []string, groups map[string][]int) {
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

// admit asks for n jobs of a key. Together it is one question. Else they are as n requests one
// after the other, in fewer questions: those that there is room for at once, then one more, which
// is refused and begins a block where there is one. refusal is that of the jobs after the passed.
func (g *intakeGuard) admit(c *call, key string, n int, together bool) (passed int, refusal *problem.Problem) {
	for passed < n {
		ask := n - passed
		if !together && ask > 1 {
			if d, err := g.ask(c.r.Context(), key, 0); err == nil {
				ask = int(min(max(d.Remaining, 1), int64(ask)))
			}
		}
		decision, p, told := g.decide(c.r.Context(), key, int64(ask))
		if decision == GuardAllowed {
			passed += ask
			continue
		}
		g.observe(decision, int64(n-passed-ask))
		if p == nil { // in the shadow, or the store cannot be asked
			return n, nil
		}
		if p.Header == nil {
			p.Header = http.Header{}
		}
		maps.Copy(p.Header, told)
		return passed, p
	}
	return passed, nil
}
