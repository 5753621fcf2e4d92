package queue

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// invoke sends a call of package lua by send and decodes its answer.
func invoke[R any](ctx context.Context, send func(context.Context, lua.Call) ([]any, error), c interface {
	Call() lua.Call
	Decode(values []any) (R, error)
},
) (answer R, err error) {
	values, err := send(ctx, c.Call())
	if err == nil {
		answer, err = c.Decode(values)
	}
	return answer, unavailable(err)
}

// invokeAll sends calls of one kind in one exchange and decodes their answers in order. With an
// error it returns the answers before it.
func invokeAll[R any, C interface{ Call() lua.Call }](
	ctx context.Context, q *Queue, calls []C, decode func(C, []any) (R, error),
) ([]R, error) {
	sent, answers := make([]lua.Call, len(calls)), make([]R, 0, len(calls))
	for i, c := range calls {
		sent[i] = c.Call()
	}
	for i, r := range q.exec(ctx, q.engine.fast, sent) {
		if r.Err != nil {
			return answers, unavailable(r.Err)
		}
		answer, err := decode(calls[i], r.Values)
		if err != nil {
			return answers, unavailable(err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// sendPatient sends a call with the patient client. It repairs nothing.
func (q *Queue) sendPatient(ctx context.Context, call lua.Call) ([]any, error) {
	return lua.Run(ctx, q.engine.patient, q.observe, call)
}

// pipeline sends a command for each item in one exchange, and returns the answers in their order.
func pipeline[K, V any, C interface{ Val() V }](
	ctx context.Context, c redis.UniversalClient, items []K, command func(redis.Pipeliner, K) C,
) ([]V, error) {
	cmds, values := make([]C, len(items)), make([]V, len(items))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, item := range items {
			cmds[i] = command(p, item)
		}
		return nil
	}); err != nil {
		return nil, unavailable(err)
	}
	for i, cmd := range cmds {
		values[i] = cmd.Val()
	}
	return values, nil
}
