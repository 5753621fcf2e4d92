package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

const (
	feedIdle     = 15 * time.Second // timeout of a silent stream; it has four events a second
	feedPause    = 250 * time.Millisecond
	feedMaxPause = 5 * time.Second
)

// The messages of a feed: the events of the stream and the state of the connection.
type (
	overviewNews wire.Overview
	historyNews  wire.FigureHistory
	tenantsNews  wire.TenantLines
	tenantNews   wire.TenantNow
	poolsNews    wire.PoolLines
	sharesNews   wire.PoolShares
	linkNews     struct{ err error } // nil: the stream is open; otherwise why it is not; it is retried
)

// eventStream is an open stream, a *client.Stream.
type eventStream interface {
	Next() (client.Event, error)
	Close() error
}

// liveFeed follows the live figures of one server. It opens the stream, reopens it when it breaks
// or another view is requested, and sends its events.
type liveFeed struct {
	open     func(ctx context.Context, view client.View) (eventStream, error)
	send     func(news any)
	patience time.Duration    // how long the server may be unreachable; 0: without limit
	asked    chan client.View // holds the latest requested view
}

func newLiveFeed(c *client.Client, patience time.Duration) *liveFeed {
	return &liveFeed{
		open: func(ctx context.Context, view client.View) (eventStream, error) {
			s, err := c.Live(ctx, view, feedIdle)
			if err != nil {
				return nil, err // not a nil *client.Stream in an interface
			}
			return s, nil
		},
		patience: patience, asked: make(chan client.View, 1),
	}
}

// ask requests another view. It is called by one goroutine.
func (f *liveFeed) ask(view client.View) {
	select {
	case <-f.asked:
	default:
	}
	f.asked <- view
}

// run follows the figures until ctx ends, which is no error, or until a retry cannot help: the
// server refuses, did not answer at the start, or is unreachable for longer than the patience.
func (f *liveFeed) run(ctx context.Context, view client.View) error {
	pause, met := feedPause, false
	var lost time.Time
	for {
		began := time.Now()
		next, err := f.follow(ctx, view, func() { met, lost, pause = true, time.Time{}, feedPause })
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			view = next
			continue
		case errors.Is(err, io.EOF) &&
			time.Since(began) > time.Second: // the server ends streams after some minutes
			continue
		case !cli.Transient(err), !met && !answered(err):
			return fmt.Errorf("follow the figures: %w", err)
		}
		if lost.IsZero() {
			lost = began
			if met {
				lost = time.Now()
			}
		}
		if f.patience > 0 && time.Since(lost) >= f.patience {
			return fmt.Errorf("follow the figures: the server has been unreachable for %v: %w",
				f.patience, err)
		}
		f.send(linkNews{err: err})
		timer := time.NewTimer(pause)
		select {
		case view = <-f.asked:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, feedMaxPause)
	}
}

// answered reports whether the error is an answer of a server.
func answered(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer)
}

// follow opens the stream once and sends its events until it breaks or another view is requested,
// which it returns. came is called with each event.
func (f *liveFeed) follow(ctx context.Context, view client.View, came func()) (next client.View, err error) {
	stream, err := f.open(ctx, view)
	if err != nil {
		return next, err
	}
	broken, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		broken <- f.read(stream, came)
	}()
	defer func() {
		_ = stream.Close()
		<-done
	}()
	select {
	case next = <-f.asked:
		return next, nil
	case err = <-broken:
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the server has ended the stream: %w", err)
		}
		return next, err
	case <-ctx.Done():
		return next, ctx.Err()
	}
}

// read sends the events of a stream until it ends. It ignores unknown events of newer servers.
func (f *liveFeed) read(stream eventStream, came func()) error {
	for first := true; ; {
		e, err := stream.Next()
		if err != nil {
			return err
		}
		news, err := newsOf(e)
		if err != nil {
			return err
		}
		came()
		if first {
			f.send(linkNews{})
			first = false
		}
		if news != nil {
			f.send(news)
		}
	}
}

// newsOf decodes an event, nil for an unknown one.
func newsOf(e client.Event) (news any, err error) {
	switch e.Name {
	case "overview":
		news, err = decode[overviewNews](e.Data)
	case "history":
		news, err = decode[historyNews](e.Data)
	case "tenants":
		news, err = decode[tenantsNews](e.Data)
	case "tenant":
		news, err = decode[tenantNews](e.Data)
	case "pools":
		news, err = decode[poolsNews](e.Data)
	case "pool_flows":
		news, err = decode[sharesNews](e.Data)
	}
	if err != nil {
		return nil, fmt.Errorf("the event %q of the stream is not valid: %w", e.Name, err)
	}
	return news, nil
}

func decode[T any](data []byte) (news T, err error) {
	err = json.Unmarshal(data, &news)
	return news, err
}
