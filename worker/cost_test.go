package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func noPool() bool { return false }

// costText is an actual cost, or why there is none.
func costText(cost *int64, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case cost == nil:
		return "none"
	}
	return fmt.Sprint(*cost)
}

func TestActualCostOfAnAnswer(t *testing.T) {
	usage := func(before string) string { return `{` + before + `"usage":{"total_tokens":37}}` }
	const pointer = "/usage/total_tokens"
	for _, tt := range []struct {
		name         string
		status       int
		header, body string
		from         string
		want         string
	}{
		{"nothing", 200, "", "{}", "", "none"},
		{"header", 200, "120", "{}", "", "120"},
		{"header with blanks", 200, " 120 ", "{}", "", "120"},
		{"header of zero", 200, "0", "{}", "", "1"},
		{"greatest header", 200, "1000000", "{}", "", "1000000"},
		{"header beyond", 200, "1000001", "{}", "", errCostHeader.Error()},
		{"negative header", 200, "-1", "{}", "", errCostHeader.Error()},
		{"fraction in the header", 200, "1.5", "{}", "", errCostHeader.Error()},
		{"text in the header", 200, "many", "{}", "", errCostHeader.Error()},
		{"header of a refusal", 429, "0", "{}", "", "1"},
		{"pointer", 200, "", usage(""), pointer, "37"},
		{"pointer beside a header", 200, "5", usage(""), pointer, "37"},
		{"pointer beside a bad header", 200, "x", usage(""), pointer, "37"},
		{"pointer behind much", 200, "", usage(`"text":"` + strings.Repeat("x", 300_000) + `",`), pointer, "37"},
		{"pointer behind too much", 200, "", usage(`"text":"` + strings.Repeat("x", maxCostBody) + `",`), pointer, errCostBody.Error()},
		{"pointer into a list", 200, "", `[1,{"a":[7,8,9]}]`, "/1/a/2", "9"},
		{"beyond a list", 200, "", `[1,2]`, "/2", errCostMissing.Error()},
		{"index with a zero before", 200, "", `[1,2]`, "/01", errCostMissing.Error()},
		{"escaped names", 200, "", `{"a/b":{"~c":3}}`, "/a~1b/~0c", "3"},
		{"missing member", 200, "", `{"usage":{}}`, pointer, errCostMissing.Error()},
		{"a value in between", 200, "", `{"usage":7}`, pointer, errCostMissing.Error()},
		{"text at the pointer", 200, "", `{"usage":{"total_tokens":"37"}}`, pointer, errCostValue.Error()},
		{"fraction at the pointer", 200, "", `{"usage":{"total_tokens":3.7}}`, pointer, errCostValue.Error()},
		{"section at the pointer", 200, "", `{"usage":{"total_tokens":{}}}`, pointer, errCostValue.Error()},
		{"no JSON", 200, "", `<html>`, pointer, errCostBody.Error()},
		{"empty", 200, "", ``, pointer, errCostBody.Error()},
		{"broken off", 200, "", `{"usage":{"total_`, pointer, errCostBody.Error()},
		{"failure with usage", 500, "", usage(""), pointer, "37"},
		{"failure without", 500, "", `<html>`, pointer, "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var why error
			costs := answerCosts{noPool, func(_ *queue.Lease, err error) { why = err }}
			route := Route{CostFrom: tt.from}.withDefaults()
			resp := &http.Response{StatusCode: tt.status, Header: http.Header{}, Body: io.NopCloser(iotestReader(tt.body))}
			if tt.header != "" {
				resp.Header.Set(costHeader, tt.header)
			}
			cost := costs.of(route, &queue.Lease{}, resp)
			queuetest.Compare(t, "the cost", costText(cost, why), tt.want)
			kept, err := io.ReadAll(io.LimitReader(resp.Body, outbound.MaxBody+1))
			if err != nil || string(kept) != tt.body[:min(len(tt.body), outbound.MaxBody+1)] {
				t.Errorf("the body read afterwards has %d bytes of %d, and differs: %v", len(kept), len(tt.body), err)
			}
		})
	}
}

// iotestReader gives a body in small parts, as a network does.
func iotestReader(body string) io.Reader {
	parts := []io.Reader{}
	for ; len(body) > 7; body = body[7:] {
		if len(parts) > 2000 {
			break
		}
		parts = append(parts, strings.NewReader(body[:7]))
	}
	return io.MultiReader(append(parts, strings.NewReader(body))...)
}

func TestHTTPDeliveryReportsItsCost(t *testing.T) {
	for status, event := range map[int]shaper.Event{200: shaper.Succeed, 500: shaper.Retry, 400: shaper.Die, 429: shaper.Hold} {
		s := deliverTo(t, Route{CostFrom: "/used"}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"used":12,"answer":"fine"}`)
		})
		queuetest.Compare(t, fmt.Sprint("the settlement of ", status), fmt.Sprint(s.Event, " ", costText(s.ActualCost, nil)), fmt.Sprint(event, " 12"))
		if status == 200 {
			queuetest.Compare(t, "the body kept", string(s.Response.Body), `{"used":12,"answer":"fine"}`)
		}
	}
}

// TestCostCountsWhereTheRouteAsks: the header of an answer counts only where the route has it in
// cost_from, or where it delays nobody but its own flow. The route may join a pool at any time.
func TestCostCountsWhereTheRouteAsks(t *testing.T) {
	var header, body string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set(costHeader, header)
		}
		_, _ = io.WriteString(w, body)
	}))
	defer upstream.Close()
	for _, tt := range []struct {
		name               string
		forward, pooled    bool
		from, header, body string
		want               string // the cost, and how many were ignored
	}{
		{"a route of its own", false, false, "", "7", "{}", "7, 0 ignored"},
		{"in a pool", false, true, "", "7", "{}", "none, 1 ignored"},
		{"in a pool, for nothing", false, true, "", "0", "{}", "none, 1 ignored"},
		{"in a pool, without the header", false, true, "", "", "{}", "none, 0 ignored"},
		{"in a pool that asks", false, true, "header", "7", "{}", "7, 0 ignored"},
		{"a forward route", true, false, "", "7", "{}", "none, 1 ignored"},
		{"a forward route that asks", true, false, "header", "7", "{}", "7, 0 ignored"},
		{"a forward route in a pool that asks", true, true, "header", "7", "{}", "7, 0 ignored"},
		{"none", false, false, "none", "7", "{}", "none, 0 ignored"},
		{"none in a pool", false, true, "none", "7", "{}", "none, 0 ignored"},
		{"none of a forward route", true, false, "none", "7", "{}", "none, 0 ignored"},
		{"a pointer", false, false, "/used", "7", `{"used":12}`, "12, 0 ignored"},
		{"a pointer in a pool", false, true, "/used", "7", `{"used":12}`, "12, 0 ignored"},
		{"a pointer of a forward route", true, true, "/used", "7", `{"used":12}`, "12, 0 ignored"},
		{"a pointer to nothing", false, false, "/used", "7", `{}`, "none, 1 ignored"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			header, body = tt.header, tt.body
			route := Route{CostFrom: tt.from, URL: upstream.URL}
			if tt.forward {
				route.URL, route.Forward = "", &Forward{URL: upstream.URL}
			}
			q := newFakeQueue(1)
			w, err := newWorker(q, nil, nil, Config{
				Routes: map[string]Route{"default": route}, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer w.loads["default"].upstream.Load().Close()
			q.pooled.Store(tt.pooled) // by a changed file
			l := lease()
			l.Payload = httpmsg.Request{Method: "GET"}.Encode()
			s := w.deliverers["default"].Deliver(t.Context(), l)
			got := fmt.Sprintf("%s, %d ignored", costText(s.ActualCost, nil), w.loads["default"].costs.ignored.Load())
			queuetest.Compare(t, "the cost", got, tt.want)
		})
	}
}

// TestMinCost: an answer cannot make a delivery cheaper than min_cost.
func TestMinCost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		least  *int64
		header string
		want   string
	}{
		{"nothing", nil, "0", "1"},
		{"one", nil, "1", "1"},
		{"more", nil, "2", "2"},
		{"a lower bound of its own", new(int64(10)), "9", "10"},
		{"no lower bound", new(int64(0)), "0", "0"},
		{"no report", new(int64(10)), "", "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := deliverTo(t, Route{MinCost: tt.least}, func(w http.ResponseWriter, _ *http.Request) {
				if tt.header != "" {
					w.Header().Set(costHeader, tt.header)
				}
			})
			queuetest.Compare(t, "the cost", costText(s.ActualCost, nil), tt.want)
		})
	}
}

func TestUnusableCostIsCountedAndIgnored(t *testing.T) {
	var why []error
	costs := answerCosts{noPool, func(_ *queue.Lease, err error) { why = append(why, err) }}
	d := newHTTPDeliverer(Route{URL: "http://upstream.test"}.withDefaults(), costs)
	d.upstream.Load().Transport.RegisterProtocol("http", roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{costHeader: {"lots"}}, Body: http.NoBody}, nil
	}))
	s := d.Deliver(t.Context(), lease())
	if s.Event != shaper.Succeed || s.ActualCost != nil || len(why) != 1 || !errors.Is(why[0], errCostHeader) {
		t.Errorf("%v, cost %s, reported %v", s.Event, costText(s.ActualCost, nil), why)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestSetCost(t *testing.T) {
	serveCost := func(h asynq.HandlerFunc) queue.Settlement { return serve(t.Context(), Config{}, h) }
	s := serveCost(func(ctx context.Context, _ *asynq.Task) error {
		for _, n := range []int64{5, 40, -1, shaper.MaxCost + 1} {
			if err := SetCost(ctx, n); (err == nil) != (n == 5 || n == 40) {
				t.Errorf("SetCost(%d): %v", n, err)
			}
		}
		return nil
	})
	queuetest.Compare(t, "the last valid cost", fmt.Sprint(s.Event, " ", costText(s.ActualCost, nil)), "succeed 40")
	s = serveCost(func(ctx context.Context, _ *asynq.Task) error {
		_ = SetCost(ctx, 0)
		panic("after the call")
	})
	queuetest.Compare(t, "the cost of a failure", fmt.Sprint(s.Event, " ", costText(s.ActualCost, nil)), "retry 0")
	s = serveCost(func(context.Context, *asynq.Task) error { return nil })
	queuetest.Compare(t, "without a call", costText(s.ActualCost, nil), "none")
	if SetCost(t.Context(), 1) == nil {
		t.Error("a context of no delivery is accepted")
	}
}

func TestSetCostOfAHandlerLeftBehind(t *testing.T) {
	route := Route{Handler: true, Timeout: 5 * time.Millisecond}.withDefaults()
	cfg := Config{}.withDefaults()
	leave := make(chan struct{})
	cfg.Handler = asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		_ = SetCost(ctx, 9)
		<-leave
		return nil
	})
	s := newHandlerDeliverer(route, cfg, cfg.Logger, nil).Deliver(t.Context(), &handlerLease)
	close(leave)
	queuetest.Compare(t, "the settlement", fmt.Sprint(s.Event, " ", costText(s.ActualCost, nil)), "retry 9")
}

func TestCostsAreCountedByRoute(t *testing.T) {
	var c costCounts
	c.settled(10, queue.Settlement{})
	c.settled(10, queue.Settlement{ActualCost: new(int64(0))})
	c.settled(10, queue.Settlement{ActualCost: new(int64(25))})
	queuetest.Compare(t, "estimated and actual", []int64{c.estimated.Load(), c.actual.Load()}, []int64{20, 25})
}
