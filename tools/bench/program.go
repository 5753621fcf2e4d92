package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"

	"github.com/7509e464/sluice/tools/internal/product"
)

// layout lists the processes of a program.
type layout struct {
	// split is the number of processes that only work, beside one that only admits jobs, over one
	// redis-server. 0: one process does all on a private one.
	split    int
	env      []string // further variables of the workers, NAME=value
	upstream string   // where jobs are delivered; empty: the program's own sink, which notes arrivals by job
	forward  string   // where forwarded requests are delivered; empty: nowhere
	binary   string   // from build; empty: the program is built
}

// build makes the sluice program in dir, unless it is there, and returns its path.
func build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "sluice")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	return binary, product.Build(ctx, binary)
}

// program is a running sluice with its own redis-server.
type program struct {
	layout
	dir       string
	config    string
	redis     *child
	intake    *child // accepts jobs; in a layout without workers it works, too
	workers   []member
	started   int // workers so far
	jobs      *client.Client
	operator  *client.Client
	admin     string
	api       string // address
	sink      *http.Server
	mu        sync.Mutex
	arrivals  map[string]time.Time // by job
	transport *http.Transport
}

// startProgram starts one process that does all.
func startProgram(ctx context.Context) (*program, error) { return startLayout(ctx, layout{}) }

// startLayout builds sluice and starts the processes.
func startLayout(ctx context.Context, l layout) (*program, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	p := &program{
		layout: l, dir: dir, arrivals: map[string]time.Time{},
		transport: http.DefaultTransport.(*http.Transport).Clone(),
	}
	if err := p.start(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *program) start(ctx context.Context) error {
	if p.upstream == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		p.upstream = "http://" + l.Addr().String() + "/"
		p.sink = &http.Server{Handler: http.HandlerFunc(p.arrive), ReadHeaderTimeout: 5 * time.Second}
		go func() { _ = p.sink.Serve(l) }() // ends with close
	}
	if p.binary == "" {
		var err error
		if p.binary, err = build(ctx, p.dir); err != nil {
			return err
		}
	}
	store, roles := fmt.Sprintf("data_dir: %q", filepath.Join(p.dir, "data")), "api,worker"
	if p.split > 0 {
		var socket string
		var err error
		if p.redis, socket, err = startRedis(ctx, p.dir); err != nil {
			return err
		}
		store, roles = fmt.Sprintf("url: %q", "unix://"+socket), "api"
	}
	routes := fmt.Sprintf("default: { url: %q }", p.upstream)
	if p.forward != "" {
		routes += fmt.Sprintf(", %s: { forward: %q, wait: 300s }", forwardRoute, p.forward)
	}
	config := fmt.Sprintf("redis: { %s }\napi: { listen: \"127.0.0.1:0\", max_connections: 20000 }\n"+
		"admin: { listen: \"127.0.0.1:0\", profiles: true }\n"+
		"routes: { %s }\ntenants: { defaults: { capacity: 100000, concurrency: 0 } }\n", store, routes)
	p.config = filepath.Join(p.dir, "sluice.yaml")
	if err := os.WriteFile(p.config, []byte(config), 0o600); err != nil {
		return err
	}
	intake, addresses, err := p.serve(ctx, "sluice", roles)
	if err != nil {
		return err
	}
	p.intake, p.admin, p.api = intake, "http://"+addresses.admin, addresses.api
	for range p.split {
		if err := p.join(ctx); err != nil {
			return err
		}
	}
	hc := &http.Client{Transport: p.transport}
	if p.jobs, err = client.New("http://"+addresses.api, "", hc); err != nil {
		return err
	}
	p.operator, err = client.New(p.admin, "", hc)
	return err
}

// member is a worker and where its admin listener is.
type member struct {
	*child
	admin string
}

// addresses are where a process listens; api is empty for one that takes no jobs.
type addresses struct{ admin, api string }

var readyLine = regexp.MustCompile(
	`"msg":"ready","admin":"([0-9.:]+)".*"worker":(?:true|false)(?:,"api":"([0-9.:]+)")?`)

// serve starts a process with the roles and returns when it is ready.
func (p *program) serve(ctx context.Context, name, roles string, env ...string) (*child, addresses, error) {
	cmd := exec.Command(p.binary, "serve", "--config", p.config, "--roles", roles)
	cmd.Env = append(os.Environ(), env...)
	c, err := spawn(cmd, p.dir, name)
	if err != nil {
		return nil, addresses{}, err
	}
	found, err := c.awaitLine(ctx, readyLine)
	if err != nil {
		c.end()
		return nil, addresses{}, err
	}
	return c, addresses{found[0], found[1]}, nil
}

// join starts another worker.
func (p *program) join(ctx context.Context) error {
	p.started++
	c, at, err := p.serve(ctx, fmt.Sprintf("worker-%d", p.started), "worker", p.env...)
	if err == nil {
		p.workers = append(p.workers, member{c, "http://" + at.admin})
	}
	return err
}

// leave ends the worker that has joined first.
func (p *program) leave() {
	p.workers[0].end()
	p.workers = p.workers[1:]
}

func (p *program) close() {
	for _, w := range p.workers {
		w.end()
	}
	p.intake.end()
	p.redis.end()
	if p.sink != nil {
		_ = p.sink.Close()
	}
	p.transport.CloseIdleConnections()
	_ = os.RemoveAll(p.dir)
}

func (p *program) arrive(_ http.ResponseWriter, r *http.Request) {
	now := time.Now()
	_, _ = io.Copy(io.Discard, r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals[r.Header.Get("webhook-id")] = now
}

// submit sends n jobs of the tenant in atomic batches.
func (p *program) submit(ctx context.Context, tenant, kind string, n int) error {
	for left := n; left > 0; left -= min(left, wire.MaxBatch) {
		jobs := slices.Repeat([]wire.BatchJob{{Submission: wire.Submission{Type: kind, Payload: payload}}},
			min(left, wire.MaxBatch))
		decisions, err := p.jobs.SubmitBatch(ctx, tenant, wire.Batch{Jobs: jobs, Atomic: true})
		if err != nil {
			return err
		}
		if decisions[0].Job == nil {
			return fmt.Errorf("a batch was not admitted: %s",
				strings.TrimSpace(decisions[0].Title+" "+decisions[0].Detail))
		}
	}
	return nil
}
