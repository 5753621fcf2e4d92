package audit

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/user"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// Command is the actor of commands that open the store themselves.
const Command = "command"

// Once chains one entry of a command that opens the store itself, with the user and the host in its
// detail. It removes no entries: the command may not know the settings of the audit. Its error says
// that the entry is not in the chain.
func Once(ctx context.Context, s *store.Store, e Entry, detail map[string]any) error {
	l, err := New(s, Options{MaxBytes: math.MaxInt64, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	l.trimmed = time.Now()
	if detail == nil {
		detail = map[string]any{}
	}
	if u, err := user.Current(); err == nil {
		detail["user"] = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		detail["host"] = host
	}
	e.Actor, e.Detail = Command, detail
	l.Record(ctx, e)
	within, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	l.Close(within)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		return fmt.Errorf("audit: %s is not recorded: redis did not take the entry", e.Action)
	}
	return nil
}
