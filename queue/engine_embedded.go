package queue

import (
	"context"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// openEmbedded starts miniredis inside this process, reached through pipes: no port is opened. Its keys age by a ticker, because it does
// not watch the clock itself.
func openEmbedded(_ context.Context) (*Engine, error) {
	m := miniredis.NewMiniRedis()
	dial := func(context.Context) (net.Conn, error) {
		c, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedConn(c), nil
	}
	// Its scripts are slow enough for a burst to queue up before them; nobody is served by giving up early.
	patient := longTimed
	patient.answer = 10 * time.Second
	e := &Engine{
		kind: EngineEmbedded, describe: "in memory: jobs are lost on exit",
		fast: local(dial, patient), patient: local(dial, patient),
	}
	const age = time.Second
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(age)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				m.FastForward(age)
			case <-stop:
				return
			}
		}
	}()
	e.stop = func() error {
		close(stop)
		<-stopped
		m.Close()
		return nil
	}
	return e, nil
}
