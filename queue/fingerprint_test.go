package queue

import (
	"testing"
	"time"
)

// TestFingerprintIsTheSame: stored keys stay comparable. Submissions without headers have the
// fingerprints that they had before jobs could have any.
func TestFingerprintIsTheSame(t *testing.T) {
	for want, s := range map[string]Submission{
		"69aEgt9fIP7pAcwRk3_qbA": {Payload: []byte(`{"sku":1}`), Type: "order.create", Route: "default"},
		"VA1c4CwKPGsauwvK3KWlyQ": {Payload: []byte(`{"sku":1}`), Type: "order.create", Route: "default", Cost: 3, Delay: time.Second},
		"jNstqOpouWNvBP2xdMWOpA": {Payload: []byte("a;b"), Type: "t", Route: "r", ContentType: "text/csv", Path: "/x"},
		"1D4CVHhNQiB0HcwE3UlkEg": {Payload: []byte("a"), Same: []byte("b"), Type: "t", Route: "r", Cost: 7}, // forwarded
	} {
		if got := s.fingerprint(nil); got != want {
			t.Errorf("%+v: %s, want %s", s, got, want)
		}
		s.Headers = map[string]string{"X-Request-Id": "17"}
		if s.fingerprint(nil) == want {
			t.Errorf("%+v: the headers make no difference", s)
		}
	}
}
