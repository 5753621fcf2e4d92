package callback

import (
	"log/slog"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue"
)

// TestEraseTasks: the tasks of one tenant are deleted in every state, those of others stay.
func TestEraseTasks(t *testing.T) {
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	client, inspector := asynq.NewClientFromRedisClient(engine.Client()), asynq.NewInspectorFromRedisClient(engine.Client())
	for _, header := range []string{tenantHeader, handOffHeader} {
		for _, tenant := range []string{"gone", "stays"} {
			for range 2*erasePage + 3 {
				task := asynq.NewTaskWithHeaders("t", nil, map[string]string{header: tenant})
				if _, err := client.Enqueue(task, asynq.Queue("fleet")); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n, err := inspector.ArchiveAllPendingTasks("fleet"); err != nil || n == 0 {
		t.Fatal(n, err)
	}
	task := asynq.NewTaskWithHeaders("t", nil, map[string]string{tenantHeader: "gone"})
	if _, err := client.Enqueue(task, asynq.Queue("fleet")); err != nil {
		t.Fatal(err)
	}
	want := int64(2*(2*erasePage+3) + 1)
	if n, err := EraseTasks(t.Context(), engine.Client(), "gone"); err != nil || n != want {
		t.Errorf("%d tasks deleted, %v, want %d", n, err, want)
	}
	if n, err := EraseTasks(t.Context(), engine.Client(), "gone"); err != nil || n != 0 {
		t.Errorf("a second run deleted %d, %v", n, err)
	}
	info, err := inspector.GetQueueInfo("fleet")
	if err != nil || info.Size != 2*(2*erasePage+3) {
		t.Errorf("%+v are left, %v", info, err)
	}
}
