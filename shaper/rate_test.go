package shaper_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

func TestParseRate(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		text   string
		want   shaper.Rate
		prints string
	}{
		{"10/s", shaper.Rate{Limit: 10, Period: time.Second}, "10/s"},
		{"10/1s", shaper.Rate{Limit: 10, Period: time.Second}, "10/s"},
		{"1/m", shaper.Rate{Limit: 1, Period: time.Minute}, "1/m"},
		{"5/24h", shaper.Rate{Limit: 5, Period: day}, "5/d"},
		{"5/d", shaper.Rate{Limit: 5, Period: day}, "5/d"},
		{"7/3s", shaper.Rate{Limit: 7, Period: 3 * time.Second}, "7/3s"},
		{"60/1000ms", shaper.Rate{Limit: 60, Period: time.Second}, "60/s"},
		{"3/90s", shaper.Rate{Limit: 3, Period: 90 * time.Second}, "3/90s"},
		{"3/36h", shaper.Rate{Limit: 3, Period: 36 * time.Hour}, "3/36h"},
		{"1000000/s", shaper.Rate{Limit: 1_000_000, Period: time.Second}, "1000000/s"},
		{"1000/ms", shaper.Rate{Limit: 1000, Period: time.Millisecond}, "1000/ms"},
		{"1/366d", shaper.Rate{Limit: 1, Period: 366 * day}, "1/366d"},
		{"1/31622400000ms", shaper.Rate{Limit: 1, Period: 366 * day}, "1/366d"},
		{"31622400000000/366d", shaper.Rate{Limit: 31_622_400_000_000, Period: 366 * day}, "31622400000000/366d"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := shaper.ParseRate(tt.text)
			if err != nil || got != tt.want {
				t.Fatalf("ParseRate(%q) = %+v, %v; want %+v", tt.text, got, err, tt.want)
			}
			if got.String() != tt.prints {
				t.Errorf("prints %q, want %q", got, tt.prints)
			}
		})
	}
}

func TestParseRateRefuses(t *testing.T) {
	const (
		form   = "LIMIT/PERIOD"
		limit  = "limit"
		period = "period"
		unit   = "unit"
		tooFar = "1ms to 366d"
		fast   = "1000000 departures a second"
	)
	for _, tt := range []struct{ text, rule string }{
		{"", form}, {"10", form}, {"s", form}, {"10 per second", form},
		{"/", limit}, {"/s", limit}, {"0/s", limit}, {"-1/s", limit}, {"+1/s", limit}, {"1.5/s", limit},
		{"1e3/s", limit},
		{"01/s", limit}, {"0x10/s", limit}, {"1_000/s", limit}, {" 10/s", limit}, {"10 /s", limit}, {"١٠/s", limit},
		{"１０/s", limit}, {"∞/s", limit}, {"9223372036854775808/s", limit}, {strings.Repeat("9", 400) + "/s", limit},
		{"10/0s", period}, {"10/01s", period}, {"10/-1s", period}, {"10/1.5s", period}, {"10/ s", period},
		{"10/s ", period},
		{"10/5", unit}, {"10/3s5", period}, {"10/1h30m", period}, {"10/s/s", period}, {"10//s", period},
		{"10/3µs", period},
		{"10/", unit}, {"10/y", period}, {"10/us", period}, {"10/S", period}, {"10/sm", unit},
		{"10/dd", unit}, {"10/3hm", unit},
		{"10/" + strings.Repeat("9", 400) + "s", period}, {"10/9223372036854775807s", period},
		{"10/367d", tooFar}, {"1/8785h", tooFar}, {"1/31622400001ms", tooFar}, {"1/31622400000s", tooFar},
		{"1000001/s", fast}, {"1001/ms", fast}, {"9223372036854775807/366d", fast}, {"31622400000001/366d", fast},
	} {
		t.Run(tt.text[:min(len(tt.text), 30)], func(t *testing.T) {
			got, err := shaper.ParseRate(tt.text)
			if !errors.Is(err, shaper.ErrRate) {
				t.Fatalf("ParseRate(%q) = %v, %v; want ErrRate", tt.text, got, err)
			}
			if !strings.Contains(err.Error(), tt.rule) {
				t.Errorf("the error %q does not name the rule: %q", err, tt.rule)
			}
		})
	}
}

func TestRateValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		rate shaper.Rate
		ok   bool
	}{
		{"zero value", shaper.Rate{}, false},
		{"least period", shaper.Rate{Limit: 1, Period: time.Millisecond}, true},
		{"below the least period", shaper.Rate{Limit: 1, Period: time.Millisecond - 1}, false},
		{"greatest period", shaper.Rate{Limit: 1, Period: shaper.MaxPeriod}, true},
		{"above the greatest period", shaper.Rate{Limit: 1, Period: shaper.MaxPeriod + time.Millisecond}, false},
		{"part of a millisecond", shaper.Rate{Limit: 1, Period: 1500 * time.Microsecond}, false},
		{"negative period", shaper.Rate{Limit: 1, Period: -time.Second}, false},
		{"no limit", shaper.Rate{Limit: 0, Period: time.Second}, false},
		{"negative limit", shaper.Rate{Limit: -1, Period: time.Second}, false},
		{"fastest", shaper.Rate{Limit: 3_000_000, Period: 3 * time.Second}, true},
		{"faster than the fastest", shaper.Rate{Limit: 3_000_001, Period: 3 * time.Second}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.rate.Validate(); (err == nil) != tt.ok || (err != nil && !errors.Is(err, shaper.ErrRate)) {
				t.Errorf("Validate(%+v) = %v", tt.rate, err)
			}
		})
	}
}

func TestRateForDisplay(t *testing.T) {
	if got := rate("7/3s").Interval(); got != 428571428*time.Nanosecond {
		t.Errorf("Interval = %v", got)
	}
	if got := rate("5/24h").PerSecond(); got != 5.0/86400 {
		t.Errorf("PerSecond = %v", got)
	}
	if got := (shaper.Rate{}).Interval(); got != 0 {
		t.Errorf("Interval of the zero value = %v", got)
	}
}

func TestRateJSON(t *testing.T) {
	text, err := json.Marshal(rate("200/s"))
	if want := `{"limit":200,"period_ms":1000}`; err != nil || string(text) != want {
		t.Errorf("Marshal = %s, %v; want %s", text, err, want)
	}
	before := rate("7/3s")
	for _, text := range []string{
		`{}`, `null`, `200`, `"10/s"`, `[200,1000]`, `{"limit":200}`, `{"period_ms":1000}`,
		`{"limit":0,"period_ms":1000}`,
		`{"limit":-1,"period_ms":1000}`, `{"limit":1.5,"period_ms":1000}`, `{"limit":"1","period_ms":1000}`,
		`{"limit":1,"period_ms":0}`, `{"limit":1,"period_ms":-1}`, `{"limit":1,"period_ms":31622400001}`,
		`{"limit":1,"period_ms":9223372036854775807}`, `{"limit":9223372036854775807,"period_ms":1}`,
		`{"limit":1,"period_ms":9223372036854775808}`, `{"limit":1001,"period_ms":1}`,
		`{"limit":1,"period_ms":1000,"burst":1}`, `{"limit":1,"period":"1s"}`, `{"limit":1,"period_ms":1e3}`,
	} {
		got := before
		if err := json.Unmarshal([]byte(text), &got); err == nil || got != before {
			t.Errorf("Unmarshal(%s) = %v, %v; want an error and no change", text, got, err)
		}
	}
}

func TestRateRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rates().Draw(t, "rate")
		if got, err := shaper.ParseRate(want.String()); err != nil || got != want {
			t.Fatalf("%+v prints %q, which parses to %+v, %v", want, want, got, err)
		}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got shaper.Rate
		if err := json.Unmarshal(text, &got); err != nil || got != want {
			t.Fatalf("%+v is %s, which is %+v, %v", want, text, got, err)
		}
		if text, err = want.MarshalText(); err != nil {
			t.Fatal(err)
		}
		got = shaper.Rate{}
		if err := got.UnmarshalText(text); err != nil || got != want {
			t.Fatalf("%+v is %s, which is %+v, %v", want, text, got, err)
		}
	})
}

// FuzzParseRate: nothing makes it panic, and what parses is legal and prints to something that
// parses to the same.
func FuzzParseRate(f *testing.F) {
	for _, seed := range append(extremes, "", "/", "10", "10/", "0/s", "01/s", "1.5/s", "10/0s", "10/367d",
		"1001/ms", "１/s", "9e9/ms") {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := shaper.ParseRate(text)
		if err != nil {
			if !errors.Is(err, shaper.ErrRate) {
				t.Fatalf("ParseRate(%q): %v does not wrap ErrRate", text, err)
			}
			return
		}
		if err := r.Validate(); err != nil {
			t.Fatalf("ParseRate(%q) = %+v, which is not legal: %v", text, r, err)
		}
		if again, err := shaper.ParseRate(r.String()); err != nil || again != r {
			t.Fatalf("ParseRate(%q) = %+v prints %q, which parses to %+v, %v", text, r, r, again, err)
		}
	})
}
