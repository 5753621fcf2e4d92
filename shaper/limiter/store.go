package limiter

import (
	"context"
	"time"
)

// Rule is a policy with a name. Keys are counted under each rule separately. A rule with a changed
// policy is another rule and starts with empty state, because a state means nothing under another
// policy.
type Rule struct {
	Name   string
	Policy Policy // must be legal
}

// Store keeps the state of the keys of many rules. It owns the clock, which never goes back for
// a key that has state, and decides on each request in one step: however many callers ask at once,
// a key gets no more than the policy promises. A key may be any text.
//
// A question (cost 0) and a refusal leave no trace, but for the block that an overflow starts.
type Store interface {
	// Take decides on one request of the key. After an error it is unknown whether the request was
	// counted; Take does not repeat it.
	Take(ctx context.Context, r Rule, key string, cost int64) (Decision, error)
	// Clear deletes the state of the key, and with it a block. It reports whether there was any.
	Clear(ctx context.Context, r Rule, key string) (known bool, err error)
	// Blocked lists keys that are blocked, those that are free soonest first, at most the given
	// number.
	Blocked(ctx context.Context, r Rule, most int) ([]Blocked, error)
}

// Blocked is a key that overflowed under a policy with a block.
type Blocked struct {
	Key  string
	Left time.Duration // until it is free, more than 0
}
