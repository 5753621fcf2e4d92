package worker

import (
	"time"

	"github.com/7509e464/sluice/queue"
)

// helpEvery is how often an owner without capacity asks for help, and how long it must have had some to stop asking.
const helpEvery = time.Second

// help is what one worker knows of the help flag of a shard that it owns. A raised flag asks the other workers to lease
// from the shard.
type help struct {
	raised   bool   // the flag is up, as far as the owner knows
	raisedAt moment // when it was last raised
	dryAt    moment // when capacity was last missing
	emptyAt  moment // when the shard was last polled without capacity
	short    bool   // the last poll put flows off whose routes have no capacity left here
}

func newHelp() help { return help{raisedAt: longAgo, dryAt: longAgo, emptyAt: longAgo} }

// mayPollEmpty reports whether to poll without capacity: to ask for help when jobs are due, and otherwise once in a while,
// because a poll also expires jobs and takes back leases. A helper without capacity has no reason to poll.
func (h *help) mayPollEmpty(now moment, owner, due bool) bool {
	h.dryAt = now
	if !owner {
		h.emptyAt = now
		return false
	}
	if now.since(h.emptyAt) < helpEvery && !(due && now.since(h.raisedAt) >= helpEvery) {
		return false
	}
	h.emptyAt = now
	return true
}

// signal is what a poll of the owner, with so many reserved places, says about its capacity.
func (h *help) signal(now moment, reserved int, due bool) queue.HelpSignal {
	switch {
	case (h.short || reserved == 0 && due) && now.since(h.raisedAt) >= helpEvery:
		return queue.HelpRaise
	case reserved > 0 && h.raised && now.since(h.dryAt) >= helpEvery:
		return queue.HelpClear
	}
	return queue.HelpKeep
}

// note keeps up with the flag after a poll that said sent at now.
func (h *help) note(t queue.Tick, sent queue.HelpSignal, now moment, owner bool) {
	if h.short = t.PutOff > 0; h.short {
		h.dryAt = now
	}
	switch {
	case sent == queue.HelpRaise:
		h.raised, h.raisedAt = true, now
	case sent == queue.HelpClear:
		h.raised = false
	case owner && t.Help && !h.raised:
		// A former owner raised it: it is now this one's to clear.
		h.raised, h.dryAt = true, now
	}
}
