package budget

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/deadline"
)

// The memory of a body follows what has arrived, not what was announced.
func TestAnnouncedBodyCostsNothing(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{}`))
	r.ContentLength = 8 << 20
	r.Header.Set("Content-Type", "application/json")
	budget := testBudget()
	content, _, err := budget.Read(httptest.NewRecorder(), r, Spec{
		Formats: []string{"application/json"}, Limit: 8 << 20,
	}, unowned)
	if err != nil || cap(content) > 2*FreeBody || budget.Count() != 0 {
		t.Errorf("%d bytes in memory, %d of the budget, %v", cap(content), budget.Count(), err)
	}
}

// A body is read whole, or not at all, and takes little more than twice its memory.
func TestBodiesInPieces(t *testing.T) {
	whole := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	odd := errors.New("odd")
	for _, size := range []int{0, 1, FreeBody - 1, FreeBody, FreeBody + 1, FreeBody + deadline.BodyStep,
		FreeBody + deadline.BodyStep + 1, 3 * deadline.BodyStep, len(whole)} {
		for name, end := range map[string]error{"whole": io.EOF, "cut": io.ErrUnexpectedEOF, "odd": odd} {
			from := io.MultiReader(iotest.HalfReader(bytes.NewReader(whole[:size])), iotest.ErrReader(end))
			content, err := readPieces(from)
			if end == io.EOF {
				if err != nil || !bytes.Equal(content, whole[:size]) {
					t.Errorf("%d bytes, %s: %d bytes, %v", size, name, len(content), err)
				}
			} else if !errors.Is(err, end) || content != nil {
				t.Errorf("%d bytes, %s: %d bytes, %v", size, name, len(content), err)
			}
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := readPieces(bytes.NewReader(whole)); err != nil {
		t.Error(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 20<<20 {
		t.Errorf("%d bytes took %d", len(whole), took)
	}
}

func testBudget() *Bodies {
	return NewBodies(DefaultTenantShare, DefaultAddressShare, prometheus.NewCounter(prometheus.CounterOpts{}))
}

func unowned() Owner { return Owner{} }

// Neither one tenant nor one address, whatever tenants it names, holds the memory of all.
func TestBodiesAreShared(t *testing.T) {
	budget := testBudget()
	take := func(tenant, address string, n int64) Bound { return budget.Take(Owner{tenant, address}, n) }
	if full := take("loud", "a", MaxBodies/4); full != Unbound {
		t.Fatalf("a tenant's share: %v", full)
	}
	if full := take("loud", "b", 1); full != ofTenant {
		t.Errorf("more than a tenant's share: %v", full)
	}
	if full := take("loud too", "a", MaxBodies/4); full != Unbound {
		t.Fatalf("an address's share: %v", full)
	}
	if full := take("third", "a", 1); full != ofAddress {
		t.Errorf("more than an address's share: %v", full)
	}
	if full := take("quiet", "b", 8<<20); full != Unbound {
		t.Errorf("another one: %v", full)
	}
	budget.Give(Owner{"loud", "a"}, MaxBodies/4)
	budget.Give(Owner{"loud too", "a"}, MaxBodies/4)
	budget.Give(Owner{"quiet", "b"}, 8<<20)
	if budget.Count() != 0 || len(budget.tenants) != 0 || len(budget.addresses) != 0 {
		t.Errorf("left: %d %v %v", budget.Count(), budget.tenants, budget.addresses)
	}
}

// The slowest body is evicted, of the same tenant where that has its share; one that goes on never
// is.
func TestSlowestBodyIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := testBudget()
		body := func(tenant string, size int64) *incoming {
			in := &incoming{
				budget: budget, owner: Owner{Tenant: tenant},
				control: http.NewResponseController(httptest.NewRecorder()),
			}
			for in.held < size {
				if err := in.step(); err != nil {
					t.Fatal(err)
				}
			}
			return in
		}
		other := body("other", MaxBodies/4)
		<-time.After(2 * BodyYield)
		slowest := body("loud", MaxBodies/8)
		<-time.After(BodyYield / 2)
		healthy := body("loud", MaxBodies/8-deadline.BodyStep)
		<-time.After(BodyYield / 2)
		if err := healthy.step(); err != nil {
			t.Error(err)
		}
		if err := healthy.step(); err != nil || !slowest.evicted || other.evicted {
			t.Errorf("%v; of its own %v, of another %v", err, slowest.evicted, other.evicted)
		}
		if err := slowest.step(); !errors.Is(err, errEvicted) {
			t.Errorf("an evicted body goes on: %v", err)
		}
		again := body("loud", MaxBodies/8-deadline.BodyStep)
		if err := again.step(); !errors.As(err, &errFull{}) || healthy.evicted {
			t.Errorf("%v; evicted one that goes on: %v", err, healthy.evicted)
		}
		for _, in := range []*incoming{other, slowest, healthy, again} {
			in.done()
		}
		if budget.Count() != 0 || budget.Arriving.Len() != 0 {
			t.Errorf("%d bytes held, %d arriving", budget.Count(), budget.Arriving.Len())
		}
	})
}
