package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/config"
)

// TestJobHeaders: a route lists headers that its jobs may set; one that Sluice or the route sets is
// a mistake.
func TestJobHeaders(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, `routes:
  a: { url: "http://x/", job_headers: [X-Request-Id, accept_language, Authorization] }
  b: { asynq: { queue: q }, job_headers: [X-Request-Id] }
  c: { url: "http://x/", job_headers: [] }
  d: { url: "http://x/" }
`)}).Routes
	for name, want := range map[string][]string{
		"a": {"X-Request-Id", "accept_language", "Authorization"}, "b": {"X-Request-Id"}, "c": nil, "d": nil,
	} {
		if !slices.Equal(got[name].JobHeaders, want) {
			t.Errorf("%s: %q, want %q", name, got[name].JobHeaders, want)
		}
	}
	for text, want := range map[string]string{
		`url: "http://x/", job_headers: X-A`:                                             "routes.p.job_headers: a text: must be a list",
		`url: "http://x/", job_headers: { X-A: 1 }`:                                      "routes.p.job_headers: a section: must be a list",
		`forward: "http://x/", job_headers: [X-A]`:                                       "routes.p.job_headers: a list: must not be set together with forward",
		`url: "http://x/", job_headers: [X-A, "X B"]`:                                    `routes.p.job_headers[1]: "X B": must be the name of a header`,
		`url: "http://x/", job_headers: [7 7]`:                                           `routes.p.job_headers[0]: "7 7": must be the name of a header`,
		`url: "http://x/", job_headers: [3]`:                                             `routes.p.job_headers[0]: 3: must be the name of a header`,
		`url: "http://x/", job_headers: [X-A, x_a]`:                                      `routes.p.job_headers[1]: "x_a": must not be repeated`,
		`url: "http://x/", job_headers: [host]`:                                          `routes.p.job_headers[0]: "host": must be another header`,
		`url: "http://x/", job_headers: [Transfer-Encoding]`:                             `routes.p.job_headers[0]: "Transfer-Encoding": must be another header`,
		`url: "http://x/", job_headers: [Content-Length]`:                                `routes.p.job_headers[0]: "Content-Length": must be another header`,
		`url: "http://x/", job_headers: [Sluice-Tenant]`:                                 `routes.p.job_headers[0]: "Sluice-Tenant": must be another header`,
		`url: "http://x/", job_headers: [webhook_id]`:                                    `routes.p.job_headers[0]: "webhook_id": must be another header`,
		`url: "http://x/", job_headers: [Content-Type]`:                                  `routes.p.job_headers[0]: "Content-Type": must be another header`,
		`url: "http://x/", headers: { X-Static: hunter2 }, job_headers: [X-A, x_static]`: `routes.p.job_headers[1]: "x_static": must be no header that the route sets itself`,
		`url: "http://user:hunter2@x/", job_headers: ["authorization"]`:                  `routes.p.job_headers[0]: "authorization": must be no header that the route sets itself`,
	} {
		_, err := config.Load(config.Sources{File: write(t, "routes: { p: { "+text+" } }\n")})
		if ps := problems(t, err); len(ps) != 1 || !strings.HasPrefix(ps[0].String(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
}
