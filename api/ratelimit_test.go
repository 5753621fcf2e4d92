package api

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// field reads a rate limit field as a client does, and checks the rules of the draft that all of
// them share: a list of structured strings, each once, whose parameters are whole numbers that are
// not negative, the required one among them.
func field(t *rapid.T, h http.Header, name, required string) map[string]map[string]int64 {
	list, err := httpsfv.UnmarshalList(h[http.CanonicalHeaderKey(name)])
	if err != nil || len(list) == 0 {
		t.Fatalf("%s: %q: %v", name, h.Get(name), err)
	}
	items := map[string]map[string]int64{}
	for _, member := range list {
		item, isItem := member.(httpsfv.Item)
		quota, isString := item.Value.(string)
		if !isItem || !isString || items[quota] != nil {
			t.Fatalf("%s: %q has %v", name, h.Get(name), member)
		}
		params := map[string]int64{}
		for _, param := range item.Params.Names() {
			value, _ := item.Params.Get(param)
			n, isWhole := value.(int64)
			if !isWhole || n < 0 {
				t.Fatalf("%s: %q: %s is %v", name, h.Get(name), param, value)
			}
			params[param] = n
		}
		if _, has := params[required]; !has {
			t.Fatalf("%s: %q has no %s", name, h.Get(name), required)
		}
		items[quota] = params
	}
	return items
}

func anyRate(t *rapid.T) shaper.Rate {
	period := time.Duration(rapid.Int64Range(1, shaper.MaxPeriod.Milliseconds()).Draw(t,
		"period")) * time.Millisecond
	return shaper.Rate{Limit: rapid.Int64Range(1, period.Microseconds()).Draw(t, "limit"), Period: period}
}

// TestRefusalHeadersAgree: in every refusal the fields of the draft can be parsed and agree with
// the legacy ones and the body. Retry-After is never earlier than t, nor than the exact time.
func TestRefusalHeadersAgree(t *testing.T) {
	s := newBench(t).s
	rapid.Check(t, func(t *rapid.T) {
		duration := rapid.OneOf(rapid.Just(time.Duration(0)),
			rapid.Map(rapid.Int64Range(1, int64(24*time.Hour)), func(n int64) time.Duration {
				return time.Duration(n)
			}))
		var p *problem.Problem
		var rate shaper.Rate
		var exact time.Duration
		switch rapid.SampledFrom([]string{"full", "reads"}).Draw(t, "refusal") {
		case "full":
			a := shaper.Admission{
				Outcome: shaper.Full, Capacity: rapid.Int64Range(0, 1e9).Draw(t, "capacity"), Rate: anyRate(t),
				RetryAfter: duration.Draw(t, "retry after"), NextSlot: duration.Draw(t, "next slot"),
			}
			a.Depth = max(0, a.Capacity+rapid.Int64Range(-3, 3).Draw(t, "over"))
			a.Remaining = max(0, a.Capacity-a.Depth)
			a.Asked = rapid.Int64Range(1, 5).Draw(t, "size")
			a.Never = a.Asked > a.Capacity
			p = s.refusal(a, "flow", "default", "").(*problem.Problem)
			rate, exact = a.Rate, a.RetryAfter
		case "reads":
			s.reads = budget.NewReads(anyRate(t))
			s.reads.Burst = 1
			s.reads.Take("a", time.Now())
			err := s.reading(&call{who: auth.Principal{Tenant: "a"}}, 1)
			if err == nil {
				return // the rate is so high that capacity has freed meanwhile
			}
			p, rate = err.(*problem.Problem), s.reads.Shown
		}
		h := p.Header
		policy, left := field(t, h, "RateLimit-Policy", "q"), field(t, h, "RateLimit", "r")
		after, given := int64(0), h.Get("Retry-After") != ""
		if given {
			var err error
			if after, err = strconv.ParseInt(h.Get("Retry-After"), 10, 64); err != nil || after < 1 {
				t.Fatalf("Retry-After %q", h.Get("Retry-After"))
			}
		}
		for name, params := range left {
			quota, known := policy[name]
			if !known || params["r"] > quota["q"] {
				t.Errorf("%q without its policy: %q", h.Get("RateLimit"), h.Get("RateLimit-Policy"))
			}
			if at, has := params["t"]; has && (at < 1 || given && after < at) {
				t.Errorf("Retry-After %q is earlier than the t of %q", h.Get("Retry-After"), h.Get("RateLimit"))
			}
		}
		for _, name := range []string{"drain", "status"} {
			quota, has := policy[name]
			said := float64(quota["q"]) / float64(quota["w"])
			if has && (quota["w"] < 1 || said > rate.PerSecond()*1.000001) {
				t.Errorf("%q promises more than %v", h.Get("RateLimit-Policy"), rate)
			}
		}
		if given && time.Duration(after)*time.Second < exact {
			t.Errorf("Retry-After %d is earlier than %v", after, exact)
		}
		if h.Get("X-RateLimit-Retry-After") != strconv.FormatInt(max(after, 0), 10) && given {
			t.Errorf("Retry-After %d, legacy %q", after, h.Get("X-RateLimit-Retry-After"))
		}
	})
}

// TestHeadersCanBeTurnedOff: the switch holds for every answer that has the fields; Retry-After is
// none of them, and stays.
func TestHeadersCanBeTurnedOff(t *testing.T) {
	families := map[string][]string{
		"ietf":   {"RateLimit-Policy", "RateLimit"},
		"legacy": {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Retry-After"},
	}
	for mode, sent := range map[HeaderMode][]string{
		HeadersIETF: {"ietf"}, HeadersLegacy: {"legacy"}, HeadersBoth: {"ietf", "legacy"}, HeadersNone: nil,
	} {
		b := newBench(t, func(c *Config) {
			c.Headers = mode
			c.StatusRate = shaper.Rate{Limit: 1, Period: time.Hour}
		})
		taken := b.submit(plainJob, nil)
		b.admin.do(t, "PATCH", "/v1/tenants/default", nil, `{"capacity":1}`)
		full := b.intake.do(t, "POST", "/v1/jobs", nil, plainJob)
		full.want(t, http.StatusTooManyRequests, "queue-full")
		batch := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"atomic":true,"jobs":[`+plainJob+`]}`)
		batch.want(t, http.StatusTooManyRequests, "queue-full")
		b.intake.do(t, "GET", "/v1/jobs/"+taken.job.ID, nil, "")
		often := b.intake.do(t, "GET", "/v1/jobs/"+taken.job.ID, nil, "")
		often.want(t, http.StatusTooManyRequests, "rate-limited")
		for name, r := range map[string]reply{"202": taken, "full": full, "batch": batch, "too often": often} {
			if r.Code == http.StatusTooManyRequests &&
				(r.Header().Get("Retry-After") == "" || r.Header().Get("Cache-Control") != "no-store") {
				t.Errorf("%s, %s: %v", mode, name, r.Header())
			}
			for family, fields := range families {
				for _, f := range fields {
					want := slices.Contains(sent, family)
					if _, has := r.Header()[http.CanonicalHeaderKey(f)]; has != want {
						t.Errorf("%s, %s: %s is there: %t", mode, name, f, has)
					}
				}
			}
		}
	}
}
