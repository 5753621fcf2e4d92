package queue

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// Fault is the kind of a failed call to Redis. It decides what helps: to try again, or not.
type Fault string

// The kinds of faults.
const (
	// FaultTransport: no connection, or no answer in time. Errors of this kind wrap ErrUnavailable.
	FaultTransport Fault = "transport"
	// FaultState: Redis answered that it cannot serve the call now. It loads its data, is out of memory, is a replica, runs
	// another script, has no quorum, or refuses the user. Errors of this kind wrap ErrUnavailable and ErrState.
	FaultState Fault = "state"
	// FaultScript: Redis or this process could not work with the stored data. Errors of this kind wrap ErrScript.
	FaultScript Fault = "script"
)

// FaultOf returns the kind of a failed call, and "" for nil and for the end of the caller's context.
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
	case serverState(reply.Error()):
		return FaultState
	}
	return FaultScript
}

// states are the error codes by which Redis says that it, and not the call, is the reason.
const states = `LOADING|OOM|READONLY|MISCONF|CLUSTERDOWN|BUSY|UNKILLABLE|MASTERDOWN|TRYAGAIN|NOREPLICAS|NOREPLICA|MOVED|ASK|` +
	`NOSCRIPT|NOAUTH|WRONGPASS|NOPERM|DENIED|NOPROTO|EXECABORT|NOQUORUM`

var (
	stateCode = regexp.MustCompile(`^(` + states + `)( |$)`)
	// Redis 6.2 answers for a command within a script with ERR and quotes the code behind a minus sign.
	stateInScript = regexp.MustCompile(`^ERR .*script.*[ :]-(` + states + `) `)
	stateTexts    = []string{
		"ERR max number of clients", "ERR Script killed", "Script killed by user", "ERR unknown command", "ERR This instance has cluster support disabled",
		"The user executing the script can't", "ACL failure in script",
		"Script attempted to access a non local key", // of a slot that is being moved
	}
)

// serverState reports whether an error reply is about the state of the server, and not about the call or what is stored.
func serverState(reply string) bool {
	if stateCode.MatchString(reply) || stateInScript.MatchString(reply) {
		return true
	}
	for _, text := range stateTexts {
		if strings.Contains(reply, text) {
			return true
		}
	}
	return false
}

// unavailable wraps a failed call's error by its kind: ErrUnavailable, with ErrState where Redis answered, or ErrScript. The end of the
// caller's context stays what it is.
func unavailable(err error) error {
	if err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrScript) {
		return err
	}
	switch FaultOf(err) {
	case FaultTransport:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case FaultState:
		return fmt.Errorf("%w: %w", errUnavailableState, err)
	case FaultScript:
		return fmt.Errorf("%w: %w", ErrScript, err)
	}
	return err
}

// errUnavailableState is ErrUnavailable and ErrState with one text, that of the former.
var errUnavailableState error = stateError{}

type stateError struct{}

func (stateError) Error() string        { return ErrUnavailable.Error() }
func (stateError) Is(target error) bool { return target == ErrUnavailable || target == ErrState }
