package process

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/listen"
)

const (
	listenerGrace     = 3 * time.Second // for running requests, after the end of the worker
	scrapeConnections = 100             // to the listener of metrics
)

// listeners are the listeners of a process. They answer 503 until serve is called.
type listeners struct {
	admin   *listener
	intake  *listener   // nil without the role
	metrics *listener   // nil without metrics.listen
	forward []*listener // of forwarded requests, as configured; none without the role
}

// listenAll opens the listeners of the configuration.
func (p *Process) listenAll(fail context.CancelCauseFunc) (l listeners, err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	admin, intake := p.Config.Admin, p.Config.API
	if l.admin, err = p.listen("admin", "--admin", admin.Listen, admin.TLS, admin.MaxConnections, fail); err != nil {
		return l, err
	}
	if p.Roles.API {
		l.intake, err = p.listen("api", "--api", intake.Listen, intake.TLS, intake.MaxConnections, fail)
		if err != nil {
			return l, err
		}
		const where = "forward in the file, or --forward-listen of sluice dev"
		for i, f := range p.Config.Forward {
			one, err := p.listen(fmt.Sprintf("forward[%d]", i), where, f.Listen, f.TLS, intake.MaxConnections, fail)
			if err != nil {
				return l, err
			}
			l.forward = append(l.forward, one)
		}
	}
	if p.Config.Metrics.Listen != "" {
		l.metrics, err = p.listen("metrics", "--metrics-listen", p.Config.Metrics.Listen, p.Config.Metrics.TLS,
			scrapeConnections, fail)
	}
	return l, err
}

func (l listeners) each(do func(*listener)) {
	for _, one := range append([]*listener{l.admin, l.intake, l.metrics}, l.forward...) {
		if one != nil {
			do(one)
		}
	}
}

func (l listeners) register(registry *prometheus.Registry) {
	l.each(func(one *listener) { registry.MustRegister(one.socket) })
}

// secure puts the changed files of a listener in force. section is that of the listener.
func (l listeners) secure(section string, t config.ListenerTLS) {
	l.each(func(one *listener) {
		if one.section == section {
			one.secure(t)
		}
	})
}

func (l listeners) close() { l.each((*listener).close) }

// serve opens the gates to the server's handlers.
func (l listeners) serve(server *api.Server, forward []config.ForwardListener) Running {
	l.admin.gate.open(server.Admin())
	now := Running{Admin: l.admin.addr()}
	if l.metrics != nil {
		l.metrics.gate.open(server.Metrics())
		now.Metrics = l.metrics.addr()
	}
	if l.intake != nil {
		l.intake.gate.open(server.Intake())
		now.API = l.intake.addr()
	}
	for i, one := range l.forward {
		one.gate.open(server.Forward(forward[i].Route))
		now.Forward = append(now.Forward, one.addr())
	}
	return now
}

// shutdown ends the intake, then the event streams, then the listeners of operators.
func (l listeners) shutdown(server *api.Server) {
	if l.intake != nil {
		l.intake.shutdown()
	}
	for _, one := range l.forward {
		one.shutdown()
	}
	server.End()
	l.admin.shutdown()
	if l.metrics != nil {
		l.metrics.shutdown()
	}
}

// listener is one address with its server. Its gate is closed until the process is ready.
type listener struct {
	section string // of the configuration
	gate    *gate
	socket  *listen.Listener
	server  *http.Server
	log     *slog.Logger
}

// listen opens the address of a section of the configuration and serves on it at once. A failure
// of the server ends the process through fail.
func (p *Process) listen(
	section, flag, address string, secured config.ListenerTLS, most int64, fail context.CancelCauseFunc,
) (*listener, error) {
	key := section + ".listen"
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w (choose another address with %s)", key, address,
			rootOf(err), flag)
	}
	l := &listener{section: section, gate: newGate(), log: p.Log}
	refused := burstlog.New(p.Log, slog.LevelError, "connections are not accepted", nil)
	l.socket = listen.Bound(socket, section, listen.Bounds{
		Failed:      func(err error) { refused.Add(burstlog.Key{}, 1, "for", key, "error", rootOf(err)) },
		Connections: int(most), PerAddress: int(api.Percent(p.Config.API.AddressShare).Of(most)),
		Proxies: p.Config.Auth.Guest.TrustedProxies,
	})
	l.server = listen.Server(address, l.gate, p.Log)
	if secured.On() || section == "api" || strings.HasPrefix(section, "forward[") {
		listen.AllowHTTP2(l.server)
	}
	l.socket.Attend(l.server)
	p.Log.Info("listening", "for", key, "address", socket.Addr().String(), "tls", secured.On())
	if secured.On() {
		l.secure(secured)
	}
	go func() {
		if err := l.socket.Serve(l.server); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("%s: %w", key, err))
		}
	}()
	return l, nil
}

// secure makes the listener show and require what t has, which was checked.
func (l *listener) secure(t config.ListenerTLS) {
	version := uint16(tls.VersionTLS12)
	if t.MinVersion == "1.3" {
		version = tls.VersionTLS13
	}
	end, err := l.socket.Secure(listen.Identity{
		Cert: t.Cert, Key: t.Key, ClientCA: t.ClientCA, Optional: t.ClientAuth == "optional", MinVersion: version,
	})
	if err != nil {
		l.log.Error("the certificate of a listener cannot be used; the former one stays", "for", l.section+".tls", "error", err)
		return
	}
	l.log.Info("the certificate of a listener is in force", "for", l.section+".tls", "ends", end.UTC().Format(time.RFC3339))
}

// rootOf returns the reason without the layers of package net, which repeat the address.
func rootOf(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

func (l *listener) addr() net.Addr { return l.socket.Addr() }

// shutdown accepts no more connections, lets running requests end within listenerGrace, and closes
// the other connections.
func (l *listener) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), listenerGrace)
	defer cancel()
	if err := l.server.Shutdown(ctx); err != nil {
		l.log.Warn("requests were still running at the end and were cut off", "address", l.addr().String(),
			"error", err)
	}
}

func (l *listener) close() { _ = l.server.Close() }
