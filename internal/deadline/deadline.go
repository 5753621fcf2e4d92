// Package deadline holds the bounds on the time and size of requests and answers, so that slow
// clients hold nothing for long. Packages below api that read or write HTTP import it.
package deadline

import (
	"net/http"
	"time"
)

// Bounds of a connection. A request must be complete ReadTimeout after its first byte, or after the
// start of its connection. So a client that sends one byte at a time is cut off within 10 s. Large
// bodies get more time as they arrive. The time to write starts with the header, so it covers the
// longest wait and the answer. An answer that has begun has a bound of its own, see Handler. Idle
// connections may stay long because proxies keep theirs; a full listener closes them first.
const (
	HeaderTimeout = 5 * time.Second // for the header of a request
	ReadTimeout   = 8 * time.Second // for a request with its body, see above
	AnswerTimeout = 5 * time.Second // for sending an answer; see ForAnswer for large ones
	// RefuseTimeout is for a problem, which may only begin after the rest of a body was read.
	RefuseTimeout = ReadTimeout + 500*time.Millisecond
	// WriteTimeout is from the end of the header to the end of the answer.
	WriteTimeout = ReadTimeout + MaxWait + AnswerTimeout
	// MaxWait is how long a request waits for the end of its job: wire.MaxWaitSeconds.
	MaxWait     = 30 * time.Second
	IdleTimeout = 2 * time.Minute // between two requests
	MaxHeader   = 32 << 10        // bytes of all headers of a request

	// BodyStep is how many bytes of a body, or of an answer, extend its deadline by a second.
	BodyStep = 64 << 10
)

// ForAnswer bounds the time to send an answer of size bytes, from now on: AnswerTimeout, and a
// second more for each BodyStep.
func ForAnswer(w http.ResponseWriter, size int) {
	Within(w, AnswerTimeout+time.Duration(size/BodyStep)*time.Second)
}

// Within sets the write deadline to d from now. It ignores writers without deadlines, as in tests.
func Within(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// Handler returns a handler that bounds the time of next to answer from its first byte, with
// ForAnswer. It is for handlers that begin their answer at once.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ForAnswer(w, 0)
		next.ServeHTTP(w, r)
	})
}
