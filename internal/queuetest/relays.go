package queuetest

import (
	"errors"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var relayTests = map[string]func(*suite){
	"an answer that comes is read elsewhere, and is never sent again": relayedElsewhere,
}

// relayedElsewhere begins an answer, loses its process, and reads it in another one until the lease
// is over.
func relayedElsewhere(s *suite) {
	id := s.admit(work()).ID
	o := pollOptions(1, far)
	o.Lease = time.Second
	l := s.poll("w", o).Leases[0]
	head := []byte("HTTP/1.1 200\r\n\r\n")
	r, err := s.q.Broker().Relay(s.ctx, l.LeaseRef, tenant, head, 1000, time.Minute)
	if err != nil {
		s.Fatalf("Relay: %v", err)
	}
	if err := r.Write(s.ctx, make([]byte, 2000)); err != nil {
		s.Fatalf("Write: %v", err)
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		r.Run(s.ctx, func() {})
	}()
	s.await("the parts in the store", func() bool { return r.InStore() >= 1000 })
	r.Break()
	<-ran
	s.restart(func(*queue.Options) {})
	stream, err := s.q.Stream(s.ctx, tenant, id)
	if err != nil || stream == nil || string(stream.Head) != string(head) {
		s.Fatalf("Stream: %+v, %v", stream, err)
	}
	defer stream.Close()
	for read := 0; read < 1000; {
		piece, err := stream.Next(s.ctx)
		if err != nil {
			s.Fatalf("after %d bytes: %v", read, err)
		}
		read += len(piece)
	}
	s.await("the end of the lease", func() bool {
		if again := s.leaseUpTo(1, far); len(again) > 0 {
			s.Fatalf("the request is leased again: %+v", again)
		}
		return s.job(id).State.Done()
	})
	if j := s.job(id); j.State != shaper.Dead || j.LastError == nil || j.LastError.Message != "the answer broke off after 1000 bytes" {
		s.Errorf("the job is %s: %+v", j.State, j.LastError)
	}
	if _, err := stream.Next(s.ctx); !errors.Is(err, queue.ErrBrokeOff) && !stream.Truncated {
		s.Errorf("behind what was stored: %v", err)
	}
}
