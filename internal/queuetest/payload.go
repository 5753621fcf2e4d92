package queuetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
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
	"headers are kept with a payload":                  payloadWithHeaders,
}

// payload insists that the job has this payload.
func (s *suite) payload(tenant, id string, want []byte) {
	s.Helper()
	got, err := s.q.Payload(s.ctx, tenant, id, 1<<16)
	if err != nil || got.Size != len(want) || !bytes.Equal(got.Bytes, want) {
		s.Errorf("the payload is %d bytes, %.40q, %v, want %d bytes, %.40q", got.Size, got.Bytes, err, len(want), want)
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
		got, err := s.q.Payload(s.ctx, tenant, id, most)
		if err != nil || got.Size != 7 || string(got.Bytes) != want || (got.Bytes == nil) != (want == "") {
			s.Errorf("at most %d bytes: %q of %d, %v", most, got.Bytes, got.Size, err)
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
		if got, err := s.q.Payload(s.ctx, tenant, id, most); err != nil || got.Size != 1<<17 || got.Bytes != nil {
			s.Errorf("at most %d bytes: %d of %d, %v", most, len(got.Bytes), got.Size, err)
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
		if v, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 3}); err != nil || v.Outcome != shaper.Admitted {
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

func payloadWithHeaders(s *suite) {
	s.restart(func(o *queue.Options) { o.CompressOver = 1000 })
	most := map[string]string{}
	for n := range 16 {
		most[fmt.Sprintf("X-%02d", n)] = strings.Repeat("é", 126)
	}
	for _, want := range []queue.Submission{
		{Headers: map[string]string{"X-Request-Id": "17"}, Payload: []byte("1")},
		{Headers: map[string]string{"Accept-Language": "de:", "X_Api_Key": "a:b", "X-Empty": ""}},
		{Headers: most, Path: strings.Repeat("/", 1024), ContentType: strings.Repeat("t", 255), Payload: bytes.Repeat([]byte("x"), 5000)},
		{Headers: map[string]string{"A": "b"}, Payload: []byte("\xffraw\x01\x00\x01t\x00\x01/x")},
	} {
		w := work()
		w.ContentType, w.Path, w.Payload, w.Headers = want.ContentType, want.Path, want.Payload, want.Headers
		id := s.admit(w).ID
		s.payload(tenant, id, want.Payload)
		for _, most := range []int{0, 1 << 16} {
			if got, err := s.q.Payload(s.ctx, tenant, id, most); err != nil || !maps.Equal(got.Headers, want.Headers) {
				s.Errorf("the headers are %q, %v, want %q", got.Headers, err, want.Headers)
			}
		}
		same := func(when string, l queue.Lease) {
			if !maps.Equal(l.Headers, want.Headers) || l.Path != want.Path || l.ContentType != want.ContentType ||
				!bytes.Equal(l.Payload, want.Payload) {
				s.Errorf("%s: leased as %q %q %q %.20q", when, l.Headers, l.Path, l.ContentType, l.Payload)
			}
		}
		l := s.lease(1)[0]
		same("at first", l)
		s.settle(l, shaper.Retry)
		l = s.lease(1)[0]
		same("after a retry", l)
		s.settle(l, shaper.Die)
		if v, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 3}); err != nil || v.Outcome != shaper.Admitted {
			s.Fatalf("Replay: %+v %v", v, err)
		}
		l = s.lease(1)[0]
		same("after a replay", l)
		s.settle(l, shaper.Succeed)
		if got, err := s.q.Payload(s.ctx, tenant, id, 1<<16); err != nil || got.Headers != nil {
			s.Errorf("after the end the headers are %q, %v", got.Headers, err)
		}
	}
	w := work()
	w.IdempotencyKey, w.Headers = "with headers", map[string]string{"X-Request-Id": "17", "Accept-Language": "de"}
	s.admit(w)
	for _, c := range []struct {
		headers map[string]string
		want    shaper.Outcome
	}{
		{map[string]string{"accept_language": "de", "x-request_ID": "17"}, shaper.Replayed},
		{map[string]string{"X-Request-Id": "18", "Accept-Language": "de"}, shaper.KeyReused},
		{map[string]string{"X-Request-Id": "de", "Accept-Language": "17"}, shaper.KeyReused},
		{map[string]string{"X-Request-Id": "17"}, shaper.KeyReused},
		{nil, shaper.KeyReused},
	} {
		w.Headers = c.headers
		equal(s, fmt.Sprintf("the outcome with %q", c.headers), s.submit(w).Outcome, c.want)
	}
	for name, value := range map[string]string{
		"": "x", "X Y": "x", "Sluice-Tenant": "x", "host": "x", "X-A": "a\nb: c", "X-B": " x", "X-C": "\xff",
		"X-D": strings.Repeat("x", 4094),
	} {
		w := work()
		w.Headers = map[string]string{name: value}
		if _, err := s.q.Submit(s.ctx, w); err == nil || !strings.Contains(err.Error(), "headers") {
			s.Errorf("%q: %.20q: %v, want an error that names the headers", name, value, err)
		}
	}
	w = work()
	w.Path = "/x\nHost:evil.example"
	if _, err := s.q.Submit(s.ctx, w); err == nil {
		s.Error("a path with a line feed is admitted")
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
	for _, other := range []string{"other", "", "ACME", "acme ", "acme/default", store.EncodeName("acme ")} {
		if _, err := s.q.Payload(s.ctx, other, id, 100); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("read by %q: %v, want ErrNotFound", other, err)
		}
	}
	for _, id := range s.strangers(id) {
		if _, err := s.q.Payload(s.ctx, tenant, id, 100); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("%.40q: %v, want ErrNotFound", id, err)
		}
	}
}
