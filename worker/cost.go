package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	// costHeader is the header of an answer that reports what the delivery actually cost.
	costHeader = "Sluice-Cost"
	// maxCostBody bounds the part of an answer that is searched for the actual cost, in bytes.
	maxCostBody = 1 << 20
)

// Values of Route.CostFrom beside JSON pointers.
const (
	costNone       = "none"
	costFromHeader = "header"
)

// Why an actual cost is ignored. The estimate stays charged then.
var (
	errCostUnasked = errors.New("the header Sluice-Cost counts on this route only with cost_from: header")
	errCostHeader  = errors.New("the header Sluice-Cost is not a whole number from 0 to 1000000")
	errCostValue   = errors.New("the value at cost_from is not a whole number from 0 to 1000000")
	errCostMissing = errors.New("the answer has nothing at cost_from")
	errCostBody    = errors.New("the answer is not JSON, or cost_from is beyond its first MiB")
)

// costCounts are the costs of a route's deliveries. Many goroutines use it at once.
type costCounts struct {
	estimated, actual atomic.Int64 // of deliveries whose actual cost is known
	ignored           atomic.Int64 // actual costs that could not be used
	cut               atomic.Int64 // actual costs above the max_cost of the route's pool
}

// settled counts a delivery whose lease has ended.
func (c *costCounts) settled(estimate int64, s queue.Settlement) {
	if s.ActualCost != nil {
		c.estimated.Add(estimate)
		c.actual.Add(*s.ActualCost)
	}
}

// SetCost reports the actual cost of the delivery that a Go handler serves: a whole number from 0
// to shaper.MaxCost. It replaces the cost that the job was submitted with, also if the attempt
// fails. The last call before the handler ends counts. An error means that n is out of bounds, or
// that ctx is not the context of a handler; then nothing changes.
func SetCost(ctx context.Context, n int64) error {
	d, ok := ctx.Value(deliveryKey{}).(*delivery)
	switch {
	case !ok:
		return errors.New("worker: SetCost needs the context that a handler was called with")
	case n < 0 || n > shaper.MaxCost:
		return fmt.Errorf("worker: cost %d, want 0 to %d", n, shaper.MaxCost)
	}
	d.cost.Store(&n)
	return nil
}

// answerCosts reads the actual costs that the answers to a route's requests report.
type answerCosts struct {
	pooled  func() bool                     // the route is in a pool, by the file in force
	ignored func(l *queue.Lease, why error) // called when an actual cost is ignored
}

// of returns the actual cost that an answer reports, nil for none. It reads as much of the body as
// it needs, and replaces the body by one that is complete up to outbound.MaxBody bytes.
func (c answerCosts) of(r Route, l *queue.Lease, resp *http.Response) *int64 {
	n, err := c.reported(r, resp)
	if err != nil {
		c.ignored(l, err)
	}
	switch asked := r.CostFrom == costFromHeader || strings.HasPrefix(r.CostFrom, "/"); {
	case n != nil && err == nil:
		return new(max(*n, *r.MinCost))
	case asked && resp.StatusCode < 300 && r.CostMissing != nil:
		return new(*r.CostMissing)
	}
	return nil
}

func (c answerCosts) reported(r Route, resp *http.Response) (*int64, error) {
	switch header := resp.Header.Get(costHeader); {
	case strings.HasPrefix(r.CostFrom, "/"):
		return r.costInBody(resp)
	case r.CostFrom == costNone || header == "":
		return nil, nil
	case r.CostFrom == "" && (r.Forward != nil || c.pooled()):
		return nil, errCostUnasked // others would pay, or get nothing, for what one client's answer says
	default:
		return parseCost(header, errCostHeader)
	}
}

// costInBody returns the actual cost to which CostFrom points in an answer, nil for none.
func (r Route) costInBody(resp *http.Response) (*int64, error) {
	start := &head{most: outbound.MaxBody + 1}
	text, err := valueAt(io.TeeReader(resp.Body, start), jsontext.Pointer(r.CostFrom))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(start, resp.Body), resp.Body}
	if err == nil {
		return parseCost(text, errCostValue)
	}
	if resp.StatusCode >= 300 {
		err = nil // answers to failed requests rarely report usage
	}
	return nil, err
}

// parseCost reads an actual cost. broken is the error for anything else.
func parseCost(text string, broken error) (*int64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil || n > shaper.MaxCost {
		return nil, broken
	}
	return new(int64(n)), nil
}

// valueAt returns the JSON value that the pointer (RFC 6901) refers to in a document. It reads no
// further than that value, and at most maxCostBody bytes.
func valueAt(document io.Reader, pointer jsontext.Pointer) (string, error) {
	d := jsontext.NewDecoder(io.LimitReader(document, maxCostBody),
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for step := range pointer.Tokens() {
		if err := enter(d, step); err != nil {
			return "", err
		}
	}
	value, err := d.ReadValue()
	if err != nil {
		return "", errCostBody
	}
	return string(value), nil
}

// enter moves the decoder to the member of the next value that has this name or index.
func enter(d *jsontext.Decoder, step string) error {
	open, err := d.ReadToken()
	if err != nil {
		return errCostBody
	}
	index := -1
	switch open.Kind() {
	case '[':
		if index, err = strconv.Atoi(step); err != nil || index < 0 || strconv.Itoa(index) != step {
			return errCostMissing
		}
	case '{':
	default:
		return errCostMissing
	}
	for i := 0; ; i++ {
		switch d.PeekKind() {
		case '}', ']':
			return errCostMissing
		}
		found := i == index
		if index < 0 {
			name, err := d.ReadToken()
			if err != nil {
				return errCostBody
			}
			found = name.String() == step
		}
		if found {
			return nil
		}
		if d.SkipValue() != nil {
			return errCostBody
		}
	}
}

// head keeps the first most bytes that are written to it.
type head struct {
	bytes.Buffer
	most int
}

func (h *head) Write(p []byte) (int, error) {
	h.Buffer.Write(p[:min(len(p), h.most-h.Len())])
	return len(p), nil
}
