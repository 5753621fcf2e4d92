package redistest

import (
	"errors"
	"sync"
	"testing"
	"time"
)

// Pool lends servers to the tests of a package, which would start hundreds otherwise. The zero
// value starts servers as it needs them.
type Pool struct {
	mu   sync.Mutex
	idle []*Server
}

// deleteKeys is an inline command that deletes the keys of a server.
const deleteKeys = `EVAL "for _, k in ipairs(redis.call('KEYS', '*')) do redis.call('DEL', k) end ` +
	`return redis.status_reply('OK')" 0`

// Lend lends an empty server until the end of the test, which must leave the server running and its
// settings as they were. The scripts of earlier tests are loaded.
func (p *Pool) Lend(t testing.TB) *Server {
	t.Helper()
	s := p.take()
	if s == nil {
		s = prepare(t)
		s.Restart()
	}
	s.t = t
	t.Cleanup(func() {
		if answer := s.ask(deleteKeys, 20*time.Second); answer != "+OK" {
			t.Errorf("redis-server is not emptied: %q", answer)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle = append(p.idle, s)
	})
	return s
}

func (p *Pool) take() *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	s := p.idle[last]
	p.idle = p.idle[:last]
	return s
}

// Close ends the servers, after the tests.
func (p *Pool) Close() error {
	var err error
	for s := p.take(); s != nil; s = p.take() {
		err = errors.Join(err, s.remove())
	}
	return err
}
