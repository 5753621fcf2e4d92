package browsertest

import (
	"context"
	"math/rand/v2"
	"time"
)

// Traffic submits jobs of a tenant to a route until ctx ends: mean a second, in bursts and pauses
// drawn from a seed.
func (p *Program) Traffic(ctx context.Context, tenant, route string, mean float64, seed uint64) {
	const step = 100 * time.Millisecond
	rnd := rand.New(rand.NewPCG(seed, 17))
	burst := 0
	tick := time.NewTicker(step)
	defer tick.Stop()
	owed := 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if burst--; burst < 0 && rnd.Float64() < 0.022 {
			burst = 8 + rnd.IntN(12)
		}
		factor := 0.25
		if burst >= 0 {
			factor = 3.6
		}
		owed += mean * step.Seconds() * factor * rnd.ExpFloat64()
		if n := min(int(owed), 500); n > 0 {
			owed -= float64(n)
			_ = p.SubmitTo(ctx, tenant, route, n) // refusals are part of the picture
		}
	}
}
