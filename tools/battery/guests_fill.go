package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

const (
	fullTenants  = 120     // store.max_tenants
	fullMemory   = "64mb"  // of Redis
	guestPayload = 250_000 // bytes
	customers    = 40
	guestSenders = 4 // each may pass the bound by one
)

// guestsFillTheStore lets guests behind a trusted proxy store as much as they can, for as long as
// they can, and checks that customers are admitted meanwhile.
func guestsFillTheStore(ctx context.Context, w *world, f *findings) error {
	s := settings{
		routes:  map[string]string{otherRoute: ""},
		tenants: map[string]tenant{"acme": {rate: "100/s", capacity: 10_000}},
		more: "auth: { mode: [ keys, guest ], guest: { tier: guest, trusted_proxies: [ 127.0.0.1/32 ] } }\n" +
			"tiers: { guest: { rate: 1/m, capacity: 10 } }\n" +
			fmt.Sprintf("store: { max_tenants: %d }\n", fullTenants),
	}
	w.settings = s.withDefaults()
	if err := w.startRedis(ctx); err != nil {
		return err
	}
	if err := w.store.ConfigSet(ctx, "maxmemory", fullMemory).Err(); err != nil {
		return err
	}
	api, err := w.start(ctx, "api,worker")
	if err != nil {
		return err
	}
	before, err := w.memory(ctx)
	if err != nil {
		return err
	}
	tenants := append(names("customer", customers), "acme")
	keys, err := w.keysOf(ctx, api, tenants)
	if err != nil {
		return err
	}

	flood, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	var stored, refused, tries atomic.Int64
	body := []byte(`{"type":"battery","payload":` + payload("guest", guestPayload) + `,"delay_ms":600000}`)
	for range guestSenders {
		all.Go(func() {
			for flood.Err() == nil {
				i := tries.Add(1)
				from := map[string]string{"X-Forwarded-For": guestAddress(int(i))}
				text := body
				if i%3 != 0 {
					text = []byte(`{"type":"battery","payload":1,"delay_ms":600000}`)
				}
				switch status, _, _ := w.call(flood, http.MethodPost, w.api, "/v1/jobs", from, text); status {
				case http.StatusAccepted:
					stored.Add(1)
				case http.StatusServiceUnavailable:
					refused.Add(1)
				}
			}
		})
	}
	if err := until(ctx, "guests are refused", 10*time.Millisecond, func() (bool, error) {
		return refused.Load() > 100, nil
	}); err != nil {
		return err
	}
	watched, end := context.WithTimeout(ctx, w.scale.window)
	defer end()
	next := 0
	w.beside(watched, f, "submissions of customers", w.scale.window/150, http.StatusAccepted, func() (int, error) {
		tenant, route := tenants[next%len(tenants)], "default"
		if next++; next > len(tenants) {
			route = otherRoute // a new flow
		}
		status, raw, err := w.call(ctx, http.MethodPost, w.api, "/v1/jobs",
			map[string]string{"Authorization": "Bearer " + keys[tenant]},
			fmt.Appendf(nil, `{"type":"battery","route":%q,"payload":1}`, route))
		if status != http.StatusAccepted {
			err = fmt.Errorf("%s: %s", tenant, raw)
		}
		return status, err
	})
	stop()
	all.Wait()
	after, err := w.memory(ctx)
	if err != nil {
		return err
	}
	status, raw, err := w.call(ctx, http.MethodGet, api.admin, "/v1/tenants?limit=200", nil, nil)
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("list the tenants: %d %s %w", status, raw, err)
	}
	var list wire.TenantList
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	guests := 0
	for _, t := range list.Items {
		if strings.HasPrefix(t.Tenant, "guest:") {
			guests++
		}
	}
	f.info("jobs of guests", float64(stored.Load()), "")
	f.atLeast("503s of guests", float64(refused.Load()), 100, "")
	f.atMost("guests that are tenants", float64(guests), fullTenants/2+guestSenders, "")
	f.atMost("growth of Redis", float64(after-before)/(1<<20), 64*0.85*0.25*1.2, "MiB")
	return ctx.Err()
}

// guestAddress is the address of the ith request of the guests: of a few IPv4 addresses, of a /48
// with many guests, and of many /48s.
func guestAddress(i int) string {
	switch i % 4 {
	case 0:
		return fmt.Sprintf("192.0.2.%d", i/4%64)
	case 1:
		return fmt.Sprintf("2001:db8:1:%x::1", i%0x10000)
	default:
		return fmt.Sprintf("2001:db8:%x:%x::1", 0x10+i/4%16, i%0x10000)
	}
}

// keysOf makes an API key of each tenant and returns the secrets.
func (w *world) keysOf(ctx context.Context, s *sluice, tenants []string) (map[string]string, error) {
	keys := map[string]string{}
	for _, t := range tenants {
		status, raw, err := w.call(ctx, http.MethodPost, s.admin, "/v1/tenants/"+t+"/keys", nil, []byte(`{"name":"battery"}`))
		if err != nil || status != http.StatusCreated {
			return nil, fmt.Errorf("make a key of %s: %d %s %w", t, status, raw, err)
		}
		var k wire.NewKey
		if err := json.Unmarshal(raw, &k); err != nil {
			return nil, err
		}
		keys[t] = k.Secret
	}
	return keys, nil
}
