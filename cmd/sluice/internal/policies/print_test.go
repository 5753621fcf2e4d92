package policies

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// TestTenantOfAPool: a tenant has what its pool and the store allow, also where it has one route.
func TestTenantOfAPool(t *testing.T) {
	policy := wire.Policy{Overrides: shaper.Policy{
		Rate: shaper.Rate{Limit: 40, Period: time.Second}, Capacity: 1000}.Overrides(shaper.SettingsOfTenants())}
	figures := wire.Figures{LimitedBy: "pool", EffectiveRate: 18}
	flow := wire.Flow{
		Pool: "erp", PoolRate: 18, PoolPart: 0.5, Owed: 2939, StoredBytes: 471e6, ShareBytes: 468e6, Policy: policy, Figures: figures,
	}
	var out bytes.Buffer
	err := printTenant(&out, wire.Tenant{
		Tenant: "acme", Policy: policy, Figures: figures, StoredBytes: 471e6, Routes: map[string]wire.Flow{"default": flow},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"rate 40/s", "effective rate 18/s", "limited by pool",
		"pool erp, 18/s for all of its flows, 9/s for this one while the same flows wait; owes 2939 to it",
		"bytes stored ", "share of the store ", ": new jobs are refused",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if rows := poolRows(wire.Flow{Pool: "erp", PoolPart: 0.5, Policy: policy}); rows[0][1] != "erp, paused" {
		t.Errorf("a paused pool: %q", rows)
	}
}
