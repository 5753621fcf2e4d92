package codec

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// mark is text that only a client or an upstream wrote.
const mark = "s3cretmark"

// fill puts the mark into every text below v, and values into all else, so that a new field is
// found.
func fill(v reflect.Value) {
	if at, is := reflect.TypeAssert[time.Time](v); is && at.IsZero() {
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(mark)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`"` + mark + `"`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.SetMapIndex(reflect.ValueOf("name"), value)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Bool:
		v.SetBool(true)
	}
}

// marked lists the paths of a JSON value that have the mark.
func marked(path string, v any, out *[]string) {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, mark) {
			*out = append(*out, path)
		}
	case map[string]any:
		for name, item := range v {
			marked(path+"/"+name, item, out)
		}
	case []any:
		for _, item := range v {
			marked(path, item, out)
		}
	}
}

// TestForViewer: of all texts of jobs and failures, viewers see these alone. A new field fails here
// until ForViewer hides it, or this list has it.
func TestForViewer(t *testing.T) {
	job := []string{"/id", "/tenant", "/route", "/type", "/state"}
	with := func(prefix string, names ...string) (all []string) {
		for _, name := range names {
			all = append(all, prefix+name)
		}
		return all
	}
	outcome := "/attempt_log/outcome"
	line := []string{"/route", "/breaker", "/method", "/url", "/headers", "/auth", "/proxy", "/job_headers", "/token_problem",
		"/last_failure/tenant", "/last_failure/job"}
	for _, tt := range []struct {
		body any
		want []string
	}{
		{&wire.Job{}, append(job, outcome)},
		{&wire.JobList{}, append(with("/items", append(job, outcome)...), "/next_cursor")},
		{&wire.JobDetail{}, append(job, outcome, "/request/method")},
		{&wire.RouteList{}, with("/items", line...)},
		{&wire.Overview{}, append(with("/routes", line...), "/store/engine", "/store/version", "/store/error")},
	} {
		fill(reflect.ValueOf(tt.body).Elem())
		before, _ := json.Marshal(tt.body)
		shown, err := json.Marshal(ForViewer(reflect.ValueOf(tt.body).Elem().Interface()))
		if err != nil {
			t.Fatal(err)
		}
		var v any
		_ = json.Unmarshal(shown, &v)
		var got []string
		marked("", v, &got)
		slices.Sort(got)
		slices.Sort(tt.want)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%T: viewers see %v, want %v", tt.body, got, tt.want)
		}
		if after, _ := json.Marshal(tt.body); string(after) != string(before) {
			t.Errorf("%T was changed, and others may hold it", tt.body)
		}
	}
	for text, want := range map[string]string{
		"PUT /x/secret": "PUT (hidden)", "OPTIONS *": "OPTIONS (hidden)", "order.create": "order.create", "a b": "a b",
	} {
		if got := ForViewer(&wire.Job{Type: text}).(*wire.Job); got.Type != want || !got.Hidden {
			t.Errorf("%q is shown as %q", text, got.Type)
		}
	}
}
