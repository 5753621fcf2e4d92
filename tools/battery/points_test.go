package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	crashpoints "github.com/7509e464/sluice/internal/crash"
)

func TestStagesReachEveryPoint(t *testing.T) {
	for _, last := range []bool{false, true} {
		tenants := map[string]bool{}
		labels := map[string]bool{}
		for round := range 2 {
			for _, s := range stages(round, 5, func(n int) int {
				if last {
					return n - 1
				}
				return 0
			}) {
				labels[s.Label] = true
				if tenants[s.tenant] || s.nth < 1 || s.jobs < 1 || s.Label != "at-heartbeat" && s.nth > s.jobs {
					t.Errorf("%+v", s)
				}
				tenants[s.tenant] = true
			}
		}
		if len(labels) != len(crashpoints.Points) {
			t.Errorf("%d labels of %d", len(labels), len(crashpoints.Points))
		}
	}
}

func TestTenantOfATask(t *testing.T) {
	for body, want := range map[string]string{
		payload("after-enqueue-fire-0-12", 3): "after-enqueue-fire-0", `{"key":"x"}`: "", `nonsense`: "",
	} {
		if got := tenantOf([]byte(body)); got != want {
			t.Errorf("%s: %q", body, got)
		}
	}
}

func TestDuplicatesArePutDownToACrash(t *testing.T) {
	again := func(process, tenant string) duplicate {
		return duplicate{before: delivery{Process: process, Tenant: tenant}}
	}
	for _, c := range []struct {
		list  []duplicate
		most  int
		whose string
	}{
		{nil, 0, ""},
		{[]duplicate{
			again("worker-1", "a"), again("worker-2", "a"), again("fleet", "a"), again("fleet", "b"),
		}, 1, "worker-1"},
		{[]duplicate{again("worker-1", "a"), again("worker-2", "a"), again("worker-2", "b")}, 2, "worker-2"},
		{[]duplicate{again("fleet", "a"), again("fleet", "b"), again("fleet", "b")}, 2, "b"},
	} {
		if most, whose := mostByOne(c.list); most != c.most || whose != c.whose {
			t.Errorf("%v: %d by %s", c.list, most, whose)
		}
	}
}

func TestEveryCompletionIsReportedOnce(t *testing.T) {
	asked := stage{Point: crashpoints.Point{Label: "after-hand-over"}, tenant: "after-hand-over-default-0"}
	plain := stage{Point: crashpoints.Point{Label: "after-lease"}, tenant: "after-lease-default-0"}
	if !asked.asksForCallback() || plain.asksForCallback() {
		t.Error("who asks for callbacks?")
	}
	e := ended{jobs: []wire.Job{{ID: "a", Tenant: asked.tenant}, {ID: "b", Tenant: plain.tenant}}}
	for tasks, want := range map[string]int{
		"a:1:succeeded": 0, "": 1, "a:1:succeeded a:2:succeeded": 1, "a:1:succeeded b:1:succeeded": 1,
	} {
		if got := wrongCallbacks(strings.Fields(tasks), e); len(got) != want {
			t.Errorf("%q: %q", tasks, slices.Clip(got))
		}
	}
}
