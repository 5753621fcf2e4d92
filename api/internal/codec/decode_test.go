package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// members and elements find the parts of objects and arrays that encoding/json finds.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, `{"a":1}`, ` { "a" : "b\"}" , "c":[1,{"d":"\\"}] , "" : null } `,
		`[1, -2.5e3 ,"x]",[],{}]`, `{"\u0061":true,"a":false}`, `{"\ud800":1}`, `[[[[]]]]`, `"x"`, `7`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		value, err := oneValue(body)
		if err != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(value))
		switch kindOf(value) {
		case "object":
			_, _ = d.Token()
			for name, got := range members(value) {
				token, err := d.Token()
				if err != nil || token != name {
					t.Fatalf("a member %q, want %v (%v)", name, token, err)
				}
				sameValue(t, d, got)
			}
		case "array":
			_, _ = d.Token()
			for got := range elements(value) {
				sameValue(t, d, got)
			}
		default:
			return
		}
		if d.More() {
			t.Fatalf("%s has more members", value)
		}
	})
}

func sameValue(t *testing.T, d *json.Decoder, got json.RawMessage) {
	t.Helper()
	var want json.RawMessage
	if err := d.Decode(&want); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("a value %s, want %s (%v)", got, want, err)
	}
}

// Half a surrogate pair is refused. Whole pairs and escaped backslashes are not.
func TestHalvesOfSurrogatePairs(t *testing.T) {
	for text, half := range map[string]bool{
		`""`: false, `"\u0041"`: false, `"\ud83d\ude00"`: false, `"\uD83D\uDE00\uD83D\uDE00"`: false,
		`"😀"`: false, `"\ufffd"`: false, `"\\ud800"`: false, `"\\\\udc00\n"`: false, `"\ud7ff\ue000"`: false,
		`"\ud800"`: true, `"\uDFFF"`: true, `"\udc00\ud800"`: true, `"\ud83d\u0041"`: true,
		`"\ud83d\\ude00"`: true, `"\ud83d \ude00"`: true, `"\ud83d\ud83d\ude00"`: true,
		`"\ud83d\ude00\ude00"`: true,
		`"\\\ud800"`:           true, `"\ud83d\"\ude00"`: true,
	} {
		var rd reader
		rd.text("f", json.RawMessage(text), 0, 100)
		got := len(rd.Fields) > 0 && strings.Contains(rd.Fields[0].Rule, "surrogate")
		if got != half || !json.Valid([]byte(text)) {
			t.Errorf("%s: %v", text, rd.Fields)
		}
	}
}

// A repeated member is refused whichever it is, however many stand before it.
func TestRepeatedSettings(t *testing.T) {
	names := append(shaper.Names(shaper.SettingsOfTenants()), "tier", "routes", "reason")
	for _, repeated := range names {
		var body strings.Builder
		for _, name := range append(slices.Clone(names), repeated) {
			fmt.Fprintf(&body, `,%q:null`, name)
		}
		_, err := DecodeSettings([]byte("{"+body.String()[1:]+"}"), nil)
		if err == nil || !strings.Contains(fmt.Sprintf("%+v", err), "must not be repeated") {
			t.Errorf("%s twice: %v", repeated, err)
		}
	}
}

// Every setting of the table can be set and reset, and only those that a pool has in a pool.
func TestSettingsOfTheTable(t *testing.T) {
	values := map[shaper.Kind]string{shaper.KindRate: `"7/s"`, shaper.KindRates: `[{"rate":"7/s"}]`,
		shaper.KindNumber: "7", shaper.KindDuration: "7", shaper.KindSwitch: "true", shaper.KindTypes: `["a"]`}
	inForce := func(string) shaper.Rate { return shaper.DefaultPolicy().Rate }
	for _, s := range shaper.Settings() {
		body := fmt.Appendf(nil, `{%q:%s}`, s.Name, values[s.Kind])
		patch, err := DecodeSettings(body, nil)
		if (err == nil) == s.Verb {
			t.Errorf("%s of a tenant: %v", s.Name, err)
		}
		if _, err := DecodePoolSettings(body); (err == nil) != s.Pool {
			t.Errorf("%s of a pool: %v", s.Name, err)
		}
		if s.Verb {
			continue
		}
		o, err := patch.Apply(shaper.Overrides{}, inForce)
		if err != nil || !slices.Equal(o.Set(), []string{s.Name}) {
			t.Errorf("%s sets %v, %v", body, o.Set(), err)
		}
		reset, err := DecodeSettings(fmt.Appendf(nil, `{%q:null}`, s.Name), nil)
		if err != nil {
			t.Errorf("reset %s: %v", s.Name, err)
		}
		if o, err = reset.Apply(o, inForce); err != nil || !o.Empty() {
			t.Errorf("reset %s leaves %v, %v", s.Name, o.Set(), err)
		}
	}
}

// An error names the value beside field and rule, unless it is a text that may be a secret.
func TestErrorsNameTheValue(t *testing.T) {
	submission := func(members string) error {
		_, err := DecodeSubmission([]byte(`{"type":"t","payload":1,` + members + `}`))
		return err
	}
	pool := func(body string) error { _, err := DecodePoolSettings([]byte(body)); return err }
	tenant := func(body string) error {
		_, err := DecodeSettings([]byte(body), func(string) string { return "" })
		return err
	}
	const delay = "must be a whole number from 0 to 31622400000"
	long := strings.Repeat("ü", 40)
	for _, c := range []struct {
		err  error
		want string
	}{
		{submission(`"delay_ms":"5000"`), `delay_ms (string "5000") ` + delay + ", written without quotes"},
		{submission(`"delay_ms":"hunter2"`), `delay_ms (string) ` + delay},
		{submission(`"delay_ms":1.5`), `delay_ms (number 1.5) ` + delay + ", written without fraction and exponent"},
		{submission(`"delay_ms":5e3`), `delay_ms (number 5e3) ` + delay + ", written without fraction and exponent"},
		{submission(`"delay_ms":-1`), `delay_ms (number -1) ` + delay},
		{submission(`"delay_ms":31622400001`), `delay_ms (number 31622400001) ` + delay},
		{submission(`"delay_ms":99999999999999999999`), `delay_ms (number 99999999999999999999) ` + delay},
		{submission(`"delay_ms":true`), `delay_ms (boolean true) ` + delay},
		{submission(`"delay_ms":null`), `delay_ms (null) ` + delay},
		{submission(`"cost":0`), `cost (number 0) must be a whole number from 1 to 1000000`},
		{submission(`"route":"\u0007secret"`), `route (string) must not contain control or format characters`},
		{tenant(`{"rate":"5/x"}`), `rate (string "5/x") `},
		{tenant(`{"rate":"` + long + `"}`), `rate (string "` + long[:64] + `…") `},
		{tenant(`{"paused":"yes"}`), `paused (string "yes") must be true or false`},
		{tenant(`{"draining":true}`), "draining (boolean true) is changed by POST /v1/tenants/{tenant}/drain and resume"},
		{tenant(`{"rates":[{"rate":"1/s","by":"byte"}]}`), `rates[0].by (string "byte") must be cost or jobs`},
		{pool(`{"routes":["erp"]}`), "routes (array) is a setting of the configuration file: pools.NAME.routes"},
		{pool(`{"max_hold_ms":5}`), "max_hold_ms (number 5) is a setting of the configuration file: pools.NAME.max_hold"},
		{pool(`{"capacity":-1}`), "capacity (number -1) must be"},
	} {
		if c.err == nil {
			t.Errorf("no error, want %s", c.want)
		} else if got := problem.Of(c.err).Detail; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

// TestManyMistakes: beyond the rules that an answer lists, a body costs its scan alone.
func TestManyMistakes(t *testing.T) {
	mistakes := func(n int) float64 {
		body := []byte(`{"jobs":[{` + strings.Repeat(`"prioritys":1,`, n) + `"x":1}]}`)
		return testing.AllocsPerRun(3, func() {
			_, wrong, err := DecodeBatch(body, 1<<20)
			if err != nil || len(wrong[0].Errors) != problem.MaxFieldErrors {
				t.Fatal(wrong, err)
			}
		})
	}
	if few, many := mistakes(100), mistakes(10_000); many > few+50 {
		t.Errorf("100 mistakes take %v allocations, 10,000 take %v", few, many)
	}
}

// TestManyHeaders: what is far beyond the headers that a job may have is not read.
func TestManyHeaders(t *testing.T) {
	for _, n := range []int{17, 3_000, 100_000} {
		var names strings.Builder
		for i := range n {
			fmt.Fprintf(&names, `"a%d":"",`, i)
		}
		body := []byte(`{"type":"t","payload":1,"headers":{` + names.String() + `"x":""}}`)
		allocated := testing.Benchmark(func(b *testing.B) {
			for range b.N {
				if _, err := DecodeSubmission(body); err == nil || !strings.Contains(err.Error(), "at most 16 headers") {
					t.Fatal(err)
				}
			}
		}).AllocedBytesPerOp()
		if allocated > int64(2*len(body)+64<<10) {
			t.Errorf("%d headers of %d bytes take %d", n, len(body), allocated)
		}
	}
}
