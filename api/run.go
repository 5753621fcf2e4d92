package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/queue"
)

// health is what the probes show.
type health interface {
	Ping(ctx context.Context) error
	Agreement() queue.Agreement
}

// At the end Run waits so long for answers in progress, and then for the last entries of the audit.
const (
	shutdownGrace = 5 * time.Second
	auditGrace    = 2 * time.Second
)

// Addresses are the addresses on which Run listens, as host:port. An empty one is not served.
type Addresses struct {
	Intake string
	Admin  string // has the dashboard at /
}

// Run serves both listeners and runs work, such as the Run of a worker, until ctx ends or one of
// them fails. It returns the failure, or nil.
//
// It stops in this order: new jobs are refused; work ends, while clients still read their jobs; the
// event streams end; the listeners close; what is left of the audit is written. The caller closes
// the queue after that.
func (s *Server) Run(ctx context.Context, at Addresses, work ...func(context.Context) error) error {
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditGrace)
		defer cancel()
		s.EndAudit(within)
	}()
	return s.serve(ctx, at, work)
}

func (s *Server) serve(ctx context.Context, at Addresses, work []func(context.Context) error) error {
	all, ctx := errgroup.WithContext(ctx)
	bounds := listen.Bounds{
		Connections: s.cfg.MaxRequests, PerAddress: int(s.cfg.AddressShare.Of(int64(s.cfg.MaxRequests))),
		Proxies: s.cfg.TrustedProxies,
	}
	var servers []*http.Server
	for _, l := range []struct {
		name, address string
		handler       http.Handler
	}{{"api", at.Intake, s.Intake()}, {"admin", at.Admin, s.Admin()}} {
		if l.address == "" {
			continue
		}
		server := listen.Server(l.address, l.handler, s.log)
		socket, err := net.Listen("tcp", l.address)
		if err != nil {
			for _, before := range servers {
				_ = before.Close()
			}
			return errors.Join(fmt.Errorf("api: %w", err), all.Wait())
		}
		servers = append(servers, server)
		s.log.Info("listening", "listener", l.name, "address", socket.Addr().String())
		limited := listen.Bound(socket, l.name, bounds)
		limited.Attend(server)
		all.Go(func() error {
			if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("api: %w", err)
			}
			return nil
		})
	}
	s.Remember()
	defer context.AfterFunc(ctx, s.Drain)()
	all.Go(func() error {
		works, inner := errgroup.WithContext(ctx)
		for _, run := range work {
			works.Go(func() error { return run(inner) })
		}
		works.Go(func() error { <-inner.Done(); return nil })
		err := works.Wait()
		s.End()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		for _, server := range servers {
			if server.Shutdown(grace) != nil {
				_ = server.Close() // cuts off answers in progress
			}
		}
		return err
	})
	return all.Wait()
}

// pingTimeout is shorter than what probes usually allow.
const pingTimeout = time.Second

// livez is GET /livez: the process runs.
func (s *Server) livez(*call) (*answer, error) { return ok(wire.Health{Status: "ok"}), nil }

// readyz is GET /readyz: the server accepts work.
func (s *Server) readyz(c *call) (*answer, error) {
	if s.isDraining() {
		return nil, problem.ShuttingDown.With("no new work is accepted").Retry(1)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), pingTimeout)
	defer cancel()
	if err := s.queue.Ping(ctx); err != nil {
		p := problem.StorageUnavailable.With("the store does not answer, or its scripts are not loaded: " +
			"the server's log has the cause").Retry(1)
		if errors.Is(err, queue.ErrReplicas) {
			p.Detail = "a master of the store has fewer replicas in sync than redis.durability.replicas"
		} else if advice := queue.Advice(err); advice != "" {
			p.Detail = "the store cannot be used: " + advice
		}
		s.log.Debug("not ready", "error", err)
		return nil, p
	}
	h := wire.Health{Status: "ok"}
	if !s.queue.Agreement().InForce {
		h.Detail = "the policies of this process's configuration file are not in force: another process " +
			"has since applied others"
		if s.queue.Agreement().Abandoned {
			h.Detail = "no running process has the configuration file whose policies are in force: send this one " +
				"SIGHUP, or restart it, to put its file into force"
		}
	}
	return ok(h), nil
}

// version is GET /version.
func (s *Server) version(*call) (*answer, error) {
	v := s.cfg.Version
	return ok(wire.Version{Version: v.Version, Commit: v.Commit, Go: v.Go}), nil
}
