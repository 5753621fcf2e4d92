package cli

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
)

// NewLogger returns a logger that writes readable lines if w is a terminal, in colours unless
// NO_COLOR is set, and otherwise one JSON object a line. level is a value of the setting log.level.
// Lines that the standard library logs go to the same logger at level debug.
func NewLogger(w io.Writer, level string) *slog.Logger {
	logger := slog.New(newHandler(w, level))
	log.SetFlags(0) // a line has its time already
	log.SetOutput(overheard{logger})
	return logger
}

func newHandler(w io.Writer, level string) slog.Handler {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		least = slog.LevelInfo
	}
	if Terminal(w) {
		return tint.NewTextHandler(Raw(w), &tint.Options{Level: least, TimeFormat: time.TimeOnly,
			NoColor: os.Getenv("NO_COLOR") != ""})
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: least, ReplaceAttr: inUnits})
}

// inUnits writes a duration with its unit, as 1.5s; the handler would write nanoseconds.
func inUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// overheard receives the lines of package log. net/http logs unsolicited responses of an upstream
// there and quotes them; overheard cuts the quote, which may be a payload.
type overheard struct{ to *slog.Logger }

func (o overheard) Write(line []byte) (int, error) {
	text, _, _ := bytes.Cut(line, []byte("starting with"))
	o.to.Debug("line of the standard library", "text", string(bytes.TrimSpace(text)))
	return len(line), nil
}
