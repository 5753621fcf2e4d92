// Package ticket is the form in which an asynq task names the lease that it belongs to: the task's
// id and headers. The worker writes it, package handoff reads it. The two may be of different
// versions, so a name or form never changes its meaning.
package ticket

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
)

// The headers of a task whose end is reported.
const (
	withinHeader      = "Sluice-Report-Within" // in milliseconds
	maxAttemptsHeader = "Sluice-Max-Attempts"
	tenantHeader      = "Sluice-Tenant" // of the job; older workers do not set it
)

// Ticket names the lease that a task belongs to, and how its end is reported.
type Ticket struct {
	Ref         queue.LeaseRef
	Tenant      string        // of the job; empty if an older worker made the task
	Within      time.Duration // of the lease after each report; whole milliseconds, at least one
	MaxAttempts int           // of the job's route, at least 1
}

// TaskID returns the id of the asynq task for a lease, for example "06ah2…0f:3": new for every
// lease.
func TaskID(ref queue.LeaseRef) string {
	return ref.ID + ":" + strconv.FormatInt(ref.Epoch, 10)
}

// Headers returns the headers of a task whose end is reported.
func (t Ticket) Headers() map[string]string {
	return map[string]string{
		withinHeader:      strconv.FormatInt(t.Within.Milliseconds(), 10),
		maxAttemptsHeader: strconv.Itoa(t.MaxAttempts),
		tenantHeader:      t.Tenant,
	}
}

// Parse reads a ticket from the id and the headers of a task. It returns false for a task that
// Sluice did not make, and for a task of a route without reports.
func Parse(taskID string, headers map[string]string) (Ticket, bool) {
	id, epoch, _ := strings.Cut(taskID, ":")
	e, err1 := strconv.ParseInt(epoch, 10, 64)
	within, err2 := strconv.ParseInt(headers[withinHeader], 10, 64)
	most, err3 := strconv.Atoi(headers[maxAttemptsHeader])
	if cmp.Or(err1, err2, err3) != nil || id == "" || e < 1 || within < 1 ||
		within > maxWithin.Milliseconds() || most < 1 {
		return Ticket{}, false
	}
	return Ticket{Ref: queue.LeaseRef{ID: id, Epoch: e}, Tenant: headers[tenantHeader], Within: time.Duration(within) * time.Millisecond,
		MaxAttempts: most}, true
}

// maxWithin keeps a header that is not ours from overflowing: ten years.
const maxWithin = 10 * 365 * 24 * time.Hour
