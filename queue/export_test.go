package queue

import "github.com/redis/go-redis/v9"

// AddHook puts a hook round everything that the engine's clients send.
func (e *Engine) AddHook(h redis.Hook) {
	e.fast.AddHook(h)
	e.patient.AddHook(h)
}

// Waiting is the number of submissions that no exchange has taken yet.
func (q *Queue) Waiting() int { return len(q.flusher.queue) }
