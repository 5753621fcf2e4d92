package api

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
)

// Twelve clients find a queue of ten jobs full. Ten of them get the slots, which free a second
// apart, in turn; the others get any instant of the drain. A rejected item of a batch takes no
// turn, since it has no Retry-After.
func TestRefusedClientsGetSlotsOfTheirOwn(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PUT", "/v1/tenants/full", nil, `{"rate":{"limit":1,"period_ms":1000},"capacity":10}`)
	h := headers{"Sluice-Tenant": "full"}
	for range 10 {
		b.submit(plainJob, h)
	}
	b.intake.do(t, "POST", "/v1/jobs/batch", h, fmt.Sprintf(`{"jobs":[%s,%[1]s,%[1]s]}`, plainJob)).want(t,
		http.StatusOK, "")
	var waits []int
	for range 12 {
		r := b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
		r.want(t, http.StatusTooManyRequests, "queue-full")
		after, err := strconv.Atoi(r.Header().Get("Retry-After"))
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, after)
	}
	for i, after := range waits[:10] {
		if after < max(1, i) || after > i+1 {
			t.Errorf("Retry-After %v", waits)
		}
	}
	for _, after := range waits[10:] {
		if after < 1 || after > 11 {
			t.Errorf("Retry-After %d of a drain of 10 s", after)
		}
	}
}
