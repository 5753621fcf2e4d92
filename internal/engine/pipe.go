package engine

import (
	"net"
	"sync"
	"time"
)

// bufferedConn lets Write return before the other end has read, as a socket does. miniredis is
// reached through net.Pipe, which has no buffer; a subscriber that changes its subscriptions while
// messages come in would wait for itself there.
type bufferedConn struct {
	net.Conn
	mu     sync.Mutex
	filled sync.Cond
	buffer []byte
	err    error // why writing fails
	done   chan struct{}
}

func newBufferedConn(c net.Conn) *bufferedConn {
	b := &bufferedConn{Conn: c, done: make(chan struct{})}
	b.filled.L = &b.mu
	go b.drain()
	return b
}

func (b *bufferedConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	b.buffer = append(b.buffer, p...)
	b.filled.Signal()
	return len(p), nil
}

// drain passes the buffer on until the connection is closed.
func (b *bufferedConn) drain() {
	defer close(b.done)
	for {
		b.mu.Lock()
		for len(b.buffer) == 0 && b.err == nil {
			b.filled.Wait()
		}
		out, err := b.buffer, b.err
		b.buffer = nil
		b.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := b.Conn.Write(out); err != nil {
			b.fail(err)
			return
		}
	}
}

func (b *bufferedConn) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.filled.Signal()
}

// Close closes the connection and drops what was not read yet.
func (b *bufferedConn) Close() error {
	b.fail(net.ErrClosed)
	err := b.Conn.Close()
	<-b.done
	return err
}

// SetDeadline sets the deadline of reads: writes never block.
func (b *bufferedConn) SetDeadline(t time.Time) error { return b.SetReadDeadline(t) }

// SetWriteDeadline has no effect: writes never block.
func (b *bufferedConn) SetWriteDeadline(time.Time) error { return nil }
