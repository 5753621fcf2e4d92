package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
)

const onePlainJob = `{"type":"order.create","payload":{"n":1}}`

// A submission that is accepted obeys the rules, and encoding/json reads it the same.
func FuzzSubmission(f *testing.F) {
	for _, s := range []string{
		onePlainJob, `{"type":"t","payload":null,"route":"r","delay_ms":1,"max_wait_ms":2,"cost":3}`,
		`{"type":"t","payload":1,"type":"u"}`,
		`{"type":"\ud800","payload":[1,{"a":"}"}]}`, `{"type":"t","payload":1}{}`, `[]`, `{`, "",
		` {"payload" : 1e400 , "type":"\u0000"} `,
		`{"type":"t","payload":1,"cost":-0}`, `{"type":"t","Payload":1}`,
		`{"type":"t","payload":1,"callback_url":"https://x/\u0026"}`,
		`{"type":"\ud83d\uDE00 \\ud800 \ufffd","payload":"\udfff"}`,
		`{"type":"t","payload":1,"route":"\\\udc00"}`, `{"type":"\ud800\ud83d\ude00","payload":1}`,
		`{"type":"\ud800\u0041","payload":1}`,
		`{"type":"t","payload":1,"headers":{"X-Request-Id":"17","Accept-Language":"d\u00e9"}}`,
		`{"type":"t","payload":1,"headers":{"X-A":"1","x_a":"2","X-\u000a":" ","":"\u0000"}}`,
		`{"type":"t","payload":1,"headers":{"Host":"a","Sluice-Tenant":"b","X-B":1,"\ud800":"\udc00"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeSubmission(body)
		if err != nil {
			p := problem.Of(err)
			if p.Status != http.StatusBadRequest && p.Status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		var want wire.Submission
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("%q is taken, but: %v", body, err)
		}
		want.Payload = got.Payload // see below
		queuetest.Compare(t, fmt.Sprintf("%q", body), got, want)
		if !bytes.Contains(body, got.Payload) || !json.Valid(got.Payload) {
			t.Errorf("%q: payload %q", body, got.Payload)
		}
		// Halves of characters would all be read as U+FFFD, and different texts as one.
		read, written := got.Type+got.Route+got.CallbackURL, strings.ToLower(string(body))
		if strings.Count(read, "\ufffd") > strings.Count(written, "\ufffd")+strings.Count(written, `\ufffd`) {
			t.Errorf("%q: %q", body, read)
		}
		named := map[string]bool{}
		for name, value := range got.Headers {
			same := strings.ToLower(strings.ReplaceAll(name, "_", "-"))
			if named[same] || httpmsg.CheckJobHeader(name) != "" || HasControl(value) || strings.Trim(value, " ") != value {
				t.Errorf("%q is taken with the header %q: %q", body, name, value)
			}
			named[same] = true
		}
		if len(got.Headers) > 16 {
			t.Errorf("%q is taken with %d headers", body, len(got.Headers))
		}
		if got.Type == "" || HasControl(got.Type) {
			t.Errorf("%q is taken with the type %q", body, got.Type)
		}
		if got.DelayMS < 0 || got.MaxWaitMS < 0 {
			t.Errorf("%q is taken with a delay of %d ms and a max wait of %d ms", body, got.DelayMS,
				got.MaxWaitMS)
		}
		if got.Cost < 0 || got.Cost > shaper.MaxCost {
			t.Errorf("%q is taken with the cost %d, want 0 to %d", body, got.Cost, shaper.MaxCost)
		}
	})
}

// A batch that is accepted has 1 to MaxBatch jobs. The problem of a refused job names a field.
func FuzzBatch(f *testing.F) {
	for _, s := range []string{
		`{"jobs":[` + onePlainJob + `],"atomic":true}`, `{"jobs":[]}`, `{"jobs":[{"idempotency_key":"k"}]}`,
		`{"jobs":[{"type":"t","payload":1,"idempotency_key":"\ud800"}]}`, `{"jobs":[[`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b, wrong, err := DecodeBatch(body, 1<<10)
		if n := len(b.Jobs); err == nil && (n < 1 || n > wire.MaxBatch) {
			t.Errorf("%q is taken with %d jobs, want 1 to %d", body, n, wire.MaxBatch)
		}
		if err == nil && len(wrong) > len(b.Jobs) {
			t.Errorf("%q: %d problems of %d jobs", body, len(wrong), len(b.Jobs))
		}
		for i, p := range wrong {
			if p == nil {
				continue
			}
			if len(p.Errors) == 0 {
				t.Errorf("%q: the problem of job %d names no field: %+v", body, i, p)
			}
			if b.Jobs[i].Type == "" && p.Detail == "" {
				t.Errorf("%q: job %d has no type, and its problem no detail: %+v", body, i, p)
			}
		}
	})
}

// The name and the expiry of an accepted key obey the rules.
func FuzzKey(f *testing.F) {
	for _, s := range []string{
		`{"name":"ci","expires_at":"2099-01-02T15:04:05Z"}`, `{}`, "", `{"name":"\u0000"}`,
		`{"expires_at":"2020-01-01T00:00:00Z"}`, `{"expires_at":"9999-12-31T23:59:59Z"}`,
		`{"expires_at":"9999-12-31T23:59:59-23:59"}`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		k, err := DecodeKey(body, nil, 0)
		if err != nil {
			if p := problem.Of(err); p.Status != http.StatusBadRequest && p.Status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if len(k.Name) > wire.MaxKeyName || HasControl(k.Name) {
			t.Errorf("%q is taken with the name %q", body, k.Name)
		}
		if !k.Expires.IsZero() && !k.Expires.After(time.Now()) {
			t.Errorf("%q is taken with an expiry in the past: %v", body, k.Expires)
		}
		if k.Expires.UTC().Year() > 9999 {
			t.Errorf("%q is taken with an expiry that RFC 3339 cannot express: %v", body, k.Expires)
		}
	})
}

// Every field of an accepted filter restricts the choice: none is ignored.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{
		`{"ids":["06ah2"],"state":"dead","route":"r","error":"e",` +
			`"created_before":"2026-01-02T15:04:05.123456Z"}`, `{}`, `{"ids":[]}`, `{"ids":[[]]}`,
		`{"state":"leased"}`, `{"created_before":"0001-01-01T00:00:00Z"}`,
		`{"created_before":"2026-01-02T15:04:05,5+01:00"}`, `{"created_before":"9999-12-31T23:59:59-00:01"}`,
		`null`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := DecodeFilter(body, Purgeable)
		if err != nil {
			status := problem.Of(err).Status
			if status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		var said map[string]json.RawMessage
		if len(body) > 0 {
			if err := json.Unmarshal(body, &said); err != nil {
				t.Fatalf("%q is taken, but: %v", body, err)
			}
		}
		// Whatever is said restricts the choice.
		for name, restricts := range map[string]bool{
			"ids": len(got.IDs) > 0, "state": got.State != "", "route": got.Route != "",
			"error": got.Error != "", "created_before": !got.CreatedBefore.IsZero(),
		} {
			if _, given := said[name]; given != restricts {
				t.Errorf("%q: %s given=%v restricts=%v", body, name, given, restricts)
			}
			delete(said, name)
		}
		if len(said) > 0 {
			t.Errorf("%q is taken with unknown fields: %q", body, said)
		}
		if len(got.IDs) > wire.MaxFilterIDs {
			t.Errorf("%q is taken with %d ids, want at most %d", body, len(got.IDs), wire.MaxFilterIDs)
		}
		if i := slices.IndexFunc(got.IDs, func(id string) bool { return !IsID(id) }); i >= 0 {
			t.Errorf("%q is taken with the id %q", body, got.IDs[i])
		}
		if got.CreatedBefore.UTC().Year() > 9999 {
			t.Errorf("%q is taken with a time that RFC 3339 cannot express: %v", body, got.CreatedBefore)
		}
	})
}

// Accepted settings make valid rates, and applying them twice is the same as once.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{
		`{"rate":{"limit":200,"period_ms":1000},"burst":1,"capacity":5,"concurrency":0,"max_wait_ms":0,` +
			`"paused":true,"reason":"r"}`,
		`{"rate":null,"rates":[{"limit":1,"period_ms":1,"burst":2}],"capacity":null}`, `{"rate":{"limit":5}}`,
		`{"rates":[{}]}`, `{"rat":1}`, `{"rate":"5/24h","rates":[{"rate":"1/s","burst":3}]}`,
		`{"weight":8,"reserve":"5/s","routes":{"login":{"weight":null,"reserve":{"limit":1,"period_ms":1000}}}}`,
		`{"reserve":{"limit":1}}`,
		`{"tier":"pro","routes":{"login":{"rate":{"limit":5}},"gone":null}}`, `{"routes":null,"tier":null}`,
		`{"routes":{"login":{"tier":"pro"}}}`,
	} {
		f.Add([]byte(s))
	}
	inForce := func(string) shaper.Rate { return shaper.DefaultPolicy().Rate }
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := DecodeSettings(body, func(route string) string { return strings.TrimPrefix(route, "login") })
		if err != nil {
			return
		}
		o, err := p.Apply(shaper.Overrides{}, inForce)
		if err != nil {
			if problem.Of(err).Status != http.StatusUnprocessableEntity {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if o.Rate != nil && o.Rate.Validate() != nil {
			t.Errorf("%q: rate %v", body, o.Rate)
		}
		// Only bounds that depend on several settings may be left to the policy as a whole.
		if err := o.Over(shaper.DefaultPolicy()).Validate(); err != nil && !strings.Contains(err.Error(),
			"burst") && !strings.Contains(err.Error(), "reserve") {
			t.Errorf("%q: %v", body, err)
		}
		// A merge patch is idempotent.
		again, err := p.Apply(o, inForce)
		if !reflect.DeepEqual(o, again) || err != nil {
			t.Errorf("%q: %+v, then %+v %v", body, o, again, err)
		}
	})
}

func FuzzPoolSettings(f *testing.F) {
	for _, s := range []string{`{"rate":"200/s","burst":1,"capacity":5,"capacity_bytes":0,"concurrency":0,"paused":true,"reason":"r"}`, `{"rate":{"limit":5},"rates":null}`, `{"weight":1}`, `{"tier":"pro"}`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := DecodePoolSettings(body)
		if err != nil {
			return
		}
		o, err := p.Apply(shaper.Overrides{}, func(string) shaper.Rate {
			return shaper.Rate{Limit: 1,
				Period: time.Second}
		})
		if err != nil {
			return
		}
		pools := map[string]shaper.PoolSettings{"p": {Routes: []string{"r"},
			Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 1, Period: time.Second}}}}
		// Only the burst depends on several settings.
		if err := (shaper.Baseline{Pools: pools}).ValidatePool("p",
			o); err != nil && !strings.Contains(err.Error(), "burst") {
			t.Errorf("%q: %v", body, err)
		}
	})
}
