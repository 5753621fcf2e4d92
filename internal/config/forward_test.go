package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/config"
)

const partner = `
routes:
  partner: { forward: "https://user:secret@api.partner.example/v2", wait: 5s, max_response: 64KiB, retention: 1h,
    max_response_action: fail, retry: { on: [503], unsafe: true, max_attempts: 3 } }
  jobs: { url: "http://127.0.0.1:9000/" }
`

// TestForward: a route of forwarded requests has settings of its own, and listeners.
func TestForward(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, partner+"forward: [ { listen: \"127.0.0.1:8090\", route: partner } ]\n")})
	r := got.Routes["partner"]
	if !r.Forwards() || r.Wait != 5*time.Second || r.MaxResponse != 64<<10 || r.Retention != time.Hour ||
		r.MaxResponseAction != "fail" || !r.Retry.Unsafe || r.Retry.MaxAttempts != 3 {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff([]int64{503}, r.Retry.On); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]config.ForwardListener{{Listen: "127.0.0.1:8090", Route: "partner"}}, got.Forward); diff != "" {
		t.Error(diff)
	}
	plain := mustLoad(t, config.Sources{File: write(t, "routes: { p: { forward: \"http://127.0.0.1:9000\", max_response: 2MiB } }\n")}).Routes["p"]
	if diff := cmp.Diff([]int64{502, 503, 504}, plain.Retry.On); diff != "" || plain.Wait != 50*time.Second || plain.MaxResponse != 2<<20 {
		t.Errorf("%+v %s", plain, diff)
	}
}

// TestForwardProblems: each mistake names the setting and its rule, and shows no secret.
func TestForwardProblems(t *testing.T) {
	for text, want := range map[string]string{
		`routes: { p: { forward: "ftp://x/" } }`:                                             "routes.p.forward: ",
		`routes: { p: { forward: "http://x/?q=1" } }`:                                        "routes.p.forward: ",
		`routes: { p: { forward: "http://x/", url: "http://y/" } }`:                          "routes.p.url: ",
		`routes: { p: { forward: "http://x/", asynq: { queue: q } } }`:                       "routes.p.asynq: ",
		`routes: { p: { forward: "http://x/", wait: 301s } }`:                                "routes.p.wait: ",
		`routes: { p: { forward: "http://x/", max_response: 9MiB } }`:                        "routes.p.max_response: ",
		`routes: { p: { forward: "http://x/", max_response: 1GB } }`:                         "routes.p.max_response: ",
		`routes: { p: { forward: "http://x/", retry: { on: [200] } } }`:                      "routes.p.retry.on[0]: ",
		`routes: { p: { forward: "http://x/", retry: { on: 503 } } }`:                        "routes.p.retry.on: ",
		`routes: { p: { forward: "http://x/", paths: true } }`:                               "routes.p.paths: ",
		`routes: { p: { asynq: { queue: q }, paths: true } }`:                                "routes.p.paths: ",
		`routes: { p: { url: "http://x/", wait: 5s } }`:                                      "routes.p.wait: ",
		`routes: { p: { url: "http://x/", retry: { unsafe: true } } }`:                       "routes.p.retry.unsafe: ",
		partner + `forward: { listen: "127.0.0.1:8090" }`:                                    "forward: ",
		partner + `forward: [ { listen: "127.0.0.1:8090", route: jobs }]`:                    "forward[0].route: ",
		partner + `forward: [ { listen: "here", route: partner } ]`:                          "forward[0].listen: ",
		partner + `forward: [ { listen: "127.0.0.1:8080", route: partner } ]`:                "forward[0].listen: ",
		partner + `forward: [ { listen: "0.0.0.0:8090", route: partner, tls: off } ]`:        "forward[0].listen: ",
		partner + `forward: [ { listen: "127.0.0.1:8090", root: partner, route: partner } ]`: "forward[0].root: ",
	} {
		_, err := config.Load(config.Sources{File: write(t, text+"\n")})
		if ps := problems(t, err); len(ps) != 1 || !strings.HasPrefix(ps[0].String(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s:\n%v\nwant %s", text, err, want)
		}
	}
}
