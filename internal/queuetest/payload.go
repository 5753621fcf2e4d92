package queuetest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var payloadTests = map[string]func(*suite){
	"a payload is read byte for byte":                  payloadReads,
	"a payload over the limit is not read":             payloadTooLarge,
	"a compressed payload is read as it was submitted": payloadCompressed,
	"of ended jobs only dead ones keep their payload":  payloadAtTheEnd,
	"a payload of another tenant is not found":         payloadOfOthers,
	"content type and path are kept with a payload":    payloadTyped,
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

func payloadTyped(s *suite) {
	s.restart(func(o *queue.Options) { o.CompressOver = 1000 })
	plain := string(work().Payload)
	for _, want := range []queue.Submission{
		{ContentType: "text/csv; charset=latin1", Payload: []byte("a;b\r\n\xe9")},
		{Path: "/orders/%C3%A9", Payload: []byte(plain)},
		{ContentType: strings.Repeat("t", 255), Path: strings.Repeat("/", 1024), Payload: bytes.Repeat([]byte("x"), 5000)},
		{ContentType: "application/octet-stream"},
		{Payload: []byte("\xffraw\x01\x00")}, // looks like one with a type
		{Payload: []byte("\xffraw\x01\x00\x01t\x00\x01/x")},
	} {
		w := work()
		w.ContentType, w.Path, w.Payload = want.ContentType, want.Path, want.Payload
		id := s.admit(w).ID
		s.payload(tenant, id, want.Payload)
		l := s.lease(1)[0]
		if l.ContentType != want.ContentType || l.Path != want.Path || !bytes.Equal(l.Payload, want.Payload) {
			s.Errorf("%q %q %.20q is leased as %q %q %.20q", want.ContentType, want.Path, want.Payload, l.ContentType,
				l.Path, l.Payload)
		}
		s.settle(l, shaper.Die)
		if v, err := s.q.Replay(s.ctx, tenant, id, 3); err != nil || v.Outcome != shaper.Admitted {
			s.Fatalf("Replay: %+v %v", v, err)
		}
		l = s.lease(1)[0]
		equal(s, "the content type after a replay", l.ContentType, want.ContentType)
		equal(s, "the path after a replay", l.Path, want.Path)
		s.settle(l, shaper.Succeed)
	}
	w := work()
	w.IdempotencyKey, w.ContentType = "typed", "text/plain"
	s.admit(w)
	equal(s, "the outcome of the same", s.submit(w).Outcome, shaper.Replayed)
	w.ContentType = "text/html"
	equal(s, "the outcome with another content type", s.submit(w).Outcome, shaper.KeyReused)
	w.ContentType, w.Path = "text/plain", "/x"
	equal(s, "the outcome with another path", s.submit(w).Outcome, shaper.KeyReused)
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
	for _, other := range []string{"other", "", "ACME", "acme ", "acme/default", store.EncodeName("acme ")} {
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
