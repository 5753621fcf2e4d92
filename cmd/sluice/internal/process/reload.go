package process

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// pollInterval is the time between two polls of the configuration file. Unlike notifications, polls
// work on every file system and with the symbolic links that orchestrators swap. One is one system
// call.
const pollInterval = 500 * time.Millisecond

// Reloader applies what a changed configuration file, or a file that its settings refer to, may
// change while the process runs: the policies (defaults, tiers, tenants), how the upstreams of
// routes are called (config.Calls and secrets), and the files of listeners with TLS. A file with a
// mistake, or of another environment, is refused as a whole, and the former settings stay. The
// files of a listener without a mistake of their own are taken nevertheless: a certificate must not
// end because of a mistake elsewhere. All other settings are read at the start alone; the reloader
// warns if they differ.
type Reloader struct {
	path    string                        // empty: there are only files that settings refer to
	load    func() (config.Config, error) // reads all sources again
	set     func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error
	call    func(route string, r config.Route) error // changes how the upstream of a route is called
	called  func(routes map[string]config.Route)     // follows such a change
	secure  func(section string, t config.ListenerTLS)
	record  func(e FileEntry) // puts an entry into the audit; nil: there is none
	inForce config.Config
	log     *slog.Logger

	good prometheus.Gauge // 1 while the policies of the file are in force
	at   prometheus.Gauge // when they last came into force, in Unix seconds

	files      []string       // that settings refer to
	seen, read files          // at the last poll, and when they were last read
	noted      []string       // notes on the settings that were last read
	wanted     *config.Config // read, but not in force yet, because Redis was unreachable
	asked      bool           // by SIGHUP, which replaces the file of another process too
}

// NewReloader returns a reloader of the file at path, whose settings are in force.
func NewReloader(
	path string, inForce config.Config, load func() (config.Config, error), log *slog.Logger,
) *Reloader {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	r := &Reloader{
		path: path, inForce: inForce, load: load, log: log, files: inForce.Files, noted: inForce.Notes,
		good: gauge("sluice_config_last_reload_successful",
			"1 if the policies of the configuration file are in force, 0 if the file was refused since."),
		at: gauge("sluice_config_last_reload_success_timestamp_seconds",
			"When policies of the configuration file last came into force."),
	}
	r.inForce.Routes = maps.Clone(inForce.Routes) // the process reads its own
	r.inForce.Forward = slices.Clone(inForce.Forward)
	r.record = func(FileEntry) {}
	r.good.Set(1)
	r.at.SetToCurrentTime()
	r.seen = r.stat()
	r.read = r.seen
	return r
}

// run polls the file until ctx ends, and reads it at once on a signal.
func (r *Reloader) run(ctx context.Context, now <-chan os.Signal) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.poll(ctx)
		case <-now:
			r.asked = true
			r.reload(ctx)
		}
	}
}

// poll reads the file if it has changed since it was read, and not since the last poll: a file that
// still changes may be half written.
func (r *Reloader) poll(ctx context.Context) {
	before := r.seen
	r.seen = r.stat()
	switch {
	case r.wanted != nil:
		r.enforce(ctx)
	case (r.path == "" || r.seen[r.path] != nil) && r.seen.same(before) && !r.seen.same(r.read):
		r.reload(ctx)
	}
}

// files are the configuration file and those that it refers to, by path; nil where there is none.
type files map[string]fs.FileInfo

func (r *Reloader) stat() files {
	found := files{}
	for _, path := range append([]string{r.path}, r.files...) {
		found[path] = nil
		if info, err := os.Stat(path); err == nil {
			found[path] = info
		}
	}
	return found
}

func (f files) same(other files) bool { return maps.EqualFunc(f, other, sameFile) }

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// reload reads the file and applies its policies.
func (r *Reloader) reload(ctx context.Context) {
	r.read = r.stat()
	cfg, err := config.Config{}, r.readable()
	if err == nil {
		cfg, err = r.load()
		r.files = cfg.Files // the poll after the next reads again if they are others
		for _, section := range r.inForce.Renew(cfg) {
			r.secure(section, *r.inForce.Listeners()[section])
		}
	}
	if err == nil {
		err = r.ours(cfg)
	}
	if err == nil {
		err = r.whole(cfg)
	}
	if err != nil {
		r.wanted, r.asked = nil, false // the file has changed since
		r.good.Set(0)
		var problems shaper.Problems
		if !errors.As(err, &problems) {
			problems = shaper.Problems{{Field: "--config", Value: r.path, Rule: err.Error()}}
		}
		for _, p := range problems {
			r.log.Error("the configuration is refused; the former settings stay in force", "problem",
				p.String())
		}
		r.record(FileEntry{Action: "file.change", File: r.path, Outcome: "refused"})
		return
	}
	for _, note := range cfg.Notes {
		if !slices.Contains(r.noted, note) {
			r.log.Warn(note)
		}
	}
	r.noted = cfg.Notes
	r.callAnew(cfg.Routes)
	if differ := startOnly(r.inForce, cfg); len(differ) > 0 {
		r.log.Warn("these sections have changed and are read at the start alone; restart to apply them",
			"sections", strings.Join(differ, ", "))
	}
	r.wanted = &cfg
	r.enforce(ctx)
}

// callAnew changes how the upstreams are called whose settings differ.
func (r *Reloader) callAnew(routes map[string]config.Route) {
	changed := false
	for _, name := range slices.Sorted(maps.Keys(routes)) {
		before, known := r.inForce.Routes[name]
		after := routes[name]
		same := reflect.DeepEqual(before.Calls, after.Calls) && slices.Equal(before.Secrets, after.Secrets)
		elsewhere := before.URL != after.URL || before.Forward != after.Forward // its credentials are for others
		if !known || same || elsewhere || before.Asynq.Queue != "" || after.Asynq.Queue != "" {
			continue
		}
		if err := r.call(name, after); err != nil {
			r.log.Error("the upstream of a route is called as before", "route", name, "error", err)
			continue
		}
		before.Calls, before.Secrets = after.Calls, after.Secrets
		r.inForce.Routes[name], changed = before, true
		r.log.Info("the upstream of a route is called by new settings", "route", name)
		r.record(FileEntry{Action: "route.change", File: r.path, Outcome: audit.OK, Detail: map[string]any{"route": name}})
	}
	if changed {
		r.called(r.inForce.Routes)
	}
}

// readable refuses what cannot be read again, such as a pipe, which would hold up the stop of the
// process, and a file without settings: an editor, a full disk or a template that failed leaves one
// for a moment, and it would remove every tenant.
func (r *Reloader) readable() error {
	if r.path == "" {
		return nil
	}
	if info := r.read[r.path]; info != nil && !info.Mode().IsRegular() {
		return errors.New("must be a regular file to be read again")
	}
	content, err := os.ReadFile(r.path)
	if err == nil && config.IsEmpty(content) {
		return errors.New("must not be empty")
	}
	return nil // load reports what else is wrong
}

// ours refuses a file of another environment than the one that this process started with, even on
// SIGHUP: only the start compares the environment with that of the store.
func (r *Reloader) ours(cfg config.Config) error {
	if before, after := r.inForce.Store.Environment, cfg.Store.Environment; before != after {
		return shaper.Problems{{
			Field: "store.environment", Value: cmp.Or(after, "not set"), Rule: "must be " +
				cmp.Or(before, "not set") + ", as when this process started: restart to change it",
		}}
	}
	return nil
}

// fewTenants is how many tenants of the file may disappear at once without a signal.
const fewTenants = 10

// whole refuses a file that has lost more than half of its tenants, unless SIGHUP asks for it: it
// may have been cut off.
func (r *Reloader) whole(cfg config.Config) error {
	before, after := len(r.inForce.Tenants.Named), len(cfg.Tenants.Named)
	if lost := before - after; !r.asked && lost > fewTenants && after < lost {
		return shaper.Problems{{
			Field: "tenants", Value: strconv.Itoa(after), Rule: "must not be less than half of the " +
				strconv.Itoa(before) + " tenants in force: send SIGHUP to apply it all the same",
		}}
	}
	return nil
}

// enforce applies what was read. While Redis is unreachable, every poll tries again.
func (r *Reloader) enforce(ctx context.Context) {
	tenants := r.wanted.Tenants
	if !r.asked && reflect.DeepEqual(tenants, r.inForce.Tenants) {
		r.wanted = nil
		r.good.Set(1)
		return
	}
	err := r.set(ctx, tenants.Baseline(), tenants.Named)
	switch {
	case err == nil:
		r.log.Info("the policies of the configuration file are in force", "tenants", len(tenants.Named),
			"tiers", len(tenants.Tiers))
		before, after := differing(r.inForce.Tenants, tenants)
		r.record(FileEntry{Action: "file.change", File: r.path, Outcome: audit.OK, Before: before, After: after,
			Detail: map[string]any{"asked_by_signal": r.asked}})
		r.inForce.Tenants, r.wanted, r.asked = tenants, nil, false
		r.good.Set(1)
		r.at.SetToCurrentTime()
	case errors.Is(err, queue.ErrUnavailable):
		r.good.Set(0)
		if ctx.Err() == nil {
			r.log.Warn("redis does not answer; the policies of the configuration file are applied later",
				"error", err)
		}
	default:
		r.wanted, r.asked = nil, false
		r.good.Set(0)
		r.log.Error("the policies of the configuration file cannot be applied", "error", err)
	}
}

// FileEntry is an entry of the audit about the configuration file.
type FileEntry struct {
	Action, File, Outcome string
	Before, After, Detail any
}

// differing returns what two versions of the policies of a file have of their own: defaults, tiers,
// routes, pools and tenants that differ.
func differing(before, after config.Tenants) (own, others map[string]any) {
	own, others = map[string]any{}, map[string]any{}
	if !reflect.DeepEqual(before.Defaults, after.Defaults) {
		own["defaults"], others["defaults"] = before.Defaults, after.Defaults
	}
	split(own, others, "tiers", before.Tiers, after.Tiers)
	split(own, others, "tenants", before.Named, after.Named)
	split(own, others, "pools", before.Pools, after.Pools)
	return own, others
}

// split adds to own and others the entries of two maps that differ.
func split[V any](own, others map[string]any, name string, before, after map[string]V) {
	a, b := map[string]V{}, map[string]V{}
	for key, value := range before {
		if other, same := after[key]; !same || !reflect.DeepEqual(value, other) {
			a[key] = value
		}
	}
	for key, value := range after {
		if other, same := before[key]; !same || !reflect.DeepEqual(value, other) {
			b[key] = value
		}
	}
	if len(a)+len(b) > 0 {
		own[name], others[name] = a, b
	}
}

// startOnly returns the sections other than tenants, tiers and pools whose settings differ.
func startOnly(before, after config.Config) []string {
	var differ []string
	a, b := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if name != "Tenants" && name != "Notes" && name != "Files" && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			differ = append(differ, strings.ToLower(name))
		}
	}
	slices.Sort(differ)
	return differ
}
