package deploy_test

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/7509e464/sluice/internal/config"
)

// manifest is what the tests need of a Kubernetes object.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
		Ports []struct {
			Name       string
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type pod struct {
	GracePeriod int `yaml:"terminationGracePeriodSeconds"`
	Volumes     []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
	}
	Containers []container
}

type container struct {
	Args []string
	Env  []struct {
		Name      string
		ValueFrom struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	LivenessProbe  probe `yaml:"livenessProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	Lifecycle      struct {
		PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func manifests(t *testing.T) (all []manifest) {
	t.Helper()
	f, err := os.Open("kubernetes/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := yaml.NewDecoder(f); ; {
		var m manifest
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// environment is what the Secret gives to the processes.
var environment = []string{"SLUICE_ADMIN_TOKEN=0123456789abcdef"}

// loadText reads a configuration from text.
func loadText(t *testing.T, text string) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: file, Environ: environment})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// adminPaths are the paths of the admin listener.
func adminPaths(t *testing.T) map[string]any {
	t.Helper()
	raw, err := os.ReadFile("../docs/openapi-admin.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal(raw, &document); err != nil {
		t.Fatal(err)
	}
	return document.Paths
}

// knownVariable reports whether the program reads the variable.
func knownVariable(name string) bool {
	return slices.ContainsFunc(config.Settings(), func(s config.Setting) bool { return s.Env() == name })
}

// TestKubernetes checks the manifests against the program: the configuration is accepted, the ports
// are those of its listeners, and the probes, the flags and the variables exist.
func TestKubernetes(t *testing.T) {
	all, paths := manifests(t), adminPaths(t)
	var c config.Config
	ports := map[string]int{}
	for _, m := range all {
		if m.Kind == "ConfigMap" {
			c = loadText(t, m.Data["sluice.yaml"])
		}
	}
	for name, address := range map[string]string{
		"api": c.API.Listen, "admin": c.Admin.Listen, "metrics": c.Metrics.Listen,
	} {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host != "0.0.0.0" {
			t.Errorf("the listener %s at %q cannot be reached from outside its pod: %v", name, address, err)
		}
		ports[name], _ = strconv.Atoi(port)
	}
	roles := map[string]bool{}
	for _, m := range all {
		switch m.Kind {
		case "Service":
			for _, p := range m.Spec.Ports {
				if ports[p.TargetPort] == 0 {
					t.Errorf("service %s: no listener %q", m.Metadata.Name, p.TargetPort)
				}
			}
		case "Deployment":
			p := m.Spec.Template.Spec
			role := m.Spec.Template.Metadata.Labels["role"]
			roles[role] = true
			checkPod(t, role, p, ports, paths)
		}
	}
	if !roles["api"] || !roles["worker"] {
		t.Errorf("there are deployments for the roles %v", roles)
	}
}

func checkPod(t *testing.T, role string, p pod, ports map[string]int, paths map[string]any) {
	t.Helper()
	s := p.Containers[0]
	want := []string{"serve", "--config", "/etc/sluice/sluice.yaml", "--roles", role}
	if !slices.Equal(s.Args, want) {
		t.Errorf("%s: arguments %v, want %v", role, s.Args, want)
	}
	if len(s.VolumeMounts) != 1 || s.VolumeMounts[0].MountPath != filepath.Dir(s.Args[2]) ||
		p.Volumes[0].Name != s.VolumeMounts[0].Name {
		t.Errorf("%s: %+v of %+v does not hold the configuration", role, s.VolumeMounts, p.Volumes)
	}
	if grace := p.GracePeriod - s.Lifecycle.PreStop.Sleep.Seconds; grace < 30 {
		t.Errorf("%s: %d s do not cover the 20 s that deliveries may take", role, grace)
	}
	for _, port := range s.Ports {
		if ports[port.Name] != port.ContainerPort {
			t.Errorf("%s: port %s is %d, the listener has %d", role, port.Name, port.ContainerPort, ports[port.Name])
		}
	}
	for _, probe := range []probe{s.LivenessProbe, s.ReadinessProbe} {
		if paths[probe.HTTPGet.Path] == nil || probe.HTTPGet.Port != "admin" {
			t.Errorf("%s: the probe %+v is not one of the admin listener", role, probe.HTTPGet)
		}
	}
	for _, e := range s.Env {
		if !knownVariable(e.Name) || !slices.ContainsFunc(environment, func(pair string) bool {
			return strings.HasPrefix(pair, e.Name+"=")
		}) {
			t.Errorf("%s: the program does not read %s", role, e.Name)
		}
	}
}

// TestSystemdUnit checks that the unit starts the program as it is, and gives it time to stop.
func TestSystemdUnit(t *testing.T) {
	raw, err := os.ReadFile("systemd/sluice.service")
	if err != nil {
		t.Fatal(err)
	}
	unit, section := map[string]string{}, ""
	for line := range strings.Lines(string(raw)) {
		switch line = strings.TrimSpace(line); {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = line
		default:
			key, value, found := strings.Cut(line, "=")
			if !found || section == "" {
				t.Errorf("%q is no setting", line)
			}
			unit[section+key] = value
		}
	}
	for key, want := range map[string]string{
		"ExecStart":      "/usr/local/bin/sluice serve --config /etc/sluice/sluice.yaml",
		"TimeoutStopSec": "30s", "RestartPreventExitStatus": "2", "Restart": "always",
	} {
		if got := unit["[Service]"+key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	name, dir, _ := strings.Cut(unit["[Service]Environment"], "=")
	if !knownVariable(name) || dir != "/var/lib/"+unit["[Service]StateDirectory"] {
		t.Errorf("the environment %s=%s is not that of the program, or no directory of the unit", name, dir)
	}
}
