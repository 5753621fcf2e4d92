package tenants

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
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/cmd/sluice/config"
	"github.com/7509e464/sluice/cmd/sluice/internal/access"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper"
)

const (
	planCalls = 16 // requests at once
	planTries = 5  // for a tenant that others change at the same time
)

// planFlags say what the API overrides of tenants shall be.
type planFlags struct {
	access.AdminFlags
	File  string `short:"f" required:"" placeholder:"FILE" help:"YAML with the section tenants as in the configuration file, without defaults."`
	Prune bool   `help:"Drop the API overrides of tenants that the file does not name, too."`
	JSON  bool   `help:"Print JSON."`
}

// tenantPlan is what is to change of one tenant, and later what has become of that.
type tenantPlan struct {
	Tenant  string          `json:"tenant"`
	Pruned  bool            `json:"pruned,omitempty"` // the file does not name it
	Changes []settingChange `json:"changes"`
	Applied bool            `json:"applied,omitempty"`
	Error   string          `json:"error,omitempty"` // why the server refuses it

	wanted   *wire.Overrides
	revision int64 // that the changes were worked out for
	told     bool  // the refusal was printed
}

// differs reports whether there is something to change, also if the server would not.
func (p tenantPlan) differs() bool { return len(p.Changes) > 0 || p.Error != "" }

// planner works out changes through the admin listener.
type planner struct {
	remote *client.Client
	prune  bool
}

// plans returns what is to change, by name, and how many tenants were looked at. Refusals are part
// of the plans; the error is that of a server that does not work.
func (p planner) plans(ctx context.Context, wanted map[string]shaper.Overrides, t *console.Tally) (plans []tenantPlan, looked int, err error) {
	all := make([]tenantPlan, 0, len(wanted))
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		all = append(all, tenantPlan{Tenant: name, wanted: new(wire.OverridesOf(wanted[name]))})
	}
	if p.prune {
		others, err := p.overridden(ctx, wanted)
		if err != nil {
			return nil, 0, fmt.Errorf("list the tenants: %w", err)
		}
		for _, name := range others {
			all = append(all, tenantPlan{Tenant: name, Pruned: true, wanted: &wire.Overrides{}})
		}
	}
	err = side(ctx, len(all), func(ctx context.Context, i int) error {
		defer t.Accept()
		return p.work(ctx, &all[i])
	})
	if err != nil {
		return nil, 0, fmt.Errorf("compare the tenants: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(all), func(t tenantPlan) bool { return !t.differs() }), len(all), nil
}

// overridden names the tenants that are not among the named ones and of which something was said
// through the API.
func (p planner) overridden(ctx context.Context, named map[string]shaper.Overrides) ([]string, error) {
	found := map[string]bool{}
	for cursor, more := "", true; more; more = cursor != "" {
		page, err := p.remote.Tenants(ctx, cursor, tenantPage)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Items {
			if _, isNamed := named[t.Tenant]; !isNamed && len(saidTexts(t.Overrides)) > 0 {
				found[t.Tenant] = true
			}
		}
		cursor = page.NextCursor
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// work reads the tenant and lets the server say what it would become. A refusal goes into the plan.
func (p planner) work(ctx context.Context, plan *tenantPlan) error {
	for range planTries {
		before, err := p.remote.Tenant(ctx, plan.Tenant)
		if err != nil {
			return plan.refused(err)
		}
		plan.Changes, plan.revision = []settingChange{}, before.Revision
		if maps.Equal(saidTexts(before.Overrides), saidTexts(plan.wanted)) {
			return nil
		}
		after, err := p.remote.Replace(ctx, plan.Tenant, client.Replacement{Settings: settingsOf(plan.wanted), Revision: before.Revision, DryRun: true})
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

const changedAgain = "it was changed by others again and again"

// apply makes the change, for the reason. A tenant that was changed meanwhile is looked at anew.
func (p planner) apply(ctx context.Context, plan *tenantPlan, reason string) error {
	settings := settingsOf(plan.wanted)
	settings.Reason = reason
	for range planTries {
		_, err := p.remote.Replace(ctx, plan.Tenant, client.Replacement{Settings: settings, Revision: plan.revision})
		if statusOf(err) != http.StatusPreconditionFailed {
			plan.Applied = err == nil
			return plan.refused(err)
		}
		if err := p.work(ctx, plan); err != nil || !plan.differs() || plan.Error != "" {
			return err // perhaps others have made the same change
		}
	}
	plan.Error = changedAgain
	return nil
}

// refused notes why the server refuses the tenant; any other error it gives back.
func (p *tenantPlan) refused(err error) error {
	if err == nil || access.Transient(err) || statusOf(err) != http.StatusUnprocessableEntity {
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

// statusOf is the status of the server's answer, 0 if the error is none.
func statusOf(err error) int {
	var answer *client.Error
	if !errors.As(err, &answer) {
		return 0
	}
	return answer.Status
}

// side does n things, a bounded number of them side by side. After the first error no other is
// begun; those that are, come to their end.
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

// load reads the file and connects.
func (f *planFlags) load() (map[string]shaper.Overrides, planner, error) {
	wanted, err := config.LoadTenants("--file", f.File)
	if err != nil {
		return nil, planner{}, err
	}
	remote, err := f.Connect(planCalls)
	return wanted, planner{remote: remote, prune: f.Prune}, err
}
