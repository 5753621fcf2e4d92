package lua_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
)

// scriptOf makes a script of a test.
func scriptOf(source string) *scripts.Script { return scripts.NewScript("test", source) }

// TestRunFallsBack: a server that does not know a script is sent its source, alone and in a
// pipeline, and knows it from then on.
func TestRunFallsBack(t *testing.T) {
	ctx := context.Background()
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			echo, fails, odd := scriptOf("return {ARGV[1]}"), scriptOf("return redis.call('GET')"),
				scriptOf("return 'no array'")
			call := func(s *scripts.Script, arg string) scripts.Call {
				return scripts.Call{Script: s, Keys: []string{"{x}"}, Args: []any{arg}}
			}
			var seen []string
			observe := func(script string, took time.Duration, _ error) {
				if took <= 0 {
					t.Errorf("%s took %v", script, took)
				}
				seen = append(seen, script)
			}
			for _, flushed := range []bool{true, false, true} {
				if flushed {
					if err := e.ScriptFlush(ctx).Err(); err != nil {
						t.Fatal(err)
					}
				}
				if values, err := scripts.Run(ctx, e, observe, call(echo, "one")); err != nil ||
					!slices.Equal(values, []any{"one"}) {
					t.Errorf("flushed %v: %v, %v", flushed, values, err)
				}
			}
			if len(seen) != 3 {
				t.Errorf("the observer was called %d times for 3 calls", len(seen))
			}

			for _, flushed := range []bool{true, false} {
				if flushed {
					if err := e.ScriptFlush(ctx).Err(); err != nil {
						t.Fatal(err)
					}
				}
				calls, want := []scripts.Call{}, []string{}
				for i := range 20 {
					text := fmt.Sprint(i)
					calls, want = append(calls, call(echo, text)), append(want, text)
				}
				calls[3], calls[7] = call(fails, "3"), call(odd, "7")
				seen = nil
				replies := scripts.RunAll(ctx, e, observe, calls)
				if len(seen) != len(calls) {
					t.Errorf("the observer was called %d times for %d calls", len(seen), len(calls))
				}
				for i, r := range replies {
					switch i {
					case 3:
						if r.Err == nil || !strings.Contains(r.Err.Error(), "script test") {
							t.Errorf("a script that fails: %v", r.Err)
						}
					case 7:
						if !errors.Is(r.Err, scripts.ErrReply) {
							t.Errorf("an answer that is no array: %v", r.Err)
						}
					default:
						if r.Err != nil || !slices.Equal(r.Values, []any{want[i]}) {
							t.Errorf("flushed %v, call %d: %v, %v", flushed, i, r.Values, r.Err)
						}
					}
				}
			}
			if replies := scripts.RunAll(ctx, e, nil, []scripts.Call{call(echo, "alone")}); len(replies) != 1 ||
				!slices.Equal(replies[0].Values, []any{"alone"}) {
				t.Errorf("a pipeline of one: %+v", replies)
			}
			if replies := scripts.RunAll(ctx, e, nil, nil); len(replies) != 0 {
				t.Errorf("a pipeline of none: %+v", replies)
			}
		})
	}
}

// TestRunSendsPools: where a script is linked without pools and needs them, the one with pools
// answers, and the observer sees no error. A script that has no other keeps its error.
func TestRunSendsPools(t *testing.T) {
	const needs = "error('POOLS are needed')"
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			without, alone := scriptOf(needs), scriptOf(needs+" -- alone")
			without.Pools = scriptOf("return {'pools', ARGV[1]}")
			calls := []scripts.Call{
				{Script: without, Keys: []string{"{x}"}, Args: []any{"1"}}, {Script: alone, Keys: []string{"{x}"}},
				{Script: without, Keys: []string{"{x}"}, Args: []any{"3"}},
			}
			failed := 0
			observe := func(_ string, _ time.Duration, err error) {
				if err != nil {
					failed++
				}
			}
			replies := scripts.RunAll(t.Context(), e, observe, calls)
			if values, err := scripts.Run(t.Context(), e, observe, calls[0]); err != nil || !slices.Equal(values, []any{"pools", "1"}) {
				t.Errorf("by itself: %v, %v", values, err)
			}
			if r := replies[2]; r.Err != nil || !slices.Equal(r.Values, []any{"pools", "3"}) {
				t.Errorf("in a pipeline: %+v", r)
			}
			if replies[1].Err == nil || failed != 1 {
				t.Errorf("a script for all shards: %v; the observer saw %d errors", replies[1].Err, failed)
			}
		})
	}
}

// TestRunReportsTheEnd: without the server every call has an error, and none is taken for an
// unknown script.
func TestRunReportsTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := embeddedEngine(t)
	echo := scriptOf("return {ARGV[1]}")
	call := scripts.Call{Script: echo, Keys: []string{"{x}"}, Args: []any{"one"}}
	if _, err := scripts.Run(ctx, e, nil, call); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	for i, r := range scripts.RunAll(ctx, e, nil, []scripts.Call{call, call}) {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("call %d: %v", i, r.Err)
		}
	}
}

// TestDecodeRefuses: a reply that breaks a script's contract is an error, never a panic or a guess.
func TestDecodeRefuses(t *testing.T) {
	one := int64(1)
	for name, decode := range map[string]func([]any) error{
		"admit": func(v []any) error {
			_, err := scripts.AdmitCall{Jobs: make([]scripts.AdmitJob, 1)}.Decode(v)
			return err
		},
		"tick": func(v []any) error { _, err := scripts.TickCall{}.Decode(v); return err },
		"settle": func(v []any) error {
			_, err := scripts.SettleCall{Items: make([]scripts.SettleItem, 2)}.Decode(v)
			return err
		},
		"extend": func(v []any) error {
			_, err := scripts.ExtendCall{Jobs: []string{"a", "b"}}.Decode(v)
			return err
		},
		"cancel":    func(v []any) error { _, err := scripts.CancelCall{}.Decode(v); return err },
		"erase":     func(v []any) error { _, err := scripts.EraseCall{}.Decode(v); return err },
		"replay":    func(v []any) error { _, _, err := scripts.ReplayCall{}.Decode(v); return err },
		"tune":      func(v []any) error { _, _, err := scripts.TuneCall{}.Decode(v); return err },
		"declare":   func(v []any) error { _, err := scripts.DeclareCall{}.Decode(v); return err },
		"repair":    func(v []any) error { _, err := scripts.RepairCall{}.Decode(v); return err },
		"status":    func(v []any) error { _, err := scripts.StatusCall{}.Decode(v); return err },
		"scan":      func(v []any) error { _, err := scripts.ScanCall{}.Decode(v); return err },
		"chain":     func(v []any) error { _, err := scripts.ChainCall{}.Decode(v); return err },
		"trail":     func(v []any) error { _, err := scripts.TrailCall{}.Decode(v); return err },
		"heartbeat": func(v []any) error { _, _, err := scripts.HeartbeatCall{}.Decode(v); return err },
	} {
		for _, values := range [][]any{
			nil, {"text"}, {one, []any{[]any{one}}},
			{one, []any{[]any{int64(9), one, one, one, one, one, one, one, one, "", ""}}}, {one, nil, "x"},
			{one, one, one, one, one, "id"},
		} {
			if err := decode(values); !errors.Is(err, scripts.ErrReply) && !(name == "heartbeat" && len(values) == 0) {
				t.Errorf("%s takes %v for an answer (%v)", name, values, err)
			}
		}
	}
	for _, codes := range []string{"", "1", "111", "16", "0a"} {
		if _, err := (scripts.SettleCall{Items: make([]scripts.SettleItem, 2)}).
			Decode([]any{one, codes}); !errors.Is(err, scripts.ErrReply) {
			t.Errorf("settle takes the codes %q for two jobs (%v)", codes, err)
		}
	}
}
