// Package deadline holds the bounds on the time and size of requests and answers, so that slow
// clients hold nothing for long. Packages below api that read or write HTTP import it.
package deadline

import (
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/wire"
)

// Bounds of a connection. A request must be complete ReadTimeout after its first byte, or after the
// start of its connection. So a client that sends one byte at a time is cut off within 10 s. Large
// bodies get more time as they arrive. The time to write starts with the header, so it covers the
// longest wait and the answer. An answer that has begun has a bound of its own, see hurry. Idle
// connections may stay long because proxies keep theirs; a full listener closes them first.
const (
	HeaderTimeout = 5 * time.Second
	ReadTimeout   = 8 * time.Second
	AnswerTimeout = 5 * time.Second
	// RefuseTimeout is for a problem, which may only begin after the rest of a body was read.
	RefuseTimeout = ReadTimeout + 500*time.Millisecond
	WriteTimeout  = ReadTimeout + wire.MaxWaitSeconds*time.Second + AnswerTimeout
	IdleTimeout   = 2 * time.Minute
	MaxHeader     = 32 << 10 // bytes

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

// Handler is a handler whose answers begin at once, so that it bounds their time like hurry.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ForAnswer(w, 0)
		next.ServeHTTP(w, r)
	})
}
