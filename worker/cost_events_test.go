package worker

import (
	"strings"
	"testing"

	"github.com/7509e464/sluice/queue"
)

func TestEventCost(t *testing.T) {
	long := strings.Repeat("x", maxCostBody+10)
	for name, one := range map[string]struct {
		events  string
		pointer string
		want    int64 // 0: nothing
	}{
		"the last counts":        {"data: {\"usage\":{\"total\":1}}\n\ndata: {\"usage\":{\"total\":2}}\n\ndata: [DONE]\n\n", "/usage/total", 2},
		"one without is passed":  {"data: {\"usage\":{\"total\":7}}\n\ndata: {\"usage\":null}\n\ndata: {}\n\n", "/usage/total", 7},
		"CRLF":                   {"event: a\r\ndata: {\"total\":3}\r\n\r\n", "/total", 3},
		"no blank":               {"data:{\"total\":4}\n\n", "/total", 4},
		"two lines":              {"data: {\"usage\":\ndata: {\"total\": 5}}\n\n", "/usage/total", 5},
		"no end":                 {"data: {\"total\":6}", "/total", 6},
		"a comment":              {": data: {\"total\":6}\n\n", "/total", 0},
		"not JSON":               {"data: total\n\n", "/total", 0},
		"not a whole number":     {"data: {\"total\":1.5}\n\n", "/total", 0},
		"an index":               {"data: {\"a\":[1,8]}\n\n", "/a/1", 8},
		"an escaped name":        {"data: {\"a/b\":9}\n\n", "/a~1b", 9},
		"one too long is passed": {"data: {\"total\":2}\n\ndata: {\"x\":\"" + long + "\",\"total\":3}\n\ndata: {}\n\n", "/total", 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, 1 << 20} {
				if size == 1 && len(one.events) > 10_000 {
					continue
				}
				e := newEventCost(one.pointer)
				for rest := []byte(one.events); len(rest) > 0; {
					n := min(size, len(rest))
					e.Write(rest[:n])
					rest = rest[n:]
				}
				ignored := 0
				c := answerCosts{noPool, func(*queue.Lease, error) { ignored++ }}
				got := c.ofEvents(Route{Forward: &Forward{}}.withDefaults(), &queue.Lease{}, 200, e)
				if one.want == 0 && (got != nil || ignored != 1) || one.want > 0 && (got == nil || *got != one.want || ignored != 0) {
					t.Errorf("in pieces of %d bytes: %v, %d ignored, want %d", size, got, ignored, one.want)
				}
			}
		})
	}
}

// FuzzEventCost: what is found does not depend on the pieces in which events come.
func FuzzEventCost(f *testing.F) {
	f.Add("data: {\"total\":1}\n\n", 3)
	f.Add("data: {\"total\":\r\ndata:2}\r\n\r\ndata: [DONE]", 1)
	f.Fuzz(func(t *testing.T, events string, size int) {
		size = 1 + max(0, size)%64
		whole, pieces := newEventCost("/total"), newEventCost("/total")
		whole.Write([]byte(events))
		for rest := []byte(events); len(rest) > 0; {
			n := min(size, len(rest))
			pieces.Write(rest[:n])
			rest = rest[n:]
		}
		for _, e := range []*eventCost{whole, pieces} {
			e.take(e.line)
			e.event()
		}
		if whole.text != pieces.text || whole.found != pieces.found {
			t.Errorf("%q: %q as a whole, %q in pieces", events, whole.text, pieces.text)
		}
	})
}
