package api

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Every way to be refused for what was sent. The harness also checks that each status is
// documented.
func TestRefusals(t *testing.T) {
	const jobs, batch, tenant = "/v1/jobs", "/v1/jobs/batch", "/v1/tenants/a"
	big := `{"type":"t","payload":"` + strings.Repeat("x", 300<<10) + `"}`
	deep := `{"type":"t","payload":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`
	cases := []struct {
		what, method, path string
		h                  headers
		body               string
		status             int
		kind               string
		says               string // in the body
	}{
		{"empty body", "POST", jobs, headers{"Content-Type": "application/json"}, " ", 400, "malformed-json",
			"empty"},
		{"not JSON", "POST", jobs, nil, "{", 400, "malformed-json", "byte 1"},
		{"two values", "POST", jobs, nil, `{"type":"t","payload":1}{"type":"t"}`, 400, "malformed-json", "byte 25"},
		{"not UTF-8", "POST", jobs, nil, "{\"type\":\"t\",\"payload\":\"\xff\"}", 400, "malformed-json", "UTF-8"},
		{"deep nesting", "POST", jobs, nil, deep, 400, "malformed-json", ""},
		{"array", "POST", jobs, nil, "[]", 422, "invalid-request", "must be an object"},
		{"null", "POST", jobs, nil, "null", 422, "invalid-request", "body (null)"},
		{"no type", "POST", jobs, nil, `{"payload":1}`, 422, "invalid-request", "type (nothing) is required"},
		{"no payload", "POST", jobs, nil, `{"type":"t"}`, 422, "invalid-request", "payload (nothing) is required"},
		{"unknown field", "POST", jobs, nil, `{"type":"t","payload":1,"prioirty":3}`, 422, "invalid-request",
			"prioirty (number) is not a known field; the fields are type, payload, route, delay_ms,"},
		{"misspelt field", "POST", jobs, nil, `{"tpye":"t","payload":1}`, 422, "invalid-request",
			"tpye (string) is not a known field; is type meant?"},
		{"tenant as a field", "POST", jobs, nil, `{"type":"t","payload":1,"tenant":"acme"}`, 422, "invalid-request",
			"tenant (string) is no field: the credential names the tenant or, without authentication, the header Sluice-Tenant"},
		{"misspelt field of an element", "POST", batch, nil, `{"jobs":[{"type":"t","payload":1,"idempotencyKey":"k"}],"atomic":true}`,
			422, "invalid-request", "jobs[0].idempotencyKey (string) is not a known field; is idempotency_key meant?"},
		{"field without its unit", "POST", jobs, nil, `{"type":"t","payload":1,"delay":5}`, 422, "invalid-request",
			"delay (number) is not a known field; is delay_ms meant?"},
		{"misspelt parameter", "GET", jobs + "?stat=dead", nil, "", 422, "invalid-request",
			"query.stat (string) is not a known parameter; is state meant?"},
		{"misspelt setting of a route", "PATCH", tenant, nil, `{"routes":{"default":{"max_wait":5}}}`, 422, "invalid-request",
			"routes.default.max_wait (number) is not a known field; is max_wait_ms meant?"},
		{"misspelt member of a rate", "PATCH", tenant, nil, `{"rate":{"limit":5,"period":1000}}`, 422, "invalid-request",
			"rate.period (number) is not a known field; is period_ms meant?"},
		{"misspelt member of a further rate", "PATCH", tenant, nil, `{"rates":[{"raet":"5/s"}]}`, 422, "invalid-request",
			"rates[0].raet (string) is not a known field; is rate meant?"},
		{"a fraction as rate", "PATCH", tenant, nil, `{"rate":"0.5/s"}`, 422, "invalid-request", "is 1/2s meant?"},
		{"callbacks that are not configured", "POST", jobs, nil,
			`{"type":"t","payload":1,"callback_url":"http://x/"}`, 422, "invalid-request",
			"callback_url (string) must be absent: callbacks are not configured"},
		{"callback_url is a number", "POST", jobs, nil, `{"type":"t","payload":1,"callback_url":7}`, 422,
			"invalid-request", "callback_url (number) must be a string"},
		{"callback_url is null", "POST", jobs, nil, `{"type":"t","payload":1,"callback_url":null}`, 422,
			"invalid-request", "callback_url (null) must be a string"},
		{"empty callback_url", "POST", jobs, nil, `{"type":"t","payload":1,"callback_url":""}`, 422,
			"invalid-request", "callback_url (string) must be 1 to 1024 bytes"},
		{"long callback_url", "POST", jobs, nil,
			`{"type":"t","payload":1,"callback_url":"https://x/` + strings.Repeat("p", 1015) + `"}`, 422,
			"invalid-request", "1 to 1024 bytes"},
		{"control character in callback_url", "POST", jobs, nil,
			`{"type":"t","payload":1,"callback_url":"https://x/\u000a"}`, 422, "invalid-request", "control"},
		{"callback_url of an element", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1},{"type":"t","payload":1,"callback_url":"http://x/"}],` +
				`"atomic":true}`, 422, "invalid-request", "jobs[1].callback_url (string) must be absent"},
		{"key in the body", "POST", jobs, nil, `{"type":"t","payload":1,"idempotency_key":"k"}`, 422,
			"invalid-request", "idempotency_key (string) must be sent as the header Idempotency-Key"},
		{"another case", "POST", jobs, nil, `{"Type":"t","payload":1}`, 422, "invalid-request",
			"Type (string) is not a known field"},
		{"repeated field", "POST", jobs, nil, `{"type":"t","payload":1,"type":"u"}`, 422, "invalid-request",
			"must not be repeated"},
		{"type is a number", "POST", jobs, nil, `{"type":7,"payload":1}`, 422, "invalid-request",
			"type (number) must be a string"},
		{"empty type", "POST", jobs, nil, `{"type":"","payload":1}`, 422, "invalid-request", "1 to 255 bytes"},
		{"long type", "POST", jobs, nil, `{"type":"` + strings.Repeat("é", 128) + `","payload":1}`, 422,
			"invalid-request", "1 to 255 bytes"},
		{"control character in type", "POST", jobs, nil, `{"type":"a\u000d\u000ab","payload":1}`, 422,
			"invalid-request", "control"},
		{"negative delay", "POST", jobs, nil, `{"type":"t","payload":1,"delay_ms":-1}`, 422,
			"invalid-request", "delay_ms (number)"},
		{"fractional delay", "POST", jobs, nil, `{"type":"t","payload":1,"delay_ms":1.5}`, 422,
			"invalid-request", "delay_ms (number)"},
		{"huge delay", "POST", jobs, nil, `{"type":"t","payload":1,"delay_ms":99999999999999999999}`, 422,
			"invalid-request", "delay_ms (number)"},
		{"null delay", "POST", jobs, nil, `{"type":"t","payload":1,"delay_ms":null}`, 422, "invalid-request",
			"delay_ms (null)"},
		{"max wait is text", "POST", jobs, nil, `{"type":"t","payload":1,"max_wait_ms":"5"}`, 422,
			"invalid-request", "max_wait_ms (string)"},
		{"zero cost", "POST", jobs, nil, `{"type":"t","payload":1,"cost":0}`, 422, "invalid-request",
			"from 1 to 1000000"},
		{"unknown route", "POST", jobs, nil, `{"type":"t","payload":1,"route":"nope"}`, 404, "unknown-route",
			"route"},
		{"empty route", "POST", jobs, nil, `{"type":"t","payload":1,"route":""}`, 422, "invalid-request", "route"},
		{"too large", "POST", jobs, nil, big, 413, "too-large", "262144"},
		{"text/plain", "POST", jobs, headers{"Content-Type": "text/plain"}, `{"type":"t","payload":1}`, 415,
			"unsupported-media-type", "application/json"},
		{"no content type", "POST", jobs, headers{"Content-Type": ""}, `{"type":"t","payload":1}`, 415,
			"unsupported-media-type", ""},
		{"form", "POST", jobs, headers{"Content-Type": "application/x-www-form-urlencoded"},
			`{"type":"t","payload":1}`, 415, "unsupported-media-type", ""},
		{"long key", "POST", jobs, headers{"Idempotency-Key": strings.Repeat("k", 300)},
			`{"type":"t","payload":1}`, 422, "invalid-request", "Idempotency-Key (string)"},
		{"empty key", "POST", jobs, headers{"Idempotency-Key": `""`}, `{"type":"t","payload":1}`, 422,
			"invalid-request", "1 to 255 bytes"},
		{"unfinished key", "POST", jobs, headers{"Idempotency-Key": `"k`}, `{"type":"t","payload":1}`, 422,
			"invalid-request", "structured string"},
		{"control character in tenant", "POST", jobs, headers{"Sluice-Tenant": "a\tb"},
			`{"type":"t","payload":1}`, 422, "invalid-request", "Sluice-Tenant"},
		{"long tenant", "GET", jobs + "/abc", headers{"Sluice-Tenant": strings.Repeat("t", 256)}, "", 422,
			"invalid-request", "Sluice-Tenant"},
		{"tenant is not UTF-8", "GET", jobs + "/abc", headers{"Sluice-Tenant": "\xff"}, "", 422,
			"invalid-request", "UTF-8"},
		{"unknown parameter", "POST", jobs + "?x=1", nil, `{"type":"t","payload":1}`, 422, "invalid-request",
			"query.x"},

		{"batch of none", "POST", batch, nil, `{"jobs":[]}`, 422, "invalid-request", "1 to 1000 elements"},
		{"batch of too many", "POST", batch, nil, `{"jobs":[` + strings.Repeat(`{"type":"t","payload":1},`,
			1000) + `{"type":"t","payload":1}]}`, 422, "invalid-request", "1 to 1000 elements"},
		{"batch without jobs", "POST", batch, nil, `{}`, 422, "invalid-request", "jobs (nothing) is required"},
		{"jobs is an object", "POST", batch, nil, `{"jobs":{}}`, 422, "invalid-request", "must be an array"},
		{"element is a number", "POST", batch, nil, `{"jobs":[1],"atomic":true}`, 422, "invalid-request",
			"jobs[0] (number) must be an object"},
		{"bad element", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1},{"type":"t","payload":1,"cost":"x"}],"atomic":true}`, 422,
			"invalid-request", "jobs[1].cost (string)"},
		{"half a character in a key", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1,"idempotency_key":"\ud800"}],"atomic":true}`, 422,
			"invalid-request", "jobs[0].idempotency_key (string) must not contain half of a surrogate pair"},
		{"route of an element", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1,"route":"x"}],"atomic":true}`, 404, "unknown-route",
			"jobs[0].route"},
		{"element too large", "POST", batch, nil, `{"jobs":[` + big + `],"atomic":true}`, 413, "too-large",
			"jobs[0]"},
		{"routes of elements", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1,"route":"x"},{"type":"t","payload":1},{"type":"t",` +
				`"payload":1,"route":"y"}],"atomic":true}`, 404, "unknown-route", "jobs[2].route"},
		{"second element too large", "POST", batch, nil,
			`{"jobs":[{"type":"t","payload":1},` + big + `],"atomic":true}`, 413, "too-large",
			`"field":"jobs[1]"`},
		{"atomic is a number", "POST", batch, nil, `{"jobs":[{"type":"t","payload":1}],"atomic":1}`, 422,
			"invalid-request", "atomic (number)"},

		{"unknown id", "GET", jobs + "/nope", nil, "", 404, "unknown-job", ""},
		{"id that is a path", "GET", jobs + "/..%2f..%2fetc", nil, "", 404, "unknown-job", ""},
		{"id with control characters", "GET", jobs + "/%00%0a", nil, "", 404, "unknown-job", ""},
		{"cancel unknown id", "DELETE", jobs + "/nope", nil, "", 404, "unknown-job", ""},
		{"replay unknown id", "POST", jobs + "/nope/replay", nil, "", 404, "unknown-job", ""},
		{"replay with members", "POST", jobs + "/nope/replay", nil, `{"a":1}`, 422, "invalid-request",
			"a (number)"},
		{"nothing there", "GET", "/v1/nothing", nil, "", 404, "not-found", ""},
		{"events of an unknown id", "GET", jobs + "/abc/events", nil, "", 404, "unknown-job", ""},
		{"events of an id that is none", "GET", jobs + "/%00/events", nil, "", 404, "unknown-job", ""},
		{"events of a long tenant", "GET", jobs + "/abc/events",
			headers{"Sluice-Tenant": strings.Repeat("t", 256)}, "", 422, "invalid-request", "Sluice-Tenant"},
		{"events with a parameter", "GET", jobs + "/abc/events?since=1", nil, "", 422, "invalid-request",
			"query.since"},
		{"events by POST", "POST", jobs + "/abc/events", nil, "", 405, "method-not-allowed", "GET, HEAD"},
		{"wrong method", "PUT", jobs, nil, `{}`, 405, "method-not-allowed", "GET, HEAD, POST"},

		{"list without a state", "GET", jobs, nil, "", 422, "invalid-request", "query.state (nothing) is required"},
		{"list of no state", "GET", jobs + "?state=", nil, "", 422, "invalid-request",
			"query.state (string) must be one of all, queued, scheduled"},
		{"list of a state that cannot be listed", "GET", jobs + "?state=done", nil, "", 422,
			"invalid-request", "query.state"},
		{"list of an empty type", "GET", jobs + "?state=all&type=", nil, "", 422, "invalid-request",
			"query.type (string) must be 1 to 255 bytes"},
		{"list of an empty key", "GET", jobs + "?state=all&idempotency_key=", nil, "", 422, "invalid-request",
			"query.idempotency_key"},
		{"list since no time", "GET", jobs + "?state=all&created_after=yesterday", nil, "", 422,
			"invalid-request", "query.created_after (string) must be a time after 1970 in RFC 3339"},
		{"list before 1970", "GET", jobs + "?state=all&created_before=1900-01-02T15:04:05Z", nil, "", 422,
			"invalid-request", "query.created_before"},
		{"list of no span", "GET",
			jobs + "?state=all&created_after=2026-01-02T15:04:05Z&created_before=2026-01-02T15:04:05Z", nil,
			"", 422, "invalid-request", "query.created_before (string) must be later than created_after"},
		{"list of a state in another case", "GET", jobs + "?state=Queued", nil, "", 422, "invalid-request",
			"query.state"},
		{"list of two states", "GET", jobs + "?state=queued&state=dead", nil, "", 422, "invalid-request",
			"repeated"},
		{"list with an unknown parameter", "GET", jobs + "?state=queued&ordre=1", nil, "", 422,
			"invalid-request", "query.ordre"},
		{"list with a query that is none", "GET", jobs + "?state=queued&limit=%zz", nil, "", 422,
			"invalid-request", "percent-encoded"},
		{"list of none", "GET", jobs + "?state=queued&limit=0", nil, "", 422, "invalid-request",
			"whole number from 1 to 1000"},
		{"list of too many", "GET", jobs + "?state=queued&limit=1001", nil, "", 422, "invalid-request",
			"query.limit"},
		{"list of fewer than none", "GET", jobs + "?state=queued&limit=-5", nil, "", 422, "invalid-request",
			"query.limit"},
		{"list with a signed limit", "GET", jobs + "?state=queued&limit=%2B5", nil, "", 422,
			"invalid-request", "query.limit"},
		{"list with an empty limit", "GET", jobs + "?state=queued&limit=", nil, "", 422, "invalid-request",
			"query.limit"},
		{"list of an unknown route", "GET", jobs + "?state=queued&route=nope", nil, "", 404, "unknown-route",
			"query.route"},
		{"list of an empty route", "GET", jobs + "?state=queued&route=", nil, "", 422, "invalid-request",
			"query.route"},
		{"list with a bad cursor", "GET", jobs + "?state=queued&cursor=%00%ff", nil, "", 422,
			"invalid-request", "query.cursor"},
		{"list with an empty cursor", "GET", jobs + "?state=queued&cursor=", nil, "", 422, "invalid-request",
			"query.cursor"},
		{"list with everything wrong", "GET", jobs + "?state=x&route=&limit=x&cursor=", nil, "", 422,
			"invalid-request", "query.limit"},
		{"list of a tenant that is none", "GET", jobs + "?state=queued", headers{"Sluice-Tenant": "\xff"}, "",
			422, "invalid-request", "UTF-8"},
		{"odd method", "BREW", jobs, nil, "", 405, "method-not-allowed", "GET, HEAD, POST"},
		{"odd method of nothing", "BREW", "/v1/nothing", nil, "", 404, "not-found", ""},

		{"rate zero", "PATCH", tenant, nil, `{"rate":{"limit":0,"period_ms":1000}}`, 422, "invalid-request",
			"rate.limit (number)"},
		{"rate negative", "PATCH", tenant, nil, `{"rate":{"limit":-3,"period_ms":1000}}`, 422,
			"invalid-request", "rate.limit (number)"},
		{"period zero", "PATCH", tenant, nil, `{"rate":{"limit":3,"period_ms":0}}`, 422, "invalid-request",
			"rate.period_ms (number)"},
		{"capacity negative", "PATCH", tenant, nil, `{"capacity":-1}`, 422, "invalid-request", "capacity (number)"},
		{"capacity with a fraction", "PATCH", tenant, nil, `{"capacity":1.5}`, 422, "invalid-request", "capacity (number)"},
		{"huge rate", "PATCH", tenant, nil, `{"rate":{"limit":99999999999999,"period_ms":1}}`, 422, "invalid-request", "rate.limit"},
		{"rate above the most", "PATCH", tenant, nil, `{"rate":{"limit":1001,"period_ms":1}}`, 422, "invalid-request", "1000000"},
		{"rate without a period", "PATCH", tenant, nil, `{"rate":"10"}`, 422, "invalid-request", "rate (string) not a rate: want LIMIT/PERIOD, such as 10/s"},
		{"rate is a number", "PATCH", tenant, nil, `{"rate":10}`, 422, "invalid-request", "rate (number) must be an object with limit and period_ms, or a text such as 10/s"},
		{"rate twice in a further one", "PATCH", tenant, nil, `{"rates":[{"rate":"10/s","limit":5}]}`, 422, "invalid-request", "rates[0] (object) must have rate, or limit and period_ms, not both"},
		{"further rate without a unit", "PATCH", tenant, nil, `{"rates":[{"rate":"10/5"}]}`, 422, "invalid-request", "rates[0].rate (string) not a rate: the unit"},
		{"further rate is a number", "PATCH", tenant, nil, `{"rates":[{"rate":10}]}`, 422, "invalid-request", "rates[0].rate (number) must be a string"},
		{"further rate by something else", "PATCH", tenant, nil, `{"rates":[{"rate":"10/s","by":"job"}]}`, 422, "invalid-request", "rates[0].by (string) must be cost or jobs"},
		{"further rate by a number", "PATCH", tenant, nil, `{"rates":[{"rate":"10/s","by":1}]}`, 422, "invalid-request", "rates[0].by (number) must be a string"},
		{"unknown member of rate", "PATCH", tenant, nil, `{"rate":{"limit":1,"period":1}}`, 422, "invalid-request", "rate.period"},
		{"half a rate", "PUT", tenant, nil, `{"rate":{"limit":1}}`, 422, "invalid-request", "limit and period_ms"},
		{"burst too long", "PATCH", tenant, nil, `{"burst":9007199254740991}`, 422, "invalid-request",
			"burst (number)"},
		{"bad further rate", "PATCH", tenant, nil, `{"rates":[{"limit":1,"period_ms":1000},{"limit":1}]}`,
			422, "invalid-request", "rates[1]"},
		{"too many rates", "PATCH", tenant, nil,
			`{"rates":[` + strings.Repeat(`{"limit":1,"period_ms":1000},`, 7) +
				`{"limit":1,"period_ms":1000}]}`, 422, "invalid-request", "at most 7"},
		{"unknown setting", "PATCH", tenant, nil, `{"rat":1}`, 422, "invalid-request",
			"rat (number) is not a known field"},
		{"figures cannot be set", "PUT", tenant, nil, `{"depth":0}`, 422, "invalid-request", "depth"},
		{"paused is text", "PATCH", tenant, nil, `{"paused":"yes"}`, 422, "invalid-request", "paused (string)"},
		{"long reason", "PATCH", tenant, nil, `{"reason":"` + strings.Repeat("r", 256) + `"}`, 422,
			"invalid-request", "reason (string)"},
		{"patch is empty", "PATCH", tenant, headers{"Content-Type": "application/json"}, "", 400,
			"malformed-json", ""},
		{"patch as text", "PATCH", tenant, headers{"Content-Type": "text/plain"}, "{}", 415,
			"unsupported-media-type", "merge-patch"},
		{"put as merge patch", "PUT", tenant, headers{"Content-Type": "application/merge-patch+json"}, "{}",
			415, "unsupported-media-type", ""},
		{"pause with a setting", "POST", tenant + "/pause", nil, `{"paused":true}`, 422, "invalid-request",
			"paused"},
		{"bad condition", "PATCH", tenant, headers{"If-Match": "7"}, `{"capacity":1}`, 422, "invalid-request",
			"If-Match"},
		{"other revision", "PATCH", tenant, headers{"If-Match": `"7"`}, `{"capacity":1}`, 412,
			"revision-mismatch", ""},
		{"none of these revisions", "PATCH", tenant, headers{"If-Match": `"7", W/"8"`}, `{"capacity":1}`, 412,
			"revision-mismatch", ""},
		{"no revision at all", "DELETE", tenant, headers{"If-Match": `"abc"`}, "", 412, "revision-mismatch", ""},
		{"revision with a zero before", "PATCH", tenant, headers{"If-Match": `"00"`}, `{"capacity":1}`, 412,
			"revision-mismatch", ""},
		{"long tenant name", "GET", "/v1/tenants/" + strings.Repeat("t", 256), nil, "", 422,
			"invalid-request", "path.tenant"},
		{"control character in the path", "GET", "/v1/tenants/a%0Ab", nil, "", 422, "invalid-request",
			"path.tenant"},
		{"bad limit", "GET", "/v1/tenants?limit=-5", nil, "", 422, "invalid-request", "query.limit"},
		{"repeated limit", "GET", "/v1/tenants?limit=5&limit=6", nil, "", 422, "invalid-request", "repeated"},
		{"bad cursor", "GET", "/v1/tenants?cursor=%00%ff", nil, "", 422, "invalid-request", "query.cursor"},
		{"cursor of nothing", "GET", "/v1/tenants?cursor=AAAA", nil, "", 422, "invalid-request", "query.cursor"},
		{"empty cursor", "GET", "/v1/tenants?cursor=", nil, "", 422, "invalid-request", "query.cursor"},
		{"drain is no setting", "PATCH", tenant, nil, `{"draining":false}`, 422, "invalid-request",
			"draining (boolean) is changed by POST /v1/tenants/{tenant}/drain"},
		{"drain is no setting of a whole either", "PUT", tenant, nil, `{"draining":true}`, 422,
			"invalid-request", "draining"},
		{"drain with a setting", "POST", tenant + "/drain", nil, `{"draining":true}`, 422, "invalid-request",
			"draining (boolean)"},
		{"drain of another revision", "POST", tenant + "/drain", headers{"If-Match": `"7"`}, "", 412,
			"revision-mismatch", ""},
		{"drain of a long tenant name", "POST", "/v1/tenants/" + strings.Repeat("t", 256) + "/drain", nil, "",
			422, "invalid-request", "path.tenant"},
		{"drain by GET", "GET", tenant + "/drain", nil, "", 405, "method-not-allowed", "POST"},

		{"purge of an unknown field", "POST", tenant + "/purge", nil, `{"tenant":"b"}`, 422,
			"invalid-request", "tenant (string) is not a known field"},
		{"purge of nothing", "POST", tenant + "/purge", nil, "", 422, "invalid-request",
			`body (nothing) must select jobs; the body selects the jobs, such as {\"state\":\"dead\"`},
		{"purge of an empty selection", "POST", tenant + "/purge", nil, "{}", 422, "invalid-request",
			`body (object) must select jobs; the body selects the jobs, such as {\"state\":\"dead\"`},
		{"purge of a misspelt condition", "POST", tenant + "/purge", nil, `{"stat":"dead"}`, 422,
			"invalid-request", `stat (string) is not a known field; is state meant? the body selects the jobs`},
		{"purge by the query", "POST", tenant + "/purge?state=dead", nil, "", 422, "invalid-request",
			`query.state (string) is not a known parameter; the body selects the jobs`},
		{"purge of not all", "POST", tenant + "/purge", nil, `{"all":false}`, 422, "invalid-request",
			"all (boolean) must be true, or absent"},
		{"purge of all in a state", "POST", tenant + "/purge", nil, `{"all":true,"state":"dead"}`, 422,
			"invalid-request", "all (boolean) excludes state and ids"},
		{"purge of all of a list", "POST", tenant + "/purge", nil, `{"all":true,"ids":["a"]}`, 422,
			"invalid-request", "all (boolean) excludes state and ids"},
		{"replay of nothing", "POST", tenant + "/replay", nil, "", 422, "invalid-request",
			"body (nothing) must select jobs; the body selects the jobs"},
		{"replay of an empty selection", "POST", tenant + "/replay", nil, "{}", 422, "invalid-request",
			"body (object) must select jobs; the body selects the jobs"},
		{"cancel of no job", "DELETE", "/v1/tenants/a/jobs", nil, "", 405, "method-not-allowed", ""},
		{"cancel of no job, with a slash", "DELETE", "/v1/tenants/a/jobs/", nil, "", 404, "not-found", ""},
		{"cancel by a filter", "DELETE", "/v1/tenants/a/jobs?state=queued", nil, "", 405, "method-not-allowed", ""},
		{"purge of a list", "POST", tenant + "/purge", nil, `["a"]`, 422, "invalid-request",
			"body (array) must be an object"},
		{"purge of null", "POST", tenant + "/purge", nil, `null`, 422, "invalid-request", "body (null)"},
		{"purge with two bodies", "POST", tenant + "/purge", nil, `{}{}`, 400, "malformed-json", ""},
		{"purge as text", "POST", tenant + "/purge", headers{"Content-Type": "text/plain"}, `{}`, 415,
			"unsupported-media-type", ""},
		{"purge with too much", "POST", tenant + "/purge", nil,
			`{"ids":["` + strings.Repeat("x", 130<<10) + `"]}`, 413, "too-large", "131072"},
		{"purge with a parameter", "POST", tenant + "/purge?state=dead", nil, "", 422, "invalid-request",
			"query.state"},
		{"purge of no ids", "POST", tenant + "/purge", nil, `{"ids":[]}`, 422, "invalid-request",
			"ids (array) must have 1 to 1000 elements"},
		{"purge of too many ids", "POST", tenant + "/purge", nil,
			`{"ids":[` + strings.Repeat(`"a",`, 1000) + `"a"]}`, 422, "invalid-request",
			"1 to 1000 elements"},
		{"purge of null ids", "POST", tenant + "/purge", nil, `{"ids":null}`, 422, "invalid-request",
			"ids (null) must be an array"},
		{"purge of an id that is none", "POST", tenant + "/purge", nil, `{"ids":["a","hunter 2"]}`, 422,
			"invalid-request", "ids[1] (string) must be the id of a job"},
		{"purge of an id that is a number", "POST", tenant + "/purge", nil, `{"ids":[7]}`, 422,
			"invalid-request", "ids[0] (number)"},
		{"purge of leased jobs", "POST", tenant + "/purge", nil, `{"state":"leased"}`, 422, "invalid-request",
			"state (string) must be one of queued, scheduled, retrying, dead"},
		{"purge of an empty state", "POST", tenant + "/purge", nil, `{"state":""}`, 422, "invalid-request",
			"state (string)"},
		{"purge of null", "POST", tenant + "/purge", nil, `{"state":null}`, 422, "invalid-request", "state (null)"},
		{"purge of an empty route", "POST", tenant + "/purge", nil, `{"route":""}`, 422, "invalid-request",
			"route (string) must be 1 to 255 bytes"},
		{"purge of an empty error", "POST", tenant + "/purge", nil, `{"error":""}`, 422, "invalid-request",
			"error (string) must be 1 to 255 bytes"},
		{"purge of a long error", "POST", tenant + "/purge", nil,
			`{"error":"` + strings.Repeat("e", 256) + `"}`, 422, "invalid-request", "error (string)"},
		{"purge before a number", "POST", tenant + "/purge", nil, `{"created_before":1767225600}`, 422,
			"invalid-request", "created_before (number) must be a time after 1970 in RFC 3339"},
		{"purge before a date", "POST", tenant + "/purge", nil, `{"created_before":"2026-01-01"}`, 422,
			"invalid-request", "created_before (string)"},
		{"purge before all time", "POST", tenant + "/purge", nil, `{"created_before":"0001-01-01T00:00:00Z"}`,
			422, "invalid-request", "after 1970"},
		{"purge before a year of five digits in UTC", "POST", tenant + "/purge", nil,
			`{"created_before":"9999-12-31T23:59:59-23:59"}`, 422, "invalid-request",
			"in UTC before the year 10000"},
		{"purge before null", "POST", tenant + "/purge", nil, `{"created_before":null}`, 422,
			"invalid-request", "created_before (null)"},
		{"purge of a repeated field", "POST", tenant + "/purge", nil, `{"state":"dead","state":"dead"}`, 422,
			"invalid-request", "must not be repeated"},
		{"purge of a long tenant name", "POST", "/v1/tenants/" + strings.Repeat("t", 256) + "/purge", nil, "",
			422, "invalid-request", "path.tenant"},
		{"purge by GET", "GET", tenant + "/purge", nil, "", 405, "method-not-allowed", "POST"},
		{"replay of queued jobs", "POST", tenant + "/replay", nil, `{"state":"queued"}`, 422,
			"invalid-request", "state (string) must be one of dead"},
		{"replay of an unknown field", "POST", tenant + "/replay", nil, `{"attempts":3}`, 422,
			"invalid-request", "attempts (number) is not a known field"},
		{"history of a long tenant name", "GET", "/v1/tenants/" + strings.Repeat("t", 256) + "/history", nil,
			"", 422, "invalid-request", "path.tenant"},
		{"history with a parameter", "GET", tenant + "/history?limit=5", nil, "", 422, "invalid-request",
			"query.limit"},
		{"history by POST", "POST", tenant + "/history", nil, "{}", 405, "method-not-allowed", "GET, HEAD"},
		{"stats by POST", "POST", "/v1/stats", nil, "{}", 405, "method-not-allowed", "GET, HEAD"},
		{"stream of no such order", "GET", "/v1/stream?sort=rate", nil, "", 422, "invalid-request", "query.sort"},
		{"no tenant named", "GET", "/v1/tenants/", nil, "", 404, "not-found", ""},
		{"tenant by POST", "POST", tenant, nil, "{}", 405, "method-not-allowed", "GET, HEAD, PUT, PATCH, DELETE"},
	}
	b := newBench(t)
	b.admin.do(t, "PATCH", tenant, nil, `{}`) // or there would be no such tenant
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			d := b.intake
			if strings.HasPrefix(c.path, "/v1/tenants") || strings.HasPrefix(c.path, "/v1/st") {
				d = b.admin
			}
			r := d.do(t, c.method, c.path, c.h, c.body)
			r.want(t, c.status, c.kind)
			if body := foundValue.ReplaceAllString(r.Body.String(), "($1)"); !strings.Contains(body, c.says) {
				t.Errorf("%q is not said: %s", c.says, r.Body)
			}
			if c.status == http.StatusMethodNotAllowed && r.Header().Get("Allow") == "" {
				t.Error("405 without Allow")
			}
			if r.Body.Len() > 4096 {
				t.Errorf("an answer of %d bytes to a bad request", r.Body.Len())
			}
		})
	}
	if ids := b.queue.IDs(); len(ids) != 0 {
		t.Errorf("refused, yet stored: %v", ids)
	}
}

// foundValue is a value in the detail of a problem, which TestErrorsNameTheValue is about.
var foundValue = regexp.MustCompile(`\((string|number|boolean) (?:\\"[^"]*\\"|[^)"]*)\)`)

// A payload, or any other text that may be a secret, must not come back in an error.
func TestValuesAreNeverEchoed(t *testing.T) {
	const secret = "hunter2"
	b := newBench(t)
	for _, body := range []string{
		`{"type":"t","payload":"` + secret + `","cost":0}`,
		`{"type":["` + secret + `"],"payload":1}`,
		`{"type":"t","payload":"` + secret + `"`,
		`{"type":"t","payload":"` + secret + `"} ` + secret,
		`{"type":"t","payload":1,"route":"` + secret + `"}`,
		`{"type":"t","payload":1,"x":"` + secret + `"}`,
		`"` + secret + `"`,
		`{"type":"t","payload":1,"callback_url":"https://` + secret + `.example/"}`,
		`{"type":"t","payload":1,"delay_ms":"` + secret + `"}`,
		`{"type":"t","payload":1,"callback_url":["` + secret + `"]}`,
	} {
		r := b.intake.do(t, http.MethodPost, "/v1/jobs", nil, body)
		if r.Code < 400 || strings.Contains(r.Body.String(), secret) {
			t.Errorf("%s: %d %s", body, r.Code, r.Body)
		}
	}
}

func TestManyErrorsAreListedButBounded(t *testing.T) {
	b := newBench(t)
	r := b.intake.do(t, http.MethodPost, "/v1/jobs", nil,
		`{"type":1,"cost":0,"delay_ms":-1,"`+strings.Repeat("n", 1000)+`":1}`)
	r.want(t, http.StatusUnprocessableEntity, "invalid-request")
	if len(r.problem.Errors) != 5 {
		t.Errorf("%d errors: %+v", len(r.problem.Errors), r.problem.Errors)
	}
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, `"x%d":1,`, i)
	}
	r = b.intake.do(t, http.MethodPost, "/v1/jobs", nil, `{`+many.String()+`"type":"t","payload":1}`)
	if len(r.problem.Errors) != problem.MaxFieldErrors {
		t.Errorf("%d errors", len(r.problem.Errors))
	}
}

// Errors of the queue become statuses in one place.
func TestQueueErrors(t *testing.T) {
	const job = `{"type":"t","payload":1}`
	away := fmt.Errorf("dial tcp 10.0.0.7: %w", queue.ErrUnavailable)
	for _, c := range []struct {
		err    error
		status int
		kind   string
	}{
		{away, http.StatusServiceUnavailable, "unavailable"},
		{errors.New("secret detail"), http.StatusInternalServerError, "internal"},
	} {
		b := newBench(t)
		id := b.submit(job, nil).job.ID
		b.queue.Fail(c.err)
		for _, r := range []reply{
			b.intake.do(t, "POST", "/v1/jobs", nil, job),
			b.intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=5"}, job),
			b.intake.do(t, "POST", "/v1/jobs/batch", nil, `{"jobs":[`+job+`]}`),
			b.intake.do(t, "GET", "/v1/jobs/"+id, nil, ""),
			b.intake.do(t, "GET", "/v1/jobs/"+id, headers{"Prefer": "wait=5"}, ""),
			b.intake.do(t, "GET", "/v1/jobs?state=queued", nil, ""),
			b.intake.do(t, "GET", "/v1/jobs/"+id+"/events", nil, ""),
			b.intake.do(t, "DELETE", "/v1/jobs/"+id, nil, ""),
			b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, ""),
			b.admin.do(t, "GET", "/v1/tenants", nil, ""),
			b.admin.do(t, "GET", "/v1/tenants/a", nil, ""),
			b.admin.do(t, "PATCH", "/v1/tenants/a", nil, `{"capacity":5}`),
			b.admin.do(t, "PATCH", "/v1/tenants/a", nil, `{"rate":{"limit":5}}`),
			b.admin.do(t, "PATCH", "/v1/tenants/a", headers{"If-Match": `"1","2"`}, `{"capacity":5}`),
			b.admin.do(t, "POST", "/v1/tenants/a/pause", nil, ""),
			b.admin.do(t, "POST", "/v1/tenants/a/drain", nil, ""),
			b.admin.do(t, "POST", "/v1/tenants/a/purge", nil, `{"all":true}`),
			b.admin.do(t, "POST", "/v1/tenants/a/replay", nil, `{"all":true}`),
			b.admin.do(t, "GET", "/v1/tenants/a/history", nil, ""),
		} {
			r.want(t, c.status, c.kind)
			if strings.Contains(r.Body.String(), "secret") || strings.Contains(r.Body.String(), "10.0.0.7") {
				t.Errorf("the answer has internals: %s", r.Body)
			}
			after := r.Header().Get("Retry-After")
			if (after == "1" || after == "2") != (c.status == http.StatusServiceUnavailable) {
				t.Errorf("%d with Retry-After %q", r.Code, after)
			}
		}
		if n := b.queue.Watching(); n != 0 {
			t.Errorf("%d watches left", n)
		}
	}
}

func TestPanicIsAnInternalFault(t *testing.T) {
	b := newBench(t)
	b.s.queue = ports{} // the next use of it panics
	r := b.intake.do(t, http.MethodGet, "/v1/jobs/abc", nil, "")
	r.want(t, http.StatusInternalServerError, "internal")
	if strings.Contains(r.Body.String(), "nil pointer") {
		t.Errorf("the answer has internals: %s", r.Body)
	}
}

// A refusal by a part of the store names the bound, its setting and what to do.
func TestFullParts(t *testing.T) {
	s := &Server{}
	for part, says := range map[shaper.StorePart]string{
		shaper.PartNetwork: "may bring 17 new guests in ten minutes, a 50th of those that store.guest_tenants allows",
		shaper.PartTenants: "as many tenants as store.guest_tenants, or tenant_share of its tier, allows",
		shaper.PartBytes:   "as many bytes as store.guest_share, or store_share of its tier, allows",
		shaper.PartReserve: "store.reserve",
	} {
		err := s.refusal(shaper.Admission{
			Outcome: shaper.StoreFull, OfPart: true, Part: part, PartGuests: 17, RetryAfter: 30 * time.Second,
		}, "flow", "default", "")
		var p *problem.Problem
		if !errors.As(err, &p) || p.Scope != "share" || p.Header.Get("Retry-After") == "" || !strings.Contains(p.Detail, says) {
			t.Errorf("%s: refused by %+v", part, err)
		}
	}
}

// TestOverShare: a flow with as much stored as it may have is the client's to wait for, with the
// bytes of both.
func TestOverShare(t *testing.T) {
	s := &Server{}
	err := s.refusal(shaper.Admission{
		Outcome: shaper.OverShare, Stored: 5000, Share: 4000, Capacity: 10,
		Rate: shaper.Rate{Limit: 1, Period: time.Second},
	}, "flow", "default", "")
	var p *problem.Problem
	if !errors.As(err, &p) || p.Status != http.StatusTooManyRequests ||
		p.Type != problem.URN+"queue-bytes-full" || p.Header.Get("Retry-After") == "" {
		t.Fatalf("refused by %+v", err)
	}
	if p.StoredBytes == nil || *p.StoredBytes != 5000 || p.ShareBytes == nil || *p.ShareBytes != 4000 ||
		p.Bytes != nil {
		t.Errorf("the problem is %+v", p.Problem)
	}
	if outcomeOf(shaper.OverShare).logged != problem.QueueBytesFull {
		t.Error("such a refusal is not logged")
	}
}

// TestEveryOutcomeHasARow: whatever the queue decides has an answer. An outcome of a later version
// is a fault, and no 202.
func TestEveryOutcomeHasARow(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../shaper/admission.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || fmt.Sprint(v.Type) != "Outcome" {
			return true
		}
		declared++
		name, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil || !slices.ContainsFunc(outcomes, func(o outcome) bool { return string(o.of) == name }) {
			t.Errorf("%s has no row: %v", name, err)
		}
		return true
	})
	if declared != len(outcomes) {
		t.Errorf("%d outcomes are declared, and %d have a row", declared, len(outcomes))
	}
	var p *problem.Problem
	if err := (&Server{}).refusal(shaper.Admission{Outcome: "later"}, "flow", "default", ""); !errors.As(err, &p) ||
		p.Status != http.StatusInternalServerError {
		t.Errorf("an unknown outcome is answered by %v", err)
	}
}
