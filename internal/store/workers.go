package store

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
)

// workerTTL is how long a worker counts as live after a heartbeat.
const workerTTL = 3 * time.Second

// LiveWorkers returns the names of the workers with a recent heartbeat.
func (s *Store) LiveWorkers(ctx context.Context) (names []string, err error) {
	var server *redis.TimeCmd
	var numbers *redis.StringCmd
	var beats *redis.ZSliceCmd
	if _, err := s.Fast.Pipelined(ctx, func(p redis.Pipeliner) error {
		server, numbers = p.Time(ctx), p.HGet(ctx, WorkersClock, scripts.ClockNumbers)
		beats = p.ZRangeWithScores(ctx, WorkersKey, 0, -1)
		return nil
	}); err != nil && !errors.Is(err, redis.Nil) { // Nil: there was no worker yet
		return nil, Unavailable(err)
	}
	clock, err := scripts.ParseClock(numbers.Val())
	if err != nil {
		return nil, Unavailable(err)
	}
	now := max(server.Val().UnixMicro()+int64(clock.Off), int64(clock.Last)) // as in lib/clock.lua
	for _, b := range beats.Val() {
		if name, _ := b.Member.(string); int64(b.Score) > now-workerTTL.Microseconds() {
			names = append(names, name)
		}
	}
	return names, nil
}
