package guard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Intake is the settings of a guard in front of operations of the intake. The guards that cover
// an operation decide in their order until one refuses; the earlier ones keep their count.
//
// A guard with Routes or Types, or one that counts by them, counts jobs instead of requests.
type Intake struct {
	Rule       limiter.Rule // the limiter and its name
	By         []By         // the parts of the key; at least one
	Endpoints  []string     // see Endpoints and JobEndpoints; none: all
	Routes     []string     // counts only jobs for these routes; none: all
	Types      []string     // counts only jobs of these types; none: all
	FailClosed bool         // refuse with 503 while the store fails
	Shadow     bool         // refuse nothing, and count the requests that would have been refused
}

// By is a part of the key under which the intake counts a request.
type By string

// The parts of a key. A guard that needs a tenant or a guest decides after authentication, every
// other guard before it, so that those slow down clients who try credentials.
const (
	ByTenant   By = "tenant"   // the tenant; the address of a guest
	ByGuest    By = "guest"    // the address of a guest; requests with a credential are not counted
	ByEndpoint By = "endpoint" // the operation
	ByAddress  By = "address"  // the client's address, or its /64 of IPv6
	ByNetwork  By = "network"  // the client's address, or its /48 of IPv6
	ByRoute    By = "route"    // the job's route
	ByType     By = "type"     // the job's type, which clients choose
)

// Bys returns all parts that a key can have.
func Bys() []By {
	return []By{ByTenant, ByGuest, ByEndpoint, ByAddress, ByNetwork, ByRoute, ByType}
}

// Endpoints returns what guards can cover: the ids of operations, and "forward" for forwarded
// requests of any method.
func Endpoints() []string {
	var ids []string
	for _, op := range contract.Jobs(0) {
		ids = append(ids, op.ID)
	}
	return append(ids, contract.ForwardEndpoint)
}

// JobEndpoints returns the endpoints whose jobs guards can count by route and type. The type of a
// forwarded request is its method and path, such as "POST /login".
func JobEndpoints() []string {
	return []string{"submit-job", "submit-batch", "replay-job", contract.ForwardEndpoint}
}

// CountsJobs reports whether the guard counts jobs instead of requests.
func (of Intake) CountsJobs() bool {
	return len(of.Routes) > 0 || len(of.Types) > 0 || slices.Contains(of.By, ByRoute) ||
		slices.Contains(of.By, ByType)
}

// Validate returns an error for invalid settings; New checks the rule. isRoute reports whether a
// route is configured.
func (of Intake) Validate(isRoute func(name string) bool) error {
	var errs []error
	if len(of.By) == 0 {
		errs = append(errs, errors.New("the key has no parts"))
	}
	for _, by := range of.By {
		if !slices.Contains(Bys(), by) {
			errs = append(errs, fmt.Errorf("by: %q: must be one of %v", by, Bys()))
		}
	}
	for _, id := range of.Endpoints {
		switch {
		case !slices.Contains(Endpoints(), id):
			errs = append(errs, fmt.Errorf("endpoints: there is no operation %q", id))
		case of.CountsJobs() && !slices.Contains(JobEndpoints(), id):
			errs = append(errs, fmt.Errorf("endpoints: the guard counts jobs, and the operation %q submits none", id))
		}
	}
	for _, name := range of.Routes {
		if !isRoute(name) {
			errs = append(errs, fmt.Errorf("routes: there is no route %q", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("guard %q: %w", of.Rule.Name, err)
	}
	return nil
}
