package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

type echoCmd struct {
	Listen string       `default:"127.0.0.1:9000" placeholder:"ADDR" help:"Address to listen on [127.0.0.1:9000]."`
	Rate   *shaper.Rate `placeholder:"LIMIT/PERIOD" help:"Answer 429 to requests beyond this rate in any period, such as 10/s."`
	Model  bool         `help:"Answer as a language model does, with the words of the last message: POST /v1/chat/completions, in events if the request has stream: true."`
}

func (echoCmd) Help() string {
	return `Example:
  sluice echo --listen 127.0.0.1:9000
  sluice echo --rate 10/s
  sluice echo --model --listen 127.0.0.1:9200

The upstream answers every delivery with 200 and a small JSON object of its content, and logs one
line. sluice dev contains the same upstream. With --model it takes what clients of OpenAI send, and
writes one word each 100 ms.

Next, in another terminal: sluice serve --route default=http://127.0.0.1:9000/`
}

func (c *echoCmd) Run(a *cli.App) error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return cli.Usagef("--listen: %q: must be HOST:PORT, such as 127.0.0.1:9000", c.Listen)
	}
	log := cli.NewLogger(a.Err, "info")
	upstream := echoHandler(log)
	if c.Model {
		upstream = modelHandler(log)
	}
	handler, err := limited(upstream, c.Rate)
	if err != nil {
		return err
	}
	e, err := startEcho(c.Listen, handler, log)
	if err != nil {
		return err
	}
	defer e.close()
	fmt.Fprintf(a.Out, "echo listens on %s\n", e.url())
	select {
	case <-a.Ctx.Done():
		return nil
	case err := <-e.ended:
		return err
	}
}

// echo is an upstream that answers with what it received.
type echo struct {
	socket net.Listener
	server *http.Server
	ended  chan error // receives why the server ended, unless close ended it
}

// limited refuses requests beyond the rate, as many an API does; nil is no limit.
func limited(h http.Handler, rate *shaper.Rate) (http.Handler, error) {
	if rate == nil {
		return h, nil
	}
	store, err := limiter.NewMemoryStore(1)
	if err != nil {
		return nil, fmt.Errorf("echo: %w", err)
	}
	g, err := guard.New(store, guard.Config{
		Rule: limiter.Rule{Name: "echo", Policy: limiter.Policy{Algorithm: limiter.SlidingLog, Rate: *rate}},
		Key:  func(*http.Request) (string, bool) { return "all", true },
	})
	if err != nil {
		return nil, fmt.Errorf("echo: %w", err)
	}
	return g.Handler(h), nil
}

func startEcho(address string, h http.Handler, log *slog.Logger) (*echo, error) {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("echo: %w", err)
	}
	e := &echo{socket: socket, ended: make(chan error, 1)}
	e.server = listen.Server(address, h, log)
	go func() {
		if err := e.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			e.ended <- fmt.Errorf("echo: %w", err)
		}
	}()
	return e, nil
}

func (e *echo) url() string { return "http://" + e.socket.Addr().String() + "/" }

func (e *echo) close() {
	ctx, cancel := context.WithTimeout(context.Background(), echoGrace)
	defer cancel()
	_ = e.server.Shutdown(ctx)
	_ = e.server.Close()
}

// echoGrace is how long running requests may take to end.
const echoGrace = 3 * time.Second

// maxEcho bounds the payload that an answer repeats, because the answer is stored with the job.
const maxEcho = 1 << 10

// echoed is the answer to a delivery.
type echoed struct {
	ID      string          `json:"id,omitempty"` // of the job; empty if the request does not come from Sluice
	Tenant  string          `json:"tenant,omitempty"`
	Type    string          `json:"type,omitempty"`   // of a job
	Method  string          `json:"method,omitempty"` // of any other request, such as a forwarded one
	Target  string          `json:"target,omitempty"` // path and query of any other request
	Attempt int             `json:"attempt"`
	Bytes   int             `json:"bytes"`
	Payload json.RawMessage `json:"payload,omitempty"` // unless it is long
}

func echoHandler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
		if err != nil {
			http.Error(w, "cannot read the body", http.StatusBadRequest)
			return
		}
		got := received(r)
		got.Bytes = len(body)
		if len(body) <= maxEcho && json.Valid(body) {
			got.Payload = body
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(got)
		got.log(log)
	})
}

// received returns what the headers of a request say of its job.
func received(r *http.Request) (got echoed) {
	got.ID, got.Type = r.Header.Get("webhook-id"), r.Header.Get("Sluice-Job-Type")
	if got.ID == "" {
		got.ID, got.Method, got.Target = r.Header.Get("Sluice-Job"), r.Method, r.RequestURI
	}
	got.Attempt, _ = strconv.Atoi(r.Header.Get("Sluice-Attempt"))
	var err error
	if got.Tenant, err = url.PathUnescape(r.Header.Get("Sluice-Tenant")); err != nil {
		got.Tenant = r.Header.Get("Sluice-Tenant")
	}
	return got
}

func (e echoed) log(to *slog.Logger) {
	if e.ID != "" {
		to.Info("delivered", "job", e.ID, "tenant", store.EncodeName(e.Tenant), "attempt", e.Attempt, "bytes", e.Bytes)
	}
}
