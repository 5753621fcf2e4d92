package policies

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

const (
	planCalls = 16 // concurrent requests
	planTries = 5  // for a tenant that somebody else changes meanwhile
)

// planFlags name the file with the wanted API overrides.
type planFlags struct {
	cli.AdminFlags
	File  string `short:"f" required:"" placeholder:"FILE" help:"YAML file with a section tenants as in the configuration file, without defaults."`
	Prune bool   `help:"Remove the API overrides of tenants that the file does not name."`
	JSON  bool   `help:"Print JSON."`
}

// tenantPlan holds the changes of one tenant, and later their outcome.
type tenantPlan struct {
	Tenant  string          `json:"tenant"`
	Pruned  bool            `json:"pruned,omitempty"` // it is not in the file
	Changes []settingChange `json:"changes"`
	Applied bool            `json:"applied,omitempty"`
	Error   string          `json:"error,omitempty"` // why the server refuses it

	wanted   shaper.Overrides
	revision int64 // that the changes are based on
	printed  bool  // the refusal was printed
}

// differs reports whether there are changes, including refused ones.
func (p tenantPlan) differs() bool { return len(p.Changes) > 0 || p.Error != "" }

// planner computes and makes changes through the admin listener.
type planner struct {
	remote *client.Client
	prune  bool
}

// plans returns the tenants that differ, by name, and how many were compared. Refusals are part of
// the plans; the error is a failure of the server.
func (p planner) plans(ctx context.Context, wanted map[string]shaper.Overrides,
	t *cli.Tally) (plans []tenantPlan, compared int, err error) {
	all := make([]tenantPlan, 0, len(wanted))
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		all = append(all, tenantPlan{Tenant: name, wanted: wanted[name]})
	}
	if p.prune {
		others, err := p.overridden(ctx, wanted)
		if err != nil {
			return nil, 0, fmt.Errorf("list the tenants: %w", err)
		}
		for _, name := range others {
			all = append(all, tenantPlan{Tenant: name, Pruned: true})
		}
	}
	err = side(ctx, len(all), func(ctx context.Context, i int) error {
		defer t.Accept()
		return p.work(ctx, &all[i])
	})
	if err != nil {
		return nil, 0, fmt.Errorf("compare the tenants: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(all), func(t tenantPlan) bool { return !t.differs() }),
		len(all), nil
}

// overridden returns the tenants with API overrides that are not named.
func (p planner) overridden(ctx context.Context, named map[string]shaper.Overrides) ([]string, error) {
	found := map[string]bool{}
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := p.remote.Tenants(ctx, cursor, tenantPage)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Items {
			if _, isNamed := named[t.Tenant]; !isNamed && len(declared(t.Overrides)) > 0 {
				found[t.Tenant] = true
			}
		}
		cursor = page.NextCursor
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// work reads the tenant and computes its changes by a dry run of the server. A refusal goes into
// the plan.
func (p planner) work(ctx context.Context, plan *tenantPlan) error {
	for range planTries {
		before, err := p.remote.Tenant(ctx, plan.Tenant)
		if err != nil {
			return plan.refused(err)
		}
		plan.Changes, plan.revision = []settingChange{}, before.Revision
		if maps.Equal(declared(before.Overrides), declared(&plan.wanted)) {
			return nil
		}
		after, err := p.remote.Replace(ctx, plan.Tenant, client.Replacement{Settings: wire.Settings{Overrides: plan.wanted},
			Revision: before.Revision, DryRun: true})
		switch {
		case statusOf(err) == http.StatusPreconditionFailed:
			continue
		case err != nil:
			return plan.refused(err)
		}
		plan.Changes = changesBetween(before, after)
		return nil
	}
	plan.Error = changedAgain
	return nil
}

const changedAgain = "too many concurrent changes"

// apply makes the change with the reason. A tenant that was changed meanwhile is compared again.
func (p planner) apply(ctx context.Context, plan *tenantPlan, reason string) error {
	settings := wire.Settings{Overrides: plan.wanted, Reason: reason}
	for range planTries {
		_, err := p.remote.Replace(ctx, plan.Tenant, client.Replacement{Settings: settings,
			Revision: plan.revision})
		if statusOf(err) != http.StatusPreconditionFailed {
			plan.Applied = err == nil
			return plan.refused(err)
		}
		if err := p.work(ctx, plan); err != nil || !plan.differs() || plan.Error != "" {
			return err // somebody else may have made the same change
		}
	}
	plan.Error = changedAgain
	return nil
}

// refused stores why the server refuses the tenant, and returns any other error.
func (p *tenantPlan) refused(err error) error {
	if err == nil || cli.Transient(err) || statusOf(err) != http.StatusUnprocessableEntity {
		return err
	}
	var answer *client.Error
	errors.As(err, &answer)
	var rules []string
	for _, e := range answer.Errors {
		rules = append(rules, e.Field+" "+e.Rule)
	}
	if p.Error = strings.Join(rules, "; "); p.Error == "" {
		p.Error = answer.Error()
	}
	return nil
}

// statusOf returns the status of the server's answer, 0 for any other error.
func statusOf(err error) int {
	var answer *client.Error
	if !errors.As(err, &answer) {
		return 0
	}
	return answer.Status
}

// side calls do for 0 to n-1, at most planCalls at once. After the first error it starts no more
// and waits for the running calls.
func side(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	begun, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next := make(chan int)
	var all sync.WaitGroup
	for range min(n, planCalls) {
		all.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					stop(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-begun.Done():
		}
		if begun.Err() != nil {
			break
		}
	}
	close(next)
	all.Wait()
	return context.Cause(begun)
}

// load reads the file and returns its tenants and a planner.
func (f *planFlags) load() (map[string]shaper.Overrides, planner, error) {
	wanted, err := config.LoadTenants("--file", f.File)
	if err != nil {
		return nil, planner{}, err
	}
	remote, err := f.Connect(planCalls)
	return wanted, planner{remote: remote, prune: f.Prune}, err
}
