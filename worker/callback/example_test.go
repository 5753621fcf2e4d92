package callback_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/callback"
)

// A completion is handed over and delivered. Usually a worker hands completions over: a Service is
// the Callbacks of a worker.Config. The embedded engine keeps the tasks in memory. Errors are
// dropped here for brevity.
func Example() {
	received := make(chan string)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			Type string
			Data struct{ ID string }
		}
		_ = json.NewDecoder(r.Body).Decode(&event)
		received <- event.Type + " " + event.Data.ID
	}))
	defer receiver.Close()

	ctx, stop := context.WithCancel(context.Background())
	engine, _ := queue.OpenEngine(ctx, queue.EngineOptions{Embedded: true})
	// The receiver has a private address, so its prefix must be listed.
	receivers, _ := callback.NewReceivers([]string{receiver.URL + "/hooks/"})
	service, _ := callback.New(callback.Config{
		Redis: engine.Client(), Receivers: receivers, Logger: slog.New(slog.DiscardHandler),
		Job: func(j queue.Job) ([]byte, error) { return json.Marshal(map[string]string{"id": j.ID}) },
	})
	done := make(chan error)
	go func() { done <- service.Run(ctx) }()

	_ = service.HandOver(ctx, queue.Completion{
		Job:         queue.Job{ID: "job-1", Tenant: "acme", State: shaper.Succeeded, Finished: time.Now()},
		CallbackURL: receiver.URL + "/hooks/jobs",
	})
	fmt.Println(<-received)

	stop()
	<-done
	_ = engine.Close()
	// Output: job.succeeded job-1
}
