package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// withCallbacks lets callbacks go to one host.
func withCallbacks(c *Config) {
	c.CheckCallback = func(url string, _ []string) error {
		if !strings.HasPrefix(url, "https://partner.example/") {
			return errors.New("must lead to a public address")
		}
		return nil
	}
}

func TestCallbackURL(t *testing.T) {
	b := newBench(t, withCallbacks)
	const body = `{"type":"t","payload":1,"callback_url":"https://partner.example/hooks?a=1&b=2"}`
	id := b.submit(body, headers{"Idempotency-Key": "k"}).job.ID
	if got := b.queue.Submission(id).CallbackURL; got != "https://partner.example/hooks?a=1&b=2" {
		t.Errorf("callback URL %q", got)
	}
	if r := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, ""); strings.Contains(r.Body.String(), "partner") {
		t.Errorf("the job contains its callback URL: %s", r.Body)
	}
	r := b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+body+`,{"type":"t","payload":2}]}`)
	var got wire.BatchResult
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || len(got.Items) != 2 {
		t.Fatalf("%v %s", err, r.Body)
	}
	one, two := b.queue.Submission(got.Items[0].Job.ID).CallbackURL,
		b.queue.Submission(got.Items[1].Job.ID).CallbackURL
	if one == "" || two != "" {
		t.Errorf("callback URLs %q and %q", one, two)
	}
}

// A refused URL may hold secrets: it is named by its field.
func TestRefusedCallbackURL(t *testing.T) {
	b := newBench(t, withCallbacks)
	const bad = `{"type":"t","payload":1,"callback_url":"http://hunter2.internal/"}`
	const good = `{"type":"t","payload":1,"callback_url":"https://partner.example/"}`
	for _, c := range []struct {
		path, body string
		fields     []string
	}{
		{"/v1/jobs", bad, []string{"callback_url"}},
		{"/v1/jobs/batch", `{"jobs":[` + good + `,` + bad + `,` + bad + `],"atomic":true}`,
			[]string{"jobs[1].callback_url", "jobs[2].callback_url"}},
		{"/v1/jobs/batch", `{"jobs":[` + bad + strings.Repeat(`,`+bad, 99) + `],"atomic":true}`, nil},
	} {
		r := b.intake.do(t, "POST", c.path, nil, c.body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if strings.Contains(r.Body.String(), "hunter2") || len(r.problem.Errors) > problem.MaxFieldErrors {
			t.Errorf("%s", r.Body)
		}
		for i, field := range c.fields {
			if i >= len(r.problem.Errors) || r.problem.Errors[i] != (wire.FieldError{Field: field,
				Kind: "string", Rule: "must lead to a public address"}) {
				t.Errorf("want %s: %s", field, r.Body)
			}
		}
	}
	if ids := b.queue.IDs(); len(ids) != 0 {
		t.Errorf("refused, yet stored: %v", ids)
	}
}

func TestJobJSONIsTheJobOfTheAPI(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	b.queue.Finish(id, shaper.Succeeded, &queue.Response{Status: 200, Body: []byte(`<a href="?x=1&y=2">`)}, nil)
	r := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, "")
	job, err := b.queue.Job(t.Context(), "default", id)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(must(JobJSON(job))); got+"\n" != r.Body.String() {
		t.Errorf("%s, the API says %s", got, r.Body)
	}
}
