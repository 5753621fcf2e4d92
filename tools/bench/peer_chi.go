package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// peerChild is the first argument of a child of the bench that serves HTTP.
const peerChild = "peer"

// servers are those that a child may be: handlers by name, given the socket of a redis-server,
// empty for none; the proxy gets the URL of its upstream.
var servers = map[string]func(socket string) http.Handler{
	"sink":   func(string) http.Handler { return http.HandlerFunc(swallow) },
	"events": func(string) http.Handler { return http.HandlerFunc(events) },
	"proxy":  reverseProxy,
	"chi": func(string) http.Handler {
		return shopIntake(func(context.Context, string, submitted) error { return nil })
	},
	"chi-asynq": func(socket string) http.Handler { return shopIntake(enqueueWith(socket)) },
	"chi-floor": func(socket string) http.Handler { return shopIntake(storeWith(socket)) },
}

// peerOrders say which peer a child is.
type peerOrders struct {
	Name   string `json:"name"`
	Socket string `json:"socket"`
}

// runPeer is the child: it prints where it listens, and serves until it is ended.
func runPeer(orders string) error {
	var o peerOrders
	if err := json.Unmarshal([]byte(orders), &o); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listens on", l.Addr())
	return (&http.Server{Handler: servers[o.Name](o.Socket), ReadHeaderTimeout: 5 * time.Second}).Serve(l)
}

var listens = regexp.MustCompile(`listens on (\S+)`)

// server is such a child as its parent sees it.
type server struct {
	*child
	dir, addr string
}

func startPeer(ctx context.Context, name, socket string) (*server, error) {
	orders, err := json.Marshal(peerOrders{name, socket})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	p := &server{dir: dir}
	if p.child, err = self(dir, name, peerChild, orders); err == nil {
		var found []string
		if found, err = p.awaitLine(ctx, listens); err == nil {
			p.addr = found[0]
			return p, nil
		}
	}
	p.close()
	return nil, err
}

func (p *server) close() {
	p.end()
	_ = os.RemoveAll(p.dir)
}

// submitted is a job as the hand-written intake of a shop takes it: the contract's body.
type submitted struct {
	Type    string          `json:"type"`
	Route   string          `json:"route"`
	Payload json.RawMessage `json:"payload"`
	DelayMS int64           `json:"delay_ms"`
	Cost    int64           `json:"cost"`
}

// accepted is its answer.
type accepted struct {
	ID       string    `json:"id"`
	State    string    `json:"state"`
	Tenant   string    `json:"tenant"`
	Type     string    `json:"type"`
	Position int64     `json:"position"`
	Created  time.Time `json:"created_at"`
}

// shopIntake is a hand-written intake on chi in front of a queue, with the same decoding, rules and
// headers as Sluice's intake.
func shopIntake(enqueue func(ctx context.Context, id string, s submitted) error) http.Handler {
	r := chi.NewRouter()
	r.Post("/v1/jobs", func(w http.ResponseWriter, r *http.Request) {
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 256<<10))
		d.DisallowUnknownFields()
		var s submitted
		if err := d.Decode(&s); err != nil || s.Type == "" || len(s.Type) > 128 || len(s.Payload) == 0 ||
			s.DelayMS < 0 || s.Cost < 0 {
			http.Error(w, `{"title":"bad request"}`, http.StatusUnprocessableEntity)
			return
		}
		id, err := uuid.NewV7()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if err := enqueue(r.Context(), id.String(), s); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		h := w.Header()
		for _, limit := range []struct {
			header string
			items  []httpsfv.Item
		}{
			{"RateLimit-Policy", []httpsfv.Item{param("queue", "q", 1000), param("drain", "q", 10)}},
			{"RateLimit", []httpsfv.Item{param("queue", "r", 999)}},
		} {
			list := httpsfv.List{}
			for _, item := range limit.items {
				list = append(list, item)
			}
			if text, err := httpsfv.Marshal(list); err == nil {
				h.Set(limit.header, text)
			}
		}
		h.Set("X-RateLimit-Limit", strconv.Itoa(1000))
		h.Set("X-RateLimit-Remaining", strconv.Itoa(999))
		h.Set("X-RateLimit-Retry-After", "0")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Location", "/v1/jobs/"+id.String())
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusAccepted)
		_ = json.NewEncoder(w).Encode(accepted{
			ID: id.String(), State: "queued", Tenant: "default", Type: s.Type, Position: 1,
			Created: time.Now(),
		})
	})
	return r
}

func param(name, key string, value int64) httpsfv.Item {
	item := httpsfv.NewItem(name)
	item.Params.Add(key, value)
	return item
}

// enqueueWith makes each job an asynq task, one call of its client for one request.
func enqueueWith(socket string) func(context.Context, string, submitted) error {
	c := asynq.NewClientFromRedisClient(redis.NewClient(&redis.Options{
		Network: "unix", Addr: socket, PoolSize: 64,
	}))
	return func(ctx context.Context, id string, s submitted) error {
		_, err := c.EnqueueContext(ctx, asynq.NewTask(s.Type, s.Payload), asynq.TaskID(id), asynq.MaxRetry(4))
		return err
	}
}

// stored is a job on its way into Redis.
type stored struct {
	id      string
	payload []byte
	done    chan error
}

// storeWith is the least that keeps a job in Redis, for a floor: concurrent ones are gathered into
// one pipeline, each as a string and a member of a sorted set. There is no bound, no rate, no
// policy, no script.
func storeWith(socket string) func(context.Context, string, submitted) error {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, Protocol: 2})
	jobs := make(chan stored, 1024)
	for range 2 { // one pipeline is gathered while another is under way
		go func() {
			ctx := context.Background()
			for j := range jobs {
				batch := []stored{j}
				for len(jobs) > 0 {
					batch = append(batch, <-jobs)
				}
				pipe := c.Pipeline()
				queued := make([]redis.Z, len(batch))
				for i, j := range batch {
					pipe.Set(ctx, "job:"+j.id, j.payload, 0)
					queued[i] = redis.Z{Score: float64(time.Now().UnixMicro()), Member: j.id}
				}
				pipe.ZAdd(ctx, "queue", queued...)
				_, err := pipe.Exec(ctx)
				for _, j := range batch {
					j.done <- err
				}
			}
		}()
	}
	return func(_ context.Context, id string, s submitted) error {
		j := stored{id: id, payload: s.Payload, done: make(chan error, 1)}
		jobs <- j
		return <-j.done
	}
}

// swallow reads a body and answers 200.
func swallow(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
