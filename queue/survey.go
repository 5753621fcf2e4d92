package queue

import (
	"context"
	"strconv"
	"time"

	"github.com/7509e464/sluice/lua"
)

// surveyMost bounds one step of a survey, as the scripts' steps are bounded.
const surveyMost = 500

// Backlog is what waits of one tenant, summed over its flows.
type Backlog struct {
	Tenant      string
	Depth       int64
	Running     int64
	DeadLetters int64         // that can be replayed
	OldestWait  time.Duration // of the job at the head of a queue that could have left first; 0 where none is queued
}

// Survey reads what waits of some tenants, of one shard; pass next as cursor for the following step, "" starts and ends. Who goes through all
// steps is told of every tenant that is there all the while, of some perhaps twice. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Survey(ctx context.Context, cursor string) (backlogs []Backlog, next string, err error) {
	n, from, err := readCursor(cursor, q.keys.Len())
	if err != nil {
		return nil, "", err
	}
	shard := q.keys.Shard(n)
	call := lua.SurveyCall{
		Clock: shard.Clock(), Tenants: shard.Tenants(), Cursor: strconv.FormatInt(from, 10), Count: surveyMost, Retention: q.retention.Dead,
	}
	values, err := q.run(ctx, call.Call())
	if err != nil {
		return nil, "", err
	}
	page, err := call.Decode(values)
	if err != nil {
		return nil, "", unavailable(err)
	}
	backlogs = make([]Backlog, len(page.Backlogs))
	for i, b := range page.Backlogs {
		backlogs[i] = Backlog{Tenant: tenantOfEntry(b.Entry), Depth: b.Depth, Running: b.Running, DeadLetters: b.Dead}
		if b.Oldest > 0 {
			backlogs[i].OldestWait = max(0, page.Now.Sub(b.Oldest))
		}
	}
	return backlogs, cursorAfter(n, page.Next, q.keys.Len()), nil
}
