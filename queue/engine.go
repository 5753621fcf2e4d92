package queue

import (
	"context"
	"log/slog"
)

// EngineOptions say where Redis is.
type EngineOptions struct {
	URL         string // redis://, rediss://, unix://; empty: a private redis-server, or the embedded engine
	DataDir     string // of the private redis-server
	Embedded    bool   // in-process miniredis: jobs are lost on exit
	NoChild     bool   // refuse a private redis-server: the roles are split over processes
	AllowUnsafe bool   // accept a Redis that evicts or has no append-only file
	Logger      *slog.Logger
}

// EngineKind is where the data lives.
type EngineKind string

// The engines.
const (
	EngineRedis    EngineKind = "redis"    // a given Redis
	EnginePrivate  EngineKind = "private"  // a redis-server child of this process
	EngineEmbedded EngineKind = "embedded" // miniredis in this process
)

// Engine is a running Redis with the clients to reach it.
type Engine struct{}

// OpenEngine connects to, or starts, the engine that the options ask for. It fails with a message that says what to set when the
// Redis there cannot keep the promises (evicts, no append-only file, too old), or with ErrUnavailable when it does not answer.
func OpenEngine(ctx context.Context, o EngineOptions) (*Engine, error) { panic("stub") }

// Kind is where the data lives.
func (e *Engine) Kind() EngineKind { panic("stub") }

// String describes the engine for a person, without secrets, for example "redis at 127.0.0.1:6379/0 (7.0.15)".
func (e *Engine) String() string { panic("stub") }

// Close ends the connections and what this process started.
func (e *Engine) Close() error { panic("stub") }
