package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// Errors of the store; package queue exports and describes them.
var (
	ErrUnavailable = errors.New("queue: redis is unavailable")
	ErrState       = errors.New("queue: redis cannot serve now")
	ErrScript      = errors.New("queue: corrupt data in redis")
	ErrSchema      = errors.New("queue: the data in redis does not fit")
	// ErrOutcomeUnknown, ErrReplicas and ErrRefused are ErrUnavailable, too.
	ErrOutcomeUnknown error = special{"queue: the write may be lost in a failover"}
	ErrReplicas       error = special{"queue: redis has too few replicas"}
	ErrRefused        error = special{"queue: redis refuses writes, because it has too few replicas"}
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
	case errors.Is(err, ErrScript), errors.Is(err, lua.ErrReply), errors.Is(err, lua.ErrRecord):
		return FaultScript
	case errors.Is(err, ErrState):
		return FaultState
	case !errors.As(err, &reply):
		return FaultTransport
	case serverState.MatchString(reply.Error()):
		return FaultState
	}
	return FaultScript
}

// stateCodes are the error codes by which Redis reports its state.
const stateCodes = `(LOADING|OOM|READONLY|MISCONF|CLUSTERDOWN|BUSY|UNKILLABLE|MASTERDOWN|TRYAGAIN|` +
	`NOREPLICAS|NOREPLICA|MOVED|ASK|NOSCRIPT|NOAUTH|WRONGPASS|NOPERM|DENIED|NOPROTO|EXECABORT|NOQUORUM)`

// serverState matches error replies about the state of the server. For a command within a script,
// Redis 6.2 answers with ERR and quotes the code behind a minus sign. The last text is the answer
// to a script on a slot that is being moved.
var serverState = regexp.MustCompile(`^` + stateCodes + `( |$)|^ERR .*script.*[ :]-` + stateCodes + ` |` +
	`ERR max number of clients|ERR Script killed|Script killed by user|ERR unknown command|` +
	`ERR This instance has cluster support disabled|The user executing the script can't|ACL failure in script|` +
	`Script attempted to access a non local key`)

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
