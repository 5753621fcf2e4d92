package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
)

// Errors of the store; package queue exports and describes them.
var (
	ErrUnavailable = errors.New("queue: redis is unavailable")
	ErrState       = errors.New("queue: redis cannot serve now")
	ErrScript      = errors.New("queue: corrupt data in redis")
	ErrSchema      = errors.New("queue: the data in redis does not fit")
	ErrEncrypted   = errors.New("queue: the store is encrypted by keys that this process does not have")
	// ErrOutcomeUnknown, ErrReplicas and ErrRefused are ErrUnavailable, too.
	ErrOutcomeUnknown error = special{"queue: the write may be lost in a failover"}
	ErrReplicas       error = special{"queue: redis has too few replicas"}
	ErrRefused        error = special{"queue: redis refuses writes, because it has too few replicas"}
	// ErrSealed means that this process lacks the key of an encrypted text. It is ErrUnavailable,
	// too: the text is not lost.
	ErrSealed error = special{"queue: an encrypted text of the store has a key that this process does not have"}
)

// special is a kind of ErrUnavailable and of ErrState.
type special struct{ text string }

func (e special) Error() string { return e.text }

func (special) Is(target error) bool { return target == ErrUnavailable || target == ErrState }

// Fault is the kind of a failed call to Redis. It decides whether a retry helps.
type Fault string

// The kinds of faults.
const (
	// FaultTransport: no connection, or no answer in time. Errors of this kind wrap ErrUnavailable.
	FaultTransport Fault = "transport"
	// FaultState: Redis cannot serve the call now, for example while it loads its data. Errors of
	// this kind wrap ErrUnavailable and ErrState.
	FaultState Fault = "state"
	// FaultScript: the stored data is damaged. Errors of this kind wrap ErrScript.
	FaultScript Fault = "script"
)

// FaultOf returns the kind of a failed call, "" for nil and for a cancelled context.
func FaultOf(err error) Fault {
	var reply redis.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, ErrScript), errors.Is(err, scripts.ErrReply), errors.Is(err, scripts.ErrRecord):
		return FaultScript
	case errors.Is(err, ErrState):
		return FaultState
	case errors.Is(err, redis.Nil): // where a value has to be
		return FaultScript
	case !errors.As(err, &reply):
		return FaultTransport
	case ofData(reply.Error()):
		return FaultScript
	}
	return FaultState
}

// ofData reports whether an error reply is about the stored data: a command met a value of another
// type, or a script of Sluice stopped at what it read. Any other reply, known or not, is about the
// state of Redis, of the connection, or of what lies between.
func ofData(reply string) bool {
	return aboutValue.MatchString(reply) ||
		strings.HasPrefix(reply, "ERR ") && byScript.MatchString(reply) && !ofState.MatchString(reply)
}

// aboutValue matches what commands answer about a value, within a script or not.
var aboutValue = regexp.MustCompile(`^WRONGTYPE |value is not an? (integer|float|valid float)|would overflow`)

// byScript matches errors that end a script. Redis 7 names the script behind the error; Redis 6.2
// and the embedded engine say first that it failed.
var byScript = regexp.MustCompile(`script: [0-9a-f]+, on @|^ERR Error (running|compiling) script`)

// ofState matches errors that a state of Redis causes within a script. Redis 6.2 quotes the code of
// a command's error behind a minus sign. The last text is the answer to a script on a slot that is
// being moved.
var ofState = regexp.MustCompile(`[ :]-[A-Z]{3,} |Script killed by user|Unknown Redis command|` +
	`The user executing the script can't|ACL failure in script|Script attempted to access a non local key`)

// Unavailable wraps the error of a call: ErrUnavailable, with ErrState where Redis answered, or
// ErrScript. The error of the caller's context is returned as it is.
func Unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrScript) {
		return err
	}
	switch FaultOf(err) {
	case FaultTransport:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case FaultState:
		if strings.Contains(err.Error(), "NOREPLICAS") {
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return fmt.Errorf("%w: %w", errUnavailableState, err)
	case FaultScript:
		return fmt.Errorf("%w: %w", ErrScript, err)
	}
	return err
}

// errUnavailableState is ErrUnavailable and ErrState. It has the text of ErrUnavailable.
var errUnavailableState error = special{ErrUnavailable.Error()}
