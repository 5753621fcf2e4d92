package queue

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
)

// Answer is the stored answer to a forwarded request, as package httpmsg encodes it.
type Answer struct {
	Start []byte // its first bytes; the whole of a short one
	Size  int    // bytes of the whole

	q      *Queue
	key    string // of the record
	at     int64  // of the answer in the record
	head   string // of the record when Start was read
	sealed bool   // it is stored encrypted, in segments
	tenant string // as in keys
	id     string
}

// Answer reads a job of a forward route with the start of its answer; nil for one that has none, or
// none yet. With the end that a watch of the job received it may read nothing. Errors: ErrNotFound,
// ErrGone, ErrUnavailable.
func (q *Queue) Answer(ctx context.Context, tenant, id string, end End) (Job, *Answer, error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return Job{}, nil, err
	}
	if end.record != "" {
		found, err := q.statusOf(store.EncodeName(tenant), id, []byte(end.record))
		if err == nil && found.Tenant == tenant {
			return q.answerIn(shard, found)
		}
	}
	var found *status
	for _, most := range []int{someResult, mostResult} {
		all, err := q.readStatuses(ctx, store.EncodeName(tenant), []string{id}, most)
		if err != nil {
			return Job{}, nil, err
		}
		if found = all[0]; found == nil || found.size <= found.read || found.whole {
			break
		}
	}
	if found == nil {
		if n, err := q.store.Reads.Exists(ctx, shard.Job(id)).Result(); err != nil {
			return Job{}, nil, store.Unavailable(err)
		} else if n == 0 {
			return Job{}, nil, ErrGone
		}
		return Job{}, nil, ErrNotFound
	}
	return q.answerIn(shard, found)
}

// answerIn returns a job as it was read, and its answer.
func (q *Queue) answerIn(shard store.ShardKeys, found *status) (Job, *Answer, error) {
	res := found.result
	if res.answer == nil {
		return found.Job, nil, nil
	}
	if res.size == 0 { // there was no memory for it
		return Job{}, nil, ErrGone
	}
	return found.Job, &Answer{
		Start: res.answer, Size: res.size, q: q, key: shard.Job(found.ID), at: int64(scripts.ResultAt(found.head) + res.at),
		head: string(found.head), sealed: res.sealed, tenant: store.EncodeName(found.Tenant), id: found.ID,
	}, nil
}

// Read reads up to n bytes of the answer, from the offset on. Errors: ErrGone where the record has
// expired or changed since Start was read, ErrUnavailable.
func (a *Answer) Read(ctx context.Context, offset, n int) ([]byte, error) {
	n = min(n, a.Size-offset)
	if offset+n <= len(a.Start) {
		return a.Start[offset : offset+n], nil
	}
	if !a.sealed {
		return a.stored(ctx, offset, n)
	}
	const whole = answerSegment + sealed.Overhead
	first, last := offset/answerSegment, (offset+n-1)/answerSegment
	end := (last + 1) * whole
	if last == (a.Size-1)/answerSegment {
		end = a.Size + (last+1)*sealed.Overhead
	}
	piece, err := a.stored(ctx, first*whole, end-first*whole)
	if err != nil {
		return nil, err
	}
	opened, err := openSegments(a.q.box, a.tenant, a.id, piece, first, a.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrScript, err)
	}
	from := offset - first*answerSegment
	return opened[from : from+n], nil
}

// stored reads n bytes of the answer as it is stored, from the offset on.
func (a *Answer) stored(ctx context.Context, offset, n int) ([]byte, error) {
	var piece, head *redis.StringCmd
	if _, err := a.q.store.Reads.Pipelined(ctx, func(p redis.Pipeliner) error {
		from := a.at + int64(offset)
		piece = p.GetRange(ctx, a.key, from, from+int64(n)-1)
		// Read last: if it has not changed by now, nor had the record when the piece was read.
		head = p.GetRange(ctx, a.key, 0, scripts.HeadLength-1)
		return nil
	}); err != nil {
		return nil, store.Unavailable(err)
	}
	if head.Val() != a.head || len(piece.Val()) != n {
		return nil, ErrGone
	}
	return piece.Bytes()
}
