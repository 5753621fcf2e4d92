package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

type routeTestCmd struct {
	Name    string   `arg:"" help:"Name of the route."`
	Config  string   `short:"c" placeholder:"FILE" env:"SLUICE_CONFIG" help:"Configuration file (YAML)."`
	Route   []string `name:"route" placeholder:"NAME=URL" help:"Route with this URL, as in sluice serve; repeatable."`
	Path    string   `placeholder:"PATH" help:"Path below the URL of the upstream, such as /orders/17."`
	Method  string   `placeholder:"METHOD" help:"Method of a request to a route with forward [GET, with --payload POST]."`
	Payload string   `placeholder:"TEXT" help:"Body of the request [{}; none with forward]."`

	Header cli.Headers `sep:"none" placeholder:"NAME:VALUE" help:"Header as of a job, if the route lists it in job_headers; of the client with forward. Repeatable."`

	JSON bool `help:"Print JSON."`
}

func (routeTestCmd) Help() string {
	return `Example:
  sluice route test partner --config sluice.yaml
  sluice route test partner --config sluice.yaml --path /orders/17 --payload '{"qty":1}'

The command makes one real request to the upstream, as a worker would for a job of the tenant
sluice-test: with the method, the headers, the token, the certificate and the proxy of the route. It
needs neither a server nor Redis, and no rate holds it back. An upstream that stores orders stores
this one.

It prints what was sent, the status and the beginning of the answer, and how long each part took.
Values of the route's headers, and of others with the name of a credential, are hidden.

Exit codes: 0 a job would have succeeded, 1 it would not, 2 bad usage or bad configuration.

Next: sluice route list shows how the deliveries of a running server end.`
}

// routeTrial is what --json prints.
type routeTrial struct {
	Route   string              `json:"route"`
	Method  string              `json:"method"`
	URL     string              `json:"url"`
	Sent    map[string][]string `json:"sent,omitempty"` // headers
	Status  int                 `json:"status,omitempty"`
	Outcome string              `json:"outcome"` // succeeded, retry, dead or held
	Problem string              `json:"problem,omitempty"`
	Detail  string              `json:"detail,omitempty"`
	Answer  string              `json:"answer,omitempty"`
	TookMS  map[string]float64  `json:"took_ms"`
}

func (c *routeTestCmd) Run(a *cli.App) error {
	if c.Config == "" && len(c.Route) == 0 {
		return cli.Usagef("--config: no configuration file is given")
	}
	cfg, err := config.Load(config.Sources{File: c.Config, Environ: a.Environ, Routes: c.Route})
	if err != nil {
		return err
	}
	route, known := cfg.Routes[c.Name]
	switch {
	case !known:
		return cli.Usagef("NAME: %s: %s", cli.Plain(c.Name), shaper.OneOf("the routes: ", c.Name, slices.Sorted(maps.Keys(cfg.Routes))))
	case route.Asynq.Queue != "":
		return cli.Usagef("NAME: %s: must be a route with url or forward: asynq calls no upstream", cli.Plain(c.Name))
	}
	if rule := httpmsg.CheckPath(c.Path); c.Path != "" && rule != "" {
		return cli.Usagef("--path: %s: %s", cli.Plain(c.Path), rule)
	}
	if c.Path != "" && !route.Forwards() && !route.Paths {
		return cli.Usagef("--path: %s: must be absent: the route %s has no paths: true", cli.Plain(c.Path), cli.Plain(c.Name))
	}
	payload, method := []byte(c.Payload), c.Method
	switch {
	case !route.Forwards() && c.Method != "":
		return cli.Usagef("--method: %s: must be absent without forward: the method is a setting of the route", cli.Plain(c.Method))
	case !route.Forwards():
		payload, method = []byte(cmp.Or(c.Payload, "{}")), route.Method
	case method == "" && c.Payload != "":
		method = "POST"
	}
	method = cmp.Or(method, "GET")
	if rule := httpmsg.CheckMethod(method); rule != "" {
		return cli.Usagef("--method: %s: %s", cli.Plain(method), rule)
	}
	headers, err := c.headers(route)
	if err != nil {
		return err
	}
	done, err := process.WorkerRoute(route).Try(a.Ctx, worker.TrialRequest{
		Method: method, Path: c.Path, Headers: headers, Payload: payload,
	})
	if err != nil {
		return err
	}
	if err := context.Cause(a.Ctx); err != nil {
		return err
	}
	out := c.report(route, method, done)
	if c.JSON {
		err = cli.PrintJSON(a.Out, out)
	} else {
		c.print(a, out)
	}
	if err == nil && done.Event != shaper.Succeed {
		err = errors.New("the request failed: a job would not have succeeded" + nextFor(route, done))
	}
	return err
}

// headers returns those of the flag --header, which must obey the rules for a job's.
func (c *routeTestCmd) headers(route config.Route) (map[string]string, error) {
	headers, err := c.Header.Parse()
	if err != nil || route.Forwards() {
		return headers, err
	}
	var wrong string
	for name := range headers {
		if !slices.ContainsFunc(route.JobHeaders, func(of string) bool { return httpmsg.Is(name, of) }) {
			wrong = cli.Plain(name) + ": must be one that the route lists in job_headers"
		}
	}
	rule := httpmsg.CheckJobHeaders(headers, func(name, rule string) { wrong = cli.Plain(name) + ": " + rule })
	if wrong = cmp.Or(wrong, rule); wrong != "" {
		return nil, cli.Usagef("--header: %s", wrong)
	}
	return headers, nil
}

// outcomes are the ends of a trial by what they would mean for a job.
var outcomes = map[shaper.Event]string{
	shaper.Succeed: "succeeded", shaper.Retry: "retry", shaper.Die: "dead", shaper.Hold: "held", shaper.Release: "retry",
}

func (c *routeTestCmd) report(route config.Route, method string, t worker.Trial) routeTrial {
	base := route.Shown
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	out := routeTrial{
		Route: c.Name, Method: method, URL: strings.TrimRight(base, "/") + c.Path,
		Status: t.Status, Outcome: outcomes[t.Event], Problem: t.Problem, Detail: t.Detail, Answer: string(t.Answer),
		TookMS: map[string]float64{
			"token": ms(t.Phases.Token), "resolve": ms(t.Phases.Resolve), "connect": ms(t.Phases.Connect), "tls": ms(t.Phases.TLS),
			"answer": ms(t.Phases.Answer), "total": ms(t.Phases.Total),
		},
	}
	if c.Path == "" {
		out.URL = base
	}
	if route.OAuth2.TokenURL == "" {
		delete(out.TookMS, "token")
	}
	for name, values := range t.Sent {
		if out.Sent == nil {
			out.Sent = map[string][]string{}
		}
		_, set := route.Headers[name]
		set = set || slices.ContainsFunc(slices.Collect(maps.Keys(route.Headers)), func(of string) bool { return httpmsg.Is(name, of) })
		if set || httpmsg.IsCredential(name) {
			out.Answer, values = withoutValues(out.Answer, values), []string{hiddenValue}
		}
		out.Sent[name] = values
	}
	return out
}

// nextFor returns what may help after a request that failed, empty if nothing is known to.
func nextFor(route config.Route, t worker.Trial) string {
	switch {
	case strings.Contains(t.Problem, "TLS") && route.TLS.CA == "":
		return "; an authority that the system does not know needs tls.ca of the route"
	case t.Status == http.StatusUnauthorized, t.Status == http.StatusForbidden:
		return "; the upstream refuses the credentials: see headers, oauth2 and tls of the route"
	}
	return ""
}

const hiddenValue = "(hidden)"

// withoutValues hides the values of headers in an answer, which may echo the request. Short ones
// may be in it by chance.
func withoutValues(answer string, values []string) string {
	for _, value := range values {
		_, credential, _ := strings.Cut(value, " ") // behind Bearer
		for _, secret := range []string{value, credential} {
			if len(secret) >= 6 {
				answer = strings.ReplaceAll(answer, secret, hiddenValue)
			}
		}
	}
	return answer
}

func (c *routeTestCmd) print(a *cli.App, t routeTrial) {
	fmt.Fprintf(a.Out, "%s %s\n", t.Method, cli.Plain(t.URL))
	for _, name := range slices.Sorted(maps.Keys(t.Sent)) {
		fmt.Fprintf(a.Out, "  %s: %s\n", cli.Plain(name), cli.OneLine(strings.Join(t.Sent[name], ", ")))
	}
	if t.Sent == nil {
		fmt.Fprintln(a.Out, "  nothing was sent")
	}
	if t.Status != 0 {
		fmt.Fprintf(a.Out, "\nstatus   %d\n", t.Status)
	} else {
		fmt.Fprintln(a.Out, "\nstatus   none: there was no answer")
	}
	fmt.Fprintf(a.Out, "outcome  %s\n", t.Outcome)
	if t.Problem != "" {
		fmt.Fprintf(a.Out, "problem  %s\n", cli.OneLine(t.Problem))
	}
	if t.Detail != "" {
		fmt.Fprintf(a.Out, "detail   %s\n", cli.OneLine(t.Detail))
	}
	var took []string
	for _, phase := range []string{"token", "resolve", "connect", "tls", "answer", "total"} {
		if ms := t.TookMS[phase]; ms > 0 {
			took = append(took, fmt.Sprintf("%s %.1f ms", phase, ms))
		}
	}
	fmt.Fprintf(a.Out, "took     %s\n", strings.Join(took, ", "))
	if t.Answer != "" {
		fmt.Fprintf(a.Out, "\n%s\n", cli.Printable(strings.TrimRight(t.Answer, "\n")))
	}
}
