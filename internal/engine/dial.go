package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// dial is how a client connects.
type dial func(ctx context.Context, network, addr string) (net.Conn, error)

// plain is the dialer of go-redis, which fails where there is no connection.
func plain(p patience, secure *tls.Config) dial {
	return redis.NewDialer(&redis.Options{DialTimeout: p.dial, TLSConfig: secure})
}

// orUnconnected replaces a failed dial by a connection whose first use fails. After a pool of
// failed dials, go-redis dials once in a second only: it would miss the return of Redis.
func (d dial) orUnconnected() dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			end, _ := net.Pipe()
			return unconnected{end, notConnected{err}}, nil
		}
		return conn, nil
	}
}

// notConnected hides its cause: go-redis would show its last part only, without the address.
type notConnected struct{ cause error }

func (e notConnected) Error() string { return e.cause.Error() }

// Timeout and Temporary implement net.Error, which go-redis distinguishes from an answer of Redis.
func (e notConnected) Timeout() bool {
	var timed net.Error
	return errors.As(e.cause, &timed) && timed.Timeout()
}

func (e notConnected) Temporary() bool { return true }

// unconnected is a connection whose dial failed.
type unconnected struct {
	net.Conn // one end of a pipe
	err      error
}

func (c unconnected) Read([]byte) (int, error)  { return 0, c.err }
func (c unconnected) Write([]byte) (int, error) { return 0, c.err }
