package queuetest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var payloadTests = map[string]func(*suite){
	"a payload is read byte for byte":                  payloadReads,
	"a payload over the limit is not read":             payloadTooLarge,
	"a compressed payload is read as it was submitted": payloadCompressed,
	"of ended jobs only dead ones keep their payload":  payloadAtTheEnd,
	"a payload of another tenant is not found":         payloadOfOthers,
}

// payload insists that the job has this payload.
func (s *suite) payload(tenant, id string, want []byte) {
	s.Helper()
	got, size, err := s.q.Payload(s.ctx, tenant, id, 1<<16)
	if err != nil || size != len(want) || !bytes.Equal(got, want) {
		s.Errorf("the payload is %d bytes, %.40q, %v, want %d bytes, %.40q", size, got, err, len(want), want)
	}
}

func payloadReads(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	for _, payload := range []string{"1", `{ "a" : [1, 2] }`, "\x00\xff", strings.Repeat("x", 1<<16)} {
		w := work()
		w.Payload = []byte(payload)
		s.payload(tenant, s.admit(w).ID, w.Payload)
		// All that may stand before a payload does.
		w.Tenant, w.Route, w.Type = strings.Repeat("t ", 127), strings.Repeat("r ", 127), strings.Repeat("y ", 127)
		w.CallbackURL, w.TraceParent, w.IdempotencyKey = "http://"+strings.Repeat("c", 1017),
			strings.Repeat("p", 55), "key"+payload[:1]
		s.payload(w.Tenant, s.admit(w).ID, w.Payload)
	}
}

func payloadTooLarge(s *suite) {
	w := work()
	w.Payload = []byte("1234567")
	id := s.admit(w).ID
	for most, want := range map[int]string{6: "", 7: "1234567", 8: "1234567", 0: ""} {
		got, size, err := s.q.Payload(s.ctx, tenant, id, most)
		if err != nil || size != 7 || string(got) != want || (got == nil) != (want == "") {
			s.Errorf("at most %d bytes: %q of %d, %v", most, got, size, err)
		}
	}
}

func payloadCompressed(s *suite) {
	s.restart(func(o *queue.Options) { o.CompressOver = 1000 })
	for _, n := range []int{999, 1000, 1 << 16} {
		w := sized(n)
		s.payload(tenant, s.admit(w).ID, w.Payload)
	}
	id := s.admit(sized(1 << 17)).ID // takes less than is asked for, compressed
	for _, most := range []int{10, 1 << 16} {
		if got, size, err := s.q.Payload(s.ctx, tenant, id, most); err != nil || size != 1<<17 || got != nil {
			s.Errorf("at most %d bytes: %d of %d, %v", most, len(got), size, err)
		}
	}
}

func payloadAtTheEnd(s *suite) {
	w := work()
	for event, kept := range map[shaper.Event]bool{shaper.Succeed: false, shaper.Die: true, shaper.Retry: true} {
		id := s.admit(w).ID
		s.settle(s.lease(1)[0], event, after(time.Hour))
		want := w.Payload
		if !kept {
			want = nil
		}
		s.payload(tenant, id, want)
	}
	id := s.admit(w).ID
	s.cancel(id)
	s.payload(tenant, id, nil)
}

func payloadOfOthers(s *suite) {
	id := s.admit(work()).ID
	for _, other := range []string{"other", "", "ACME", "acme ", "acme/default", queue.EncodeName("acme ")} {
		if _, _, err := s.q.Payload(s.ctx, other, id, 100); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("read by %q: %v, want ErrNotFound", other, err)
		}
	}
	for _, id := range s.strangers(id) {
		if _, _, err := s.q.Payload(s.ctx, tenant, id, 100); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("%.40q: %v, want ErrNotFound", id, err)
		}
	}
}
