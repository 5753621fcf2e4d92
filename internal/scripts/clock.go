package scripts

import (
	"fmt"

	"github.com/7509e464/sluice/shaper"
)

// ClockNumbers is the field of a shard's clock that ParseClock reads.
const ClockNumbers = "n"

// Clock is a shard's clock and the sums over its flows; see lib/clock.lua.
type Clock struct {
	Last, Off, Wake              shaper.Instant // Off: by how much it is ahead of the server's clock
	Depth, Running               int64
	Swept, Grace                 shaper.Instant
	Help, Bytes, Stored          int64
	Admitted, Rejected, Departed int64
}

// ClosedField is the field of the clock with the routes that admit no jobs until an instant.
const ClosedField = "closed"

// ClassField is the field of the clock with the sums of a class.
func ClassField(class string) string { return "class:" + class }

// ClassSums are the bytes that are stored of a class: of jobs that wait, run or are dead, and of
// keys that Redis expires.
type ClassSums struct {
	Stored        int64
	Answers, Keys shaper.Aged
}

// ParseClass reads the sums of a class. An empty text has none.
func ParseClass(text string) (c ClassSums, err error) {
	if text == "" {
		return c, nil
	}
	if _, err = fmt.Sscan(text, &c.Stored, &c.Answers.Sum, &c.Answers.Before, &c.Answers.Since,
		&c.Keys.Sum, &c.Keys.Before, &c.Keys.Since); err != nil {
		return ClassSums{}, fmt.Errorf("%w: the sums of a class: %w", ErrReply, err)
	}
	return c, nil
}

// ParseClock reads the numbers of a clock. The text of an unused clock is empty, its numbers are 0.
func ParseClock(text string) (c Clock, err error) {
	if text == "" {
		return c, nil
	}
	if _, err = fmt.Sscan(text, &c.Last, &c.Off, &c.Wake, &c.Depth, &c.Running, &c.Swept, &c.Grace, &c.Help,
		&c.Bytes, &c.Stored,
		&c.Admitted, &c.Rejected, &c.Departed); err != nil {
		return Clock{}, fmt.Errorf("%w: the numbers of a clock: %w", ErrReply, err)
	}
	return c, nil
}
