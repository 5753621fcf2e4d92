package queue

import (
	"context"
	"strings"

	"github.com/7509e464/sluice/lua"
)

// Payload reads what a job delivers, byte for byte. size is its length in bytes, 0 where the job has ended and kept none; a payload of more
// than most bytes is left where it is, and nil is returned in its place. ErrNotFound, ErrUnavailable.
func (q *Queue) Payload(ctx context.Context, tenant, id string, most int) (payload []byte, size int, err error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return nil, 0, err
	}
	start, err := q.engine.fast.GetRange(ctx, shard.Job(id), 0, int64(lua.BeforePayload+most)-1).Bytes()
	if err != nil {
		return nil, 0, unavailable(err)
	}
	flow, payload, size, ok := lua.PeekPayload(start)
	if owner, _, _ := strings.Cut(flow, "/"); !ok || owner != EncodeName(tenant) {
		return nil, 0, ErrNotFound
	}
	whole := len(payload) == size
	if size = submittedSize(payload, size); size > most || size == 0 || !whole {
		return nil, size, nil
	}
	payload, err = decompress(payload)
	return payload, size, err
}
