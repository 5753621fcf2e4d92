package process

import (
	"fmt"
	"slices"
	"strings"

	"github.com/7509e464/sluice/shaper"
)

// Roles are the tasks of a process: admit jobs, deliver them, or both.
type Roles struct{ API, Worker bool }

// Split reports whether other processes have to take one of the roles.
func (r Roles) Split() bool { return !r.API || !r.Worker }

// ParseRoles reads the value of the flag --roles: api, worker or api,worker.
func ParseRoles(text string) (Roles, shaper.Problems) {
	var r Roles
	names := strings.Split(text, ",")
	for _, name := range names {
		switch strings.TrimSpace(name) {
		case "api":
			r.API = true
		case "worker":
			r.Worker = true
		default:
			return r, shaper.Problems{{Field: "--roles", Value: fmt.Sprintf("%q", text),
				Rule: "must be api, worker or api,worker"}}
		}
	}
	if len(names) != len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		return r, shaper.Problems{{Field: "--roles", Value: fmt.Sprintf("%q", text),
			Rule: "must name each role once"}}
	}
	return r, nil
}
