package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/7509e464/sluice/internal/config"
)

// watched is the compose file with the profile.
func watched(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../docker-compose.yml"},
		cli.WithProfiles([]string{"observability"}))
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// readYAML reads a file; a key that the value does not have is a mistake.
func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestObservabilityProfile(t *testing.T) {
	plain, p := project(t), watched(t)
	pinned := regexp.MustCompile(`:v?\d+\.\d+\.\d+$`)
	for name, published := range map[string]string{"prometheus": "9090", "grafana": "3000"} {
		if _, err := plain.GetService(name); err == nil {
			t.Errorf("%s runs without the profile", name)
		}
		s, err := p.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		if !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %q is not pinned", name, s.Image)
		}
		if len(s.Ports) != 1 || s.Ports[0].HostIP != "127.0.0.1" || s.Ports[0].Published != published {
			t.Errorf("%s: ports %+v", name, s.Ports)
		}
		if s.HealthCheck == nil ||
			!strings.Contains(strings.Join(s.HealthCheck.Test, " "), "127.0.0.1:"+published) {
			t.Errorf("%s: health check %+v", name, s.HealthCheck)
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s (read only: %v): %v", name, filepath.Base(v.Source), v.ReadOnly, err)
			}
		}
	}
	grafana, err := p.GetService("grafana")
	if err != nil {
		t.Fatal(err)
	}
	home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if home == nil || !mounted(grafana, *home) {
		t.Errorf("the home dashboard is not mounted: %+v", grafana.Environment)
	}
}

// mounted reports whether there is a file of this repository at the path in the container.
func mounted(s types.ServiceConfig, path string) bool {
	return slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
		rest, under := strings.CutPrefix(path, v.Target)
		if !under || v.Type != types.VolumeTypeBind {
			return false
		}
		_, err := os.Stat(v.Source + rest)
		return err == nil
	})
}

// TestPrometheusScrapesEveryProcess: the targets of Prometheus are where the processes listen.
func TestPrometheusScrapesEveryProcess(t *testing.T) {
	var c struct {
		Global struct {
			ScrapeInterval     string `yaml:"scrape_interval"`
			EvaluationInterval string `yaml:"evaluation_interval"`
		}
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName string `yaml:"job_name"`
			DNS     []struct {
				Names           []string
				Type            string
				Port            int
				RefreshInterval string `yaml:"refresh_interval"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus/prometheus.yml", &c)
	settings, err := config.Load(config.Sources{File: "sluice.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	p := watched(t)
	prometheus, err := p.GetService("prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range c.RuleFiles {
		if !mounted(prometheus, file) {
			t.Errorf("%s is not mounted", file)
		}
	}
	if len(c.RuleFiles) == 0 || len(c.ScrapeConfigs) != 1 || c.ScrapeConfigs[0].JobName != "sluice" ||
		len(c.ScrapeConfigs[0].DNS) != 1 {
		t.Fatalf("%+v", c)
	}
	dns := c.ScrapeConfigs[0].DNS[0]
	if want := fmt.Sprintf("0.0.0.0:%d", dns.Port); settings.Metrics.Listen != want || dns.Type != "A" {
		t.Errorf("metrics.listen is %q, Prometheus asks %s", settings.Metrics.Listen, want)
	}
	for name, s := range p.Services {
		if serves := slices.Contains(s.Command, "serve"); serves != slices.Contains(dns.Names, name) {
			t.Errorf("%s serves: %v, it is scraped: %v", name, serves, !serves)
		}
		for _, port := range s.Ports {
			if int(port.Target) == dns.Port {
				t.Errorf("%s publishes its metrics", name)
			}
		}
	}
}

type rule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func TestRules(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	readYAML(t, "prometheus/rules.yml", &file)
	tests, err := os.ReadFile("prometheus/rules_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	duration, seen, tested := regexp.MustCompile(`^\d+[smh]$`), map[string]bool{}, 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			switch {
			case !strings.HasPrefix(r.Alert, "Sluice") || seen[r.Alert]:
				t.Errorf("alert %q in %s", r.Alert, g.Name)
			case r.For != "" && !duration.MatchString(r.For):
				t.Errorf("%s: for %q", r.Alert, r.For)
			case r.Labels["severity"] != "critical" && r.Labels["severity"] != "warning":
				t.Errorf("%s: labels %v", r.Alert, r.Labels)
			case r.Annotations["summary"] == "" || r.Annotations["description"] == "":
				t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
			case !balanced(r.Expr):
				t.Errorf("%s: %s", r.Alert, r.Expr)
			}
			seen[r.Alert] = true
			if strings.Contains(string(tests), `alertname="`+r.Alert+`"`) {
				tested++
			}
		}
	}
	if len(seen) < 20 || tested < 14 {
		t.Errorf("%d alerts, %d of them fire in rules_test.yml", len(seen), tested)
	}
	testRules(t, "prometheus/rules_test.yml")
}

// testRules evaluates the expressions by Prometheus's own tool.
func testRules(t *testing.T, file string) {
	t.Helper()
	if out, err := exec.Command("promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool, of Debian's package prometheus: %v\n%s", err, out)
	}
}

// balanced reports whether every bracket of an expression is closed.
func balanced(expr string) bool {
	var open []rune
	closes := map[rune]rune{')': '(', ']': '[', '}': '{'}
	quoted := false
	for _, c := range expr {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case strings.ContainsRune("([{", c):
			open = append(open, c)
		case closes[c] != 0:
			if len(open) == 0 || open[len(open)-1] != closes[c] {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return expr != "" && !quoted && len(open) == 0
}

// TestDashboard: the panels do not lie over one another, and all ask the source that is
// provisioned.
func TestDashboard(t *testing.T) {
	raw, err := os.ReadFile("grafana/dashboards/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	type source struct{ UID string }
	var d struct {
		UID, Title string
		Panels     []struct {
			ID          int
			Type, Title string
			Datasource  *source
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct {
				Expr       string
				Datasource source
			}
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `yaml:"isDefault"`
			Editable                     bool
		}
	}
	readYAML(t, "grafana/provisioning/datasources/prometheus.yml", &sources)
	var dashboards struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type      string
			DisableDeletion bool `yaml:"disableDeletion"`
			AllowUIUpdates  bool `yaml:"allowUiUpdates"`
			Options         struct{ Path string }
		}
	}
	readYAML(t, "grafana/provisioning/dashboards/sluice.yml", &dashboards)
	if grafana, err := watched(t).GetService("grafana"); err != nil ||
		!mounted(grafana, dashboards.Providers[0].Options.Path+"/sluice.json") {
		t.Errorf("the dashboard is not where Grafana looks: %v", err)
	}
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" ||
		d.UID == "" || d.Title == "" {
		t.Fatalf("%+v, dashboard %q %q", sources, d.UID, d.Title)
	}
	cells, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %q at %d, %d", p.Title, other, x, y)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource == nil || p.Datasource.UID != sources.Datasources[0].UID {
			t.Errorf("%s: %+v", p.Title, p)
		}
		for _, target := range p.Targets {
			if !balanced(target.Expr) || target.Datasource.UID != sources.Datasources[0].UID {
				t.Errorf("%s: %s", p.Title, target.Expr)
			}
		}
	}
	if len(d.Panels) < 25 {
		t.Errorf("%d panels", len(d.Panels))
	}
}
