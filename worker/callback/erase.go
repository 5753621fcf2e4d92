package callback

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// handOffHeader names the tenant of a task that was handed off to a fleet; see package ticket.
const handOffHeader = "Sluice-Tenant"

// erasePage is how many tasks one call lists.
const erasePage = 200

// EraseTasks deletes the tasks of a tenant in all states, archived and completed ones too: of
// callbacks, and those handed off to a fleet. It leaves those that run. The number is exact, and a
// repeated call goes on.
func EraseTasks(ctx context.Context, client redis.UniversalClient, tenant string) (deleted int64, err error) {
	inspector := asynq.NewInspectorFromRedisClient(client)
	queues, err := inspector.Queues()
	if err != nil {
		return 0, fmt.Errorf("callback: list the queues of asynq: %w", err)
	}
	for _, name := range Queues(client) {
		if !slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	for _, queue := range queues {
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
			inspector.ListPendingTasks, inspector.ListScheduledTasks, inspector.ListRetryTasks,
			inspector.ListArchivedTasks, inspector.ListCompletedTasks,
		} {
			n, err := eraseFrom(ctx, inspector, queue, tenant, list)
			if deleted += n; err != nil {
				return deleted, fmt.Errorf("callback: erase the tasks of queue %s: %w", queue, err)
			}
		}
	}
	return deleted, nil
}

// eraseFrom deletes the tasks of a tenant from one list of a queue. Deleted ones move the others
// forward, so it goes through the list again until it finds none.
func eraseFrom(ctx context.Context, inspector *asynq.Inspector, queue, tenant string,
	list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error),
) (deleted int64, err error) {
	for found := true; found; {
		found = false
		for page := 1; ; page++ {
			if err := ctx.Err(); err != nil {
				return deleted, err
			}
			tasks, err := list(queue, asynq.Page(page), asynq.PageSize(erasePage))
			if errors.Is(err, asynq.ErrQueueNotFound) {
				return deleted, nil
			} else if err != nil {
				return deleted, err
			}
			for _, task := range tasks {
				if of := task.Headers; of[tenantHeader] != tenant && of[handOffHeader] != tenant {
					continue
				}
				switch err := inspector.DeleteTask(queue, task.ID); {
				case err == nil:
					deleted, found = deleted+1, true
				case errors.Is(err, asynq.ErrTaskNotFound): // it has ended meanwhile
				default:
					// It runs by now: it is found when it has ended.
				}
			}
			if len(tasks) < erasePage {
				break
			}
		}
	}
	return deleted, nil
}
