package process_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md anew")

const (
	metricsPage  = "../../../../docs/metrics.md"
	metricsBegin = "<!-- metrics: written by go test ./cmd/sluice/internal/process -run TestMetricsPage " +
		"-update -->\n"
	metricsEnd = "<!-- end of metrics -->\n"
)

// families is a scrape: what the two roles export, together, by name.
type families map[string]*family

type family struct {
	name, help, kind string
	series           int
	labels           map[string][]string // values, one for each series
}

// clientCertificate writes a certificate and its key, which httptest has, into a directory.
func clientCertificate(t *testing.T, dir string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"client.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"client.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// scrapeProcesses runs one process of each role, with everything that has metrics, on one Redis,
// lets a job succeed, one die and one wait, and scrapes both.
func scrapeProcesses(t *testing.T) families {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sluice-Job-Type") == "dies" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(upstream.Close)
	redis := redistest.Start(t)
	var started []process.Running
	for _, r := range []process.Roles{{API: true}, {Worker: true}} {
		file := filepath.Join(t.TempDir(), "sluice.yaml")
		clientCertificate(t, filepath.Dir(file))
		text := fmt.Sprintf(`
redis: { url: %q }
api: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0", tls: { cert: client.pem, key: client.key } }
metrics: { listen: "127.0.0.1:0", tenants: top:5 }
auth: { mode: guest }
routes:
  default: { url: %q }
  shared: { url: %[2]q }
  passed: { forward: %[2]q, wait: 5s }
  secured: { url: %[2]q, oauth2: { token_url: %[2]q, client_id: c, client_secret: s }, tls: { cert: client.pem, key: client.key } }
pools: { erp: { rate: 100/s, routes: [shared] } }
guards: { all: { rate: 1000/s, by: [tenant] } }
traces: { endpoint: %[2]q }
`, redis.URL(), upstream.URL)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		load := func() (config.Config, error) { return config.Load(config.Sources{File: file}) }
		cfg, err := load()
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		started = append(started, processtest.Launch(t, &process.Process{
			Config: cfg, Roles: r, Log: log, Reloader: process.NewReloader(file, cfg, load, log),
		}))
	}
	hc := &http.Client{}
	t.Cleanup(hc.CloseIdleConnections)
	jobs, err := client.New("http://"+started[0].API.String(), "", hc)
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]string{"lives": "succeeded", "dies": "dead"} {
		got, err := jobs.Submit(t.Context(), client.Submission{
			Submission: wire.Submission{Type: kind, Payload: json.RawMessage("1")}, Wait: 20 * time.Second,
		})
		if err != nil || got.Job.State != want {
			t.Fatalf("%s: %+v, %v", kind, got.Job, err)
		}
	}
	later := client.Submission{Submission: wire.Submission{
		Type: "lives", Payload: json.RawMessage("1"), DelayMS: 600_000,
	}}
	// A queue that is not empty, so that its tenant is shown.
	if _, err := jobs.Submit(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	all := families{}
	for _, r := range started {
		if r.Metrics == nil {
			t.Fatal("no listener of metrics")
		}
		var page string
		queuetest.Await(t, "figures of tenants", func() bool { // Redis may answer too late for a scrape
			page = scrape(t, hc, r)
			return strings.Contains(page, "sluice_tenant_capacity{")
		})
		parser := expfmt.NewTextParser(model.UTF8Validation)
		got, err := parser.TextToMetricFamilies(strings.NewReader(page))
		if err != nil {
			t.Fatalf("%v: %s", err, page)
		}
		for name, f := range got {
			if !strings.HasPrefix(name, "sluice_") {
				continue
			}
			kind := strings.ToLower(f.GetType().String())
			if all[name] == nil {
				all[name] = &family{name: name, help: f.GetHelp(), kind: kind, labels: map[string][]string{}}
			}
			if all[name].help != f.GetHelp() || all[name].kind != kind {
				t.Errorf("%s is another thing in the other role", name)
			}
			for _, m := range f.GetMetric() {
				all[name].series++
				for _, l := range m.GetLabel() {
					all[name].labels[l.GetName()] = append(all[name].labels[l.GetName()], l.GetValue())
				}
			}
		}
	}
	return all
}

func scrape(t *testing.T, hc *http.Client, from process.Running) string {
	t.Helper()
	resp, err := hc.Get("http://" + from.Metrics.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: %s", resp.StatusCode, err, page)
	}
	return string(page)
}

// table is the reference of all metrics, in Markdown.
func (f families) table() string {
	var b strings.Builder
	b.WriteString("\n| name | type | labels | what it is |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(f[name].labels)) {
			labels = append(labels, "`"+label+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, f[name].kind,
			strings.Join(labels, ", "), f[name].help)
	}
	b.WriteString("\nValues of labels that are the same everywhere:\n\n| name | label | values |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		of := f[name].labels
		for _, label := range slices.Sorted(maps.Keys(of)) {
			if slices.Contains(closedLabels, label) {
				fmt.Fprintf(&b, "| `%s` | `%s` | `%s` |\n", name, label,
					strings.Join(slices.Compact(slices.Sorted(slices.Values(of[label]))), "`, `"))
			}
		}
	}
	return b.String() + "\n`reason` of `sluice_refusals_total` is the kind of a [problem](http.md#errors).\n\n"
}

// family is the one that a name in an expression is of: that of a histogram has three more names.
func (f families) family(name string) *family {
	if f[name] != nil {
		return f[name]
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, is := strings.CutSuffix(name, suffix); is && f[base] != nil && f[base].kind == "histogram" {
			return f[base]
		}
	}
	return nil
}

var (
	metricName = regexp.MustCompile(`\bsluice_[a-z0-9_]*[a-z0-9]`)
	selector   = regexp.MustCompile(`\b(sluice_[a-z0-9_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*(=~|!=|!~|=)\s*\\?"([^"\\]*)\\?"`)
	// What else begins like a metric: API keys, in examples.
	noMetrics = []string{"sluice_wrong"}
	// Labels whose values are not known beforehand.
	openLabels = []string{"tenant", "route", "pool", "instance", "le", "script", "listener"}
	// Labels with a series for each of their values from the start.
	closedLabels = []string{"by", "cause", "class", "decision", "fault", "kind", "outcome", "result"}
)

// TestMetricsPage holds the page, the program, and everything that names metrics together.
func TestMetricsPage(t *testing.T) {
	all := scrapeProcesses(t)
	content, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), metricsBegin)
	got, after, foundEnd := strings.Cut(rest, metricsEnd)
	if !found || !foundEnd {
		t.Fatalf("%s does not hold the lines\n%s%s", metricsPage, metricsBegin, metricsEnd)
	}
	if *update {
		if err := os.WriteFile(metricsPage, []byte(before+metricsBegin+all.table()+metricsEnd+after),
			0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(all.table(), got); diff != "" {
		t.Errorf("%s is not what is exported (go test ./cmd/sluice/internal/process -run TestMetricsPage "+
			"-update):\n%s", metricsPage, diff)
	}
	for name, f := range all {
		help := f.help
		if !strings.HasSuffix(help, ".") || strings.Count(help, ". ") > 0 {
			t.Errorf("%s: %q is not one sentence", name, help)
		}
		if counts := f.kind == "counter"; counts != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, f.kind)
		}
		if f.kind == "histogram" && !strings.HasSuffix(name, "_seconds") {
			t.Errorf("%s has no unit", name)
		}
		if n := f.series; n > 220 { // three faults of each script are the most
			t.Errorf("%s has %d series", name, n)
		}
	}

	docs, err := filepath.Glob("../../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, file := range append(docs, "../../../../README.md", "../../../../CHANGELOG.md",
		"../../../../deploy/prometheus/rules.yml", "../../../../deploy/prometheus/rules_test.yml",
		"../../../../deploy/grafana/dashboards/sluice.json") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(raw), -1) {
			named++
			if all.family(name) == nil && !slices.Contains(noMetrics, name) {
				t.Errorf("%s names %s, which is not exported", filepath.Base(file), name)
			}
		}
		for _, found := range selector.FindAllStringSubmatch(string(raw), -1) {
			f := all.family(found[1])
			if f == nil {
				continue // reported above
			}
			for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
				label, values := m[1], strings.Split(m[3], "|")
				known := f.labels[label]
				for _, value := range values {
					if len(known) == 0 && label != "instance" && label != "le" &&
						f.name != "sluice_route_breaker_held_total" ||
						!slices.Contains(openLabels, label) && !slices.Contains(known, value) {
						t.Errorf("%s asks %s for %s=%q; there are %q", filepath.Base(file), f.name,
							label, value, slices.Compact(slices.Sorted(slices.Values(known))))
					}
				}
			}
		}
	}
	if named < 200 {
		t.Errorf("%d names of metrics were found", named)
	}
}
