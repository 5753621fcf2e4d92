package codec

import (
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Tenant converts a tenant to its JSON form.
func Tenant(t queue.Tenant) wire.Tenant {
	settings := shaper.SettingsOfTenants()
	out := wire.Tenant{
		Tenant: t.Name, Tier: t.Tier, Policy: policy(t.Policy, settings, t.Sources), Draining: t.Policy.Draining,
		Reason: t.Reason, Revision: t.Revision,
		Figures: figuresOf(t.Figures), StoredBytes: t.Stored, DeadBytes: t.DeadBytes,
	}
	if !t.API.Empty() {
		out.Overrides = &t.API
	}
	for route, f := range t.Routes {
		if out.Routes == nil {
			out.Routes = map[string]wire.Flow{}
		}
		out.Owed += f.Owed
		out.Routes[route] = wire.Flow{
			Pool: f.Pool, PoolRate: f.PoolRate, PoolPart: f.Part, Owed: f.Owed, StoredBytes: f.Stored, ShareBytes: f.Share,
			Policy: policy(f.Policy, settings, f.Sources), Figures: figuresOf(f.Figures),
		}
	}
	return out
}

// policy converts these settings of a policy to their JSON form.
func policy(p shaper.Policy, of []shaper.Setting, sources map[string]string) wire.Policy {
	if sources == nil {
		sources = map[string]string{}
	}
	return wire.Policy{Overrides: p.Overrides(of), Sources: sources}
}

// Reserve returns the JSON form of a reserve, nil for none.
func Reserve(r shaper.Rate) *shaper.Rate {
	if r == (shaper.Rate{}) {
		return nil
	}
	return &r
}

// heldUntil is the end of the hold, zero if there is none.
func heldUntil(until time.Time) time.Time {
	if until.IsZero() {
		return time.Time{}
	}
	return until.UTC()
}

func figuresOf(f queue.Figures) wire.Figures {
	return wire.Figures{
		Depth: f.Depth, Bytes: f.Bytes, Running: f.Running, LimitedBy: f.LimitedBy,
		EffectiveRate: f.EffectiveRate, OldestWaitMS: f.OldestWait.Milliseconds(),
		Admitted: f.Admitted, Rejected: f.Rejected, Departed: f.Departed, Succeeded: f.Succeeded,
		Failed:      max(0, f.Departed-f.Succeeded-f.Running),
		DeadLetters: f.Dead, Dead: f.DeadTotal,
		HeldUntil: heldUntil(f.HeldUntil), HeldBy: f.HeldBy.By, HeldStatus: f.HeldBy.Status,
	}
}

// Swept converts the result of a purge or a replay to its JSON form.
func Swept(swept queue.Swept) wire.Swept {
	out := wire.Swept{Count: swept.Count, More: swept.More, CreatedBefore: UTC(swept.CreatedBefore)}
	if a := swept.Refusal; a != nil {
		out.Stopped, out.StoppedRoute = problem.QueueFull.Name, swept.RefusedRoute
		switch {
		case a.Outcome == shaper.Draining:
			out.Stopped = problem.TenantDraining.Name
		case a.Outcome == shaper.Denied, a.Outcome == shaper.TypeDenied:
			out.Stopped = problem.Forbidden.Name
		case a.Never:
			out.Stopped = problem.NeverFits.Name
		case a.Outcome == shaper.FullOfBytes:
			out.Stopped = problem.QueueBytesFull.Name
		}
		out.RetryAfterMS = problem.Millis(a.RetryAfter)
	}
	return out
}

// Line converts the figures of a tenant to a line of the table.
func Line(b *queue.Brief) wire.TenantLine {
	return wire.TenantLine{
		Tenant: b.Name, Rate: b.Rate, Rates: shaper.PacesJSON(b.Rates),
		EffectiveRate: b.Allowed(), Capacity: b.Capacity, Depth: b.Depth, Running: b.Running,
		Paused:    b.Paused,
		LimitedBy: b.LimitedBy, OldestWaitMS: b.OldestWait.Milliseconds(), Admitted: b.Admitted,
		Rejected: b.Rejected, Departed: b.Departed,
		Succeeded: b.Succeeded, DeadLetters: b.Dead, Dead: b.DeadTotal, Owed: b.Owed,
		HeldUntil: heldUntil(b.HeldUntil), HeldBy: b.HeldBy.By, HeldStatus: b.HeldBy.Status,
	}
}
