package shaper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of a Rate.
const (
	MinPeriod    = time.Millisecond
	MaxPeriod    = 366 * 24 * time.Hour
	MaxPerSecond = 1_000_000
)

// Rate is a number of departures per period, for example {200, time.Second} for 200/s. The zero
// value is not legal.
type Rate struct {
	Limit  int64         // departures per period, at least 1
	Period time.Duration // whole milliseconds, MinPeriod to MaxPeriod
}

// ErrRate is wrapped by every error about a rate that cannot be read or is out of bounds.
var ErrRate = errors.New("not a rate")

// periodUnits are the units a rate may be written in, largest first. Day is not a unit of
// time.ParseDuration.
var periodUnits = []struct {
	name string
	unit time.Duration
}{
	{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond},
}

// ParseRate reads "LIMIT/PERIOD": a whole number, a slash, an optional whole number and one of ms,
// s, m, h, d; for example "10/s", "1/m", "5/24h". The error wraps ErrRate and names the rule and
// the rate that may be meant.
func ParseRate(text string) (Rate, error) {
	r, err := parseRate(text)
	if err == nil {
		return r, nil
	}
	if like, ok := RateLike(text); ok {
		err = fmt.Errorf("%w; is %s meant?", err, like)
	}
	return r, err
}

func parseRate(text string) (Rate, error) {
	limitText, periodText, found := strings.Cut(text, "/")
	if !found {
		return Rate{}, fmt.Errorf("%w: want LIMIT/PERIOD, such as 10/s or 5/24h", ErrRate)
	}
	limit, err := parseWhole(limitText)
	if err != nil {
		return Rate{}, fmt.Errorf("%w: the limit before the slash must be a whole number of at least 1", ErrRate)
	}
	digits := strings.TrimRight(periodText, "dhms")
	count := int64(1)
	if digits != "" {
		if count, err = parseWhole(digits); err != nil {
			return Rate{}, fmt.Errorf("%w: the period must be a unit (ms, s, m, h, d) with an optional "+
				"whole number before it", ErrRate)
		}
	}
	for _, u := range periodUnits {
		if periodText[len(digits):] != u.name {
			continue
		}
		if count > int64(MaxPeriod/u.unit) {
			return Rate{}, fmt.Errorf("%w: the period must be from 1ms to 366d", ErrRate)
		}
		r := Rate{Limit: limit, Period: time.Duration(count) * u.unit}
		return r, r.Validate()
	}
	return Rate{}, fmt.Errorf("%w: the unit of the period must be one of ms, s, m, h, d", ErrRate)
}

// looseRate matches a rate with a fraction, with a unit in full or without a period.
var looseRate = regexp.MustCompile(
	`^(\d{1,9})(?:\.(\d{1,6}))? *(?:jobs|requests|req|r)? *(?:(?:/|per|every|an|a) *(\d{0,9}) *([a-z]+))?$`)

// RateLike returns the rate that a person means by text that is no rate, such as 0.5/s, 10 per
// minute or 10.
func RateLike(text string) (r Rate, ok bool) {
	text = strings.NewReplacer("rps", "/s", "qps", "/s", "rpm", "/m").Replace(strings.ToLower(text))
	found := looseRate.FindStringSubmatch(strings.TrimSpace(text))
	if found == nil {
		return r, false
	}
	periods, unit := int64(1), "s"
	if found[4] != "" {
		unit = UnitLike(found[4])
	}
	if found[3] != "" {
		periods, _ = strconv.ParseInt(found[3], 10, 64)
	}
	limit, _ := strconv.ParseInt(found[1]+found[2], 10, 64)
	for range found[2] {
		periods *= 10
	}
	for _, u := range periodUnits {
		if u.name != unit || limit < 1 || periods < 1 {
			continue
		}
		common := new(big.Int).GCD(nil, nil, big.NewInt(limit), big.NewInt(periods)).Int64()
		if found[2] == "" {
			common = 1
		}
		if periods /= common; periods <= int64(MaxPeriod/u.unit) {
			r = Rate{Limit: limit / common, Period: time.Duration(periods) * u.unit}
			return r, r.Validate() == nil
		}
	}
	return r, false
}

// UnitLike returns the unit of a period, or of a duration, that the word means; empty if it means
// none.
func UnitLike(word string) string {
	for _, u := range []struct{ unit, words string }{
		{"ms", "ms msec msecs millisecond milliseconds"}, {"s", "s sec secs second seconds"},
		{"m", "m min mins minute minutes"}, {"h", "h hr hrs hour hours"}, {"d", "d day days"},
	} {
		if slices.Contains(strings.Fields(u.words), word) {
			return u.unit
		}
	}
	return ""
}

// parseWhole reads a whole number of at least 1 written with digits alone: no sign, no leading
// zero.
func parseWhole(text string) (int64, error) {
	if text == "" || text[0] < '1' || text[0] > '9' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(text, 10, 64)
}

// Validate reports whether the rate is within bounds: limit ≥ 1, 1 ms ≤ period ≤ 366 d in whole
// milliseconds, at most 1,000,000 a second. The error wraps ErrRate.
func (r Rate) Validate() error {
	switch {
	case r.Limit < 1:
		return fmt.Errorf("%w: the limit must be at least 1", ErrRate)
	case r.Period < MinPeriod || r.Period > MaxPeriod:
		return fmt.Errorf("%w: the period must be from 1ms to 366d", ErrRate)
	case r.Period%time.Millisecond != 0:
		return fmt.Errorf("%w: the period must be in whole milliseconds", ErrRate)
	case r.Limit > r.Period.Microseconds():
		return fmt.Errorf("%w: at most %d departures a second", ErrRate, MaxPerSecond)
	}
	return nil
}

// PerSecond returns the departures per second, for display.
func (r Rate) PerSecond() float64 { return float64(r.Limit) / r.Period.Seconds() }

// Interval returns the emission interval T = period / limit, rounded down to a nanosecond, for
// display and waiting. Pacing itself never rounds it.
func (r Rate) Interval() time.Duration { return r.Period / time.Duration(max(r.Limit, 1)) }

// String writes the rate with the largest unit that divides its period, for example "10/s", "5/d",
// "7/3s".
func (r Rate) String() string {
	for _, u := range periodUnits {
		if r.Period < u.unit || r.Period%u.unit != 0 {
			continue
		}
		if n := int64(r.Period / u.unit); n > 1 {
			return fmt.Sprintf("%d/%d%s", r.Limit, n, u.name)
		}
		return fmt.Sprintf("%d/%s", r.Limit, u.name)
	}
	return fmt.Sprintf("%d/%v", r.Limit, r.Period)
}

// MarshalText writes the form that ParseRate reads.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the form of ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	got, err := ParseRate(string(text))
	if err == nil {
		*r = got
	}
	return err
}

// rateJSON is the form of a rate in the HTTP API.
type rateJSON struct {
	Limit    int64 `json:"limit"`
	PeriodMS int64 `json:"period_ms"`
}

// MarshalJSON writes {"limit":200,"period_ms":1000}.
func (r Rate) MarshalJSON() ([]byte, error) {
	return json.Marshal(rateJSON{r.Limit, r.Period.Milliseconds()})
}

// UnmarshalJSON reads what MarshalJSON writes and refuses unknown fields and rates out of bounds.
func (r *Rate) UnmarshalJSON(data []byte) error {
	var v rateJSON
	if err := strictJSON(data, &v); err != nil {
		return err
	}
	got, err := RateOf(v.Limit, v.PeriodMS)
	if err != nil {
		return err
	}
	*r = got
	return nil
}

// RateOf returns the rate of limit departures in periodMS milliseconds, checked as by Validate.
func RateOf(limit, periodMS int64) (Rate, error) {
	if periodMS > MaxPeriod.Milliseconds() || periodMS < 1 {
		return Rate{}, fmt.Errorf("%w: the period must be from 1ms to 366d", ErrRate)
	}
	r := Rate{Limit: limit, Period: time.Duration(periodMS) * time.Millisecond}
	return r, r.Validate()
}

func strictJSON(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
