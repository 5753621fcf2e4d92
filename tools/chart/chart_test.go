// Package chart tests the Helm chart, deploy/helm: what it renders is strictly what Kubernetes
// knows, and fits the program.
//
// It is a module of its own, because Helm and the types of Kubernetes take minutes to compile.
package chart

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/7509e464/sluice/internal/config"
)

const directory = "../../deploy/helm"

// objects are what a release of the chart consists of.
type objects struct {
	configs     []corev1.ConfigMap
	services    []corev1.Service
	deployments []appsv1.Deployment
	stateful    []appsv1.StatefulSet
	budgets     []policyv1.PodDisruptionBudget
	policies    []networkingv1.NetworkPolicy
	ingresses   []networkingv1.Ingress
	others      []other
	notes       string
}

// other is an object of the Prometheus operator.
type other struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              map[string]any `json:"spec"`
}

// render renders the chart of a release with values in YAML. The error may be that of the schema.
func render(release, values string) (o objects, err error) {
	c, err := loader.LoadDir(directory)
	if err != nil {
		return o, err
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return o, err
	}
	all, err := chartutil.ToRenderValues(c, given, chartutil.ReleaseOptions{
		Name: release, Namespace: "orders", Revision: 1, IsInstall: true,
	}, chartutil.DefaultCapabilities)
	if err != nil {
		return o, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return o, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			o.notes = files[name]
			continue
		}
		for document := range strings.SplitSeq("\n"+files[name], "\n---\n") {
			if err := o.add(document); err != nil {
				return o, err
			}
		}
	}
	return o, nil
}

// add decodes an object strictly: a field that Kubernetes does not know is an error.
func (o *objects) add(document string) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
		return err
	}
	strictly := func(into any) error { return yaml.UnmarshalStrict([]byte(document), into) }
	switch kind.Kind {
	case "":
		return nil
	case "ConfigMap":
		return appended(&o.configs, strictly)
	case "Service":
		return appended(&o.services, strictly)
	case "Deployment":
		return appended(&o.deployments, strictly)
	case "StatefulSet":
		return appended(&o.stateful, strictly)
	case "PodDisruptionBudget":
		return appended(&o.budgets, strictly)
	case "NetworkPolicy":
		return appended(&o.policies, strictly)
	case "Ingress":
		return appended(&o.ingresses, strictly)
	}
	return appended(&o.others, strictly)
}

func appended[T any](list *[]T, decode func(into any) error) error {
	var one T
	if err := decode(&one); err != nil {
		return err
	}
	*list = append(*list, one)
	return nil
}

func rendered(t *testing.T, release, values string) objects {
	t.Helper()
	o, err := render(release, values)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const everything = `
secret: sluice
files: sluice-files
config: |
  store: { environment: production }
  auth: { mode: keys }
  routes:
    default: { url: "http://orders:9000/", rate: 50/s, secrets: ["${file:signing}"] } # 1000000 as it is
    partner: { forward: "https://partner.example/" }
  forward: [ { listen: "0.0.0.0:8090", route: partner, tls: off } ]
  tenants: { defaults: { rate: 10/s, capacity: 1000000 } }
redis: { sample: true }
tls: { secret: sluice-tls }
image: { repository: registry.example/sluice, tag: v1, pullSecrets: [registry] }
api: { replicas: 3, forward: [8090], ingress: { host: jobs.example, className: nginx, tlsSecret: jobs } }
networkPolicy:
  enabled: true
  operators: [{ podSelector: { matchLabels: { team: operators } } }]
  monitoring: [{ namespaceSelector: { matchLabels: { name: monitoring } } }]
monitoring: { serviceMonitor: true, rules: true, dashboard: true, labels: { release: prometheus } }
pods:
  annotations: { team: orders }
  labels: { cost-center: orders }
  nodeSelector: { disk: ssd }
  tolerations: [{ key: dedicated, operator: Exists }]
  affinity: { nodeAffinity: {} }
  priorityClassName: high
  terminationGracePeriodSeconds: 320
`

// least are the values that must be set.
const least = `
secret: sluice
config: |
  auth: { mode: keys }
  routes: { default: { url: "http://orders:9000/orders", rate: 50/s } }
`

// releases are sets of values, by name.
var releases = map[string]string{
	"least":      least,
	"redis":      least + "redis: { url: 'redis://redis:6379/0' }",
	"cluster":    least + "redis: { url: 'rediss+cluster://a:6379?addr=b:6379' }",
	"sentinel":   least + "redis: { url: 'redis+sentinel://a:26379/0?master_name=main&addr=b:26379' }",
	"everything": everything,
}

// TestChart checks what the chart makes of each set of values: selectors find their pods, ports and
// probes exist, and the program accepts the configuration with the variables.
func TestChart(t *testing.T) {
	for name, values := range releases {
		for _, release := range []string{"sluice", "orders", strings.Repeat("r", 53)} {
			t.Run(name+"/"+release, func(t *testing.T) {
				o := rendered(t, release, values)
				checkNames(t, o)
				checkSelectors(t, o)
				if len(o.deployments) != 2 {
					t.Fatalf("%d deployments", len(o.deployments))
				}
				for _, d := range o.deployments {
					checkPod(t, o, d.Spec.Template)
				}
				if !strings.Contains(o.notes, "port-forward") {
					t.Errorf("the notes: %q", o.notes)
				}
			})
		}
	}
}

func checkNames(t *testing.T, o objects) {
	t.Helper()
	seen := map[string]bool{}
	check := func(kind string, m metav1.ObjectMeta) {
		if problems := validation.IsDNS1035Label(m.Name); len(problems) > 0 || seen[kind+m.Name] {
			t.Errorf("%s %q: %v, twice %v", kind, m.Name, problems, seen[kind+m.Name])
		}
		seen[kind+m.Name] = true
		for key, value := range m.Labels {
			if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
				t.Errorf("%s %s: label %s: %v", kind, m.Name, key, problems)
			}
		}
	}
	for _, x := range o.configs {
		check("config", x.ObjectMeta)
	}
	for _, x := range o.services {
		check("service", x.ObjectMeta)
	}
	for _, x := range o.deployments {
		check("deployment", x.ObjectMeta)
	}
	for _, x := range o.stateful {
		check("stateful", x.ObjectMeta)
	}
	for _, x := range o.policies {
		check("policy", x.ObjectMeta)
	}
}

// pods are the templates of all pods.
func (o objects) pods() (all []corev1.PodTemplateSpec) {
	for _, d := range o.deployments {
		all = append(all, d.Spec.Template)
	}
	for _, s := range o.stateful {
		all = append(all, s.Spec.Template)
	}
	return all
}

// selected are the pods that have the labels.
func (o objects) selected(by map[string]string) (found []corev1.PodTemplateSpec) {
	for _, p := range o.pods() {
		if labels.SelectorFromSet(by).Matches(labels.Set(p.Labels)) {
			found = append(found, p)
		}
	}
	return found
}

func checkSelectors(t *testing.T, o objects) {
	t.Helper()
	for _, s := range o.services {
		pods := o.selected(s.Spec.Selector)
		if want := map[bool]int{true: 2, false: 1}[s.Spec.ClusterIP == "None"]; len(pods) != want {
			t.Errorf("service %s selects %d kinds of pods, want %d", s.Name, len(pods), want)
		}
		for _, p := range pods {
			for _, port := range s.Spec.Ports {
				if !hasPort(p, port.TargetPort.StrVal) {
					t.Errorf("service %s: no port %q", s.Name, port.TargetPort.StrVal)
				}
			}
		}
	}
	for _, d := range o.deployments {
		if !labels.SelectorFromSet(d.Spec.Selector.MatchLabels).Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("%s does not select its pods", d.Name)
		}
	}
	for _, b := range o.budgets {
		if n := len(o.selected(b.Spec.Selector.MatchLabels)); n != 1 {
			t.Errorf("budget %s is for %d kinds of pods", b.Name, n)
		}
	}
	for _, p := range o.policies {
		pods := o.selected(p.Spec.PodSelector.MatchLabels)
		if len(pods) != 1 {
			t.Errorf("policy %s is for %d kinds of pods", p.Name, len(pods))
			continue
		}
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				if len(rule.From) == 0 || !hasPort(pods[0], port.Port.StrVal) {
					t.Errorf("policy %s: everybody may come in, or there is no such port: %+v", p.Name, rule)
				}
			}
		}
	}
}

// TestForwardPorts: what the values list as ports of forward, clients can reach.
func TestForwardPorts(t *testing.T) {
	o := rendered(t, "sluice", everything)
	for _, s := range o.services {
		if has := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == 8090 }); has != (s.Name == "sluice") {
			t.Errorf("service %s has the port: %v", s.Name, has)
		}
	}
	for _, p := range o.policies {
		if p.Name == "sluice-api" && len(p.Spec.Ingress[0].Ports) != 2 {
			t.Errorf("ports of clients: %+v", p.Spec.Ingress[0].Ports)
		}
	}
}

func hasPort(p corev1.PodTemplateSpec, name string) bool {
	return slices.ContainsFunc(p.Spec.Containers[0].Ports, func(port corev1.ContainerPort) bool { return port.Name == name })
}

// checkPod starts, in effect, the program with the arguments and variables of a pod.
func checkPod(t *testing.T, o objects, p corev1.PodTemplateSpec) {
	t.Helper()
	role, c := p.Labels["app.kubernetes.io/component"], p.Spec.Containers[0]
	if want := []string{"serve", "--config", "/etc/sluice/sluice.yaml", "--roles", role}; !slices.Equal(c.Args, want) {
		t.Errorf("%s: arguments %q, want %q", role, c.Args, want)
	}
	environ := []string{ // of the Secret
		"SLUICE_ADMIN_TOKEN=0123456789abcdef0123456789abcdef", "SLUICE_REDIS_URL=redis://:password@redis:6379/0",
	}
	known := map[string]bool{}
	for _, s := range config.Settings() {
		known[s.Env()] = true
	}
	for _, e := range c.Env {
		environ = append(environ, e.Name+"="+strings.ReplaceAll(e.Value, "/etc/sluice-tls", tlsFiles))
		if !known[e.Name] {
			t.Errorf("%s: the program does not read %s", role, e.Name)
		}
	}
	directory := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(directory, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range o.configs {
		if text, ok := m.Data["sluice.yaml"]; ok {
			write("sluice.yaml", text)
		}
	}
	for _, source := range p.Spec.Volumes[0].Projected.Sources {
		if source.Secret != nil {
			write("signing", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
			for _, item := range source.Secret.Items {
				t.Errorf("%s: only %s of the Secret is there", role, item.Key)
			}
		}
	}
	loaded, err := config.Load(config.Sources{File: filepath.Join(directory, "sluice.yaml"), Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for _, port := range c.Ports {
		ports[port.Name] = "0.0.0.0:" + resource.NewQuantity(int64(port.ContainerPort), resource.DecimalSI).String()
	}
	if role == "worker" {
		ports["api"] = loaded.API.Listen // which it does not open
	}
	if loaded.API.Listen != ports["api"] || loaded.Admin.Listen != ports["admin"] || loaded.Metrics.Listen != ports["metrics"] {
		t.Errorf("%s: the ports are %v, the listeners %s, %s, %s", role, ports,
			loaded.API.Listen, loaded.Admin.Listen, loaded.Metrics.Listen)
	}
	scheme := corev1.URISchemeHTTP
	if loaded.Admin.TLS.On() {
		scheme = corev1.URISchemeHTTPS
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		get := probe.HTTPGet
		if !adminPaths[get.Path] || get.Port.StrVal != "admin" || get.Scheme != scheme {
			t.Errorf("%s: the probe %+v is not one of the admin listener by %s", role, get, scheme)
		}
	}
	grace := *p.Spec.TerminationGracePeriodSeconds
	if c.Lifecycle != nil {
		grace -= c.Lifecycle.PreStop.Sleep.Seconds
	}
	if grace < 30 {
		t.Errorf("%s: %d s do not cover the 20 s that deliveries may take", role, grace)
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || !*p.Spec.SecurityContext.RunAsNonRoot ||
		*p.Spec.AutomountServiceAccountToken || *p.Spec.EnableServiceLinks {
		t.Errorf("%s: the pod may do more than it needs: %+v", role, s)
	}
	if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
		t.Errorf("%s has a limit of processor time", role)
	}
}

// TestConfigText: the text of the configuration arrives as it is, with comments and large numbers.
func TestConfigText(t *testing.T) {
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(everything), &given); err != nil {
		t.Fatal(err)
	}
	for _, m := range rendered(t, "sluice", everything).configs {
		if text, ok := m.Data["sluice.yaml"]; ok && text != given["config"] {
			t.Errorf("the configuration is %q, want %q", text, given["config"])
		}
	}
}

// TestMonitoring: rules and dashboard are those of deploy, and the operator's objects select them.
func TestMonitoring(t *testing.T) {
	o := rendered(t, "sluice", everything)
	var rules map[string]any
	raw, err := os.ReadFile("../../deploy/prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, &rules); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(rules)
	kinds := map[string]bool{}
	for _, x := range o.others {
		kinds[x.Kind] = true
		if x.Labels["release"] != "prometheus" {
			t.Errorf("%s lacks the label: %v", x.Kind, x.Labels)
		}
		if got, _ := json.Marshal(x.Spec); x.Kind == "PrometheusRule" && !bytes.Equal(got, want) {
			t.Errorf("the rules differ from those of deploy/prometheus")
		}
	}
	if !kinds["ServiceMonitor"] || !kinds["PrometheusRule"] {
		t.Errorf("there are %v", kinds)
	}
	dashboards := slices.DeleteFunc(o.configs, func(m corev1.ConfigMap) bool { return m.Labels["grafana_dashboard"] != "1" })
	dashboard, err := os.ReadFile("../../deploy/grafana/dashboards/sluice.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(dashboards) != 1 || dashboards[0].Data["sluice.json"] != string(dashboard) {
		t.Errorf("the dashboard differs from that of deploy/grafana, in %d objects", len(dashboards))
	}
	if len(rendered(t, "sluice", releases["least"]).others) != 0 {
		t.Error("there are objects of the Prometheus operator by default")
	}
}

// TestSelectorsStay: no upgrade changes by what a Deployment selects its pods, which Kubernetes
// refuses.
func TestSelectorsStay(t *testing.T) {
	before, after := rendered(t, "sluice", releases["least"]), rendered(t, "sluice", everything)
	for i, d := range before.deployments {
		want, _ := json.Marshal(d.Spec.Selector)
		if got, _ := json.Marshal(after.deployments[i].Spec.Selector); d.Name != after.deployments[i].Name || !bytes.Equal(got, want) {
			t.Errorf("%s selects %s, with other values %s", d.Name, want, got)
		}
	}
}

// TestValues: the schema refuses what would start a release that cannot work, and an upgrade that
// forgets a value does not replace the configuration by another.
func TestValues(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		{"config: c", "make a Secret that has SLUICE_ADMIN_TOKEN"},
		{"secret: s", "give the text of sluice.yaml"},
		{"{ secret: s, config: { routes: {} } }", "config"},
		{least + "replicas: 3", "replicas"},
		{least + "worker: { replicas: 0 }", "replicas"},
		{least + "worker: { resources: { requests: { cup: 1 } } }", "cup"},
		{least + "api: { service: { type: Loadbalancer } }", "type"},
		{least + "redis: { url: 'redis://:password@redis:6379' }", "url"},
		{least + "redis: { url: 'redis-sentinel://a:26379/orders' }", "url"},
		{least + "redis: { url: 'redis://redis:6379', sample: true }", "redis.sample and redis.url"},
		{least + "redis: { storage: 10Gib }", "storage"},
		{least + "api: { forward: [partner] }", "forward"},
	} {
		if _, err := render("sluice", tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error about %s", tt.values, err, tt.want)
		}
	}
}
