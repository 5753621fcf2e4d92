package engine

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// OpenEmbedded starts miniredis inside this process, reached through pipes: no port is opened. A
// ticker ages its keys, because miniredis does not watch the clock.
func OpenEmbedded() *Engine {
	m := miniredis.NewMiniRedis()
	var pipes dial = func(context.Context, string, string) (net.Conn, error) {
		c, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedConn(c), nil
	}
	// Its scripts are slow, so a burst may queue up before them: no call gives up early.
	patient := longTimed
	patient.answer = 10 * time.Second
	client := func() redis.UniversalClient { return oneRedis(redis.Options{Addr: "embedded"}, patient, pipes) }
	done := make(chan struct{})
	var aging sync.WaitGroup
	aging.Go(func() {
		const age = time.Second
		for ticks := time.Tick(age); ; {
			select {
			case <-ticks:
				m.FastForward(age)
			case <-done:
				return
			}
		}
	})
	e := newEngine(func(patience) redis.UniversalClient { return client() })
	e.Describe = "in memory: jobs are lost on exit"
	e.stop = func() error {
		close(done)
		aging.Wait()
		m.Close()
		return nil
	}
	return e
}
