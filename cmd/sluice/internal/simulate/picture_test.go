package simulate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

var (
	twenty = shaper.Rate{Limit: 20, Period: time.Second}
	goals  = simulate.Goals{MaxRefused: 0.001, WaitP99: 10 * time.Second, Burst: 1}
)

func sale(t *testing.T) simulate.Trace {
	t.Helper()
	trace, err := simulate.Generator{
		Shape: simulate.FlashSale, Rate: shaper.Rate{Limit: 5, Period: time.Second},
		Peak: shaper.Rate{Limit: 200, Period: time.Second}, For: time.Minute, Seed: 1,
	}.Trace()
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// runs is the sale through everything, the shaper last.
func runs(t *testing.T, trace simulate.Trace) []*simulate.Run {
	t.Helper()
	var all []*simulate.Run
	for _, a := range limiter.Algorithms() {
		r, err := simulate.Limiter(trace, limiter.Policy{Algorithm: a, Rate: twenty})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	r, err := simulate.Shaper(trace, shaper.Policy{Rate: twenty, Burst: 1, Capacity: 500}, simulate.Workers{})
	if err != nil {
		t.Fatal(err)
	}
	return append(all, r)
}

// TestPictures: every picture is well-formed SVG, and says in words what it shows.
func TestPictures(t *testing.T) {
	trace := sale(t)
	all := runs(t, trace)
	advice, err := simulate.Recommend(trace, goals, nil)
	if err != nil {
		t.Fatal(err)
	}
	one := func(r *simulate.Run) func(io.Writer) error {
		return func(w io.Writer) error { return drawRun(w, r) }
	}
	single, err := simulate.Shaper(trace[:1], shaper.Policy{Rate: twenty, Burst: 1, Capacity: 500},
		simulate.Workers{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		draw func(io.Writer) error
		says []string
	}{
		{"shaper", one(all[5]), []string{
			"Arrivals:", "refused", "Departures: shaper at 20/s", "Depth: at most 500, capacity 500",
			"capacity", "seconds",
		}},
		{"limiter", one(all[0]), []string{"Arrivals:", "refused", "Departures: fixed-window at 20/s"}},
		{"a single arrival", one(single), []string{"Arrivals: 1, 0 refused"}},
		{"comparison", func(w io.Writer) error { return drawComparison(w, all) },
			[]string{
				"fixed-window at 20/s", "sliding-log", "sliding-counter", "token-bucket", "leaky-meter",
				"shaper", "refusals", "seconds",
			}},
		{"trade-off", func(w io.Writer) error { return drawTradeOff(w, advice, goals) },
			[]string{
				"Smallest capacity that refuses at most 0.1 %", "recommended: " + advice.Rate.String(),
				"goal", "departures per s",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var svg, again bytes.Buffer
			if err := errors.Join(c.draw(&svg), c.draw(&again)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(svg.Bytes(), again.Bytes()) {
				t.Error("the same run makes different pictures")
			}
			words := textOf(t, svg.Bytes())
			for _, want := range c.says {
				if !strings.Contains(words, want) {
					t.Errorf("%q is nowhere in the picture, which says:\n%s", want, words)
				}
			}
		})
	}
}

// textOf is all text of an SVG file, which must be well-formed.
func textOf(t *testing.T, file []byte) string {
	t.Helper()
	var words strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(file)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return words.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, is := token.(xml.CharData); is {
			words.Write(text)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	var w bytes.Buffer
	if drawRun(&w, nil) == nil || drawComparison(&w, nil) == nil ||
		drawTradeOff(&w, simulate.Recommendation{}, goals) == nil {
		t.Error("drew nothing without an error")
	}
}
