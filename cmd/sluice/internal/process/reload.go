package process

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/cmd/sluice/config"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// lookEvery is how often the configuration file is looked at. It is looked at, not waited for: that
// works on every file system, over links that are swapped as orchestrators do, and costs one system
// call.
const lookEvery = 500 * time.Millisecond

// reloader puts the policies of a configuration file that has changed into force: defaults, tiers,
// tenants. A file with a mistake is refused as a whole, and the policies stay as they are. All
// other settings are read at the start alone; that they differ is said.
type reloader struct {
	path    string
	load    func() (config.Config, error) // reads all sources anew
	set     func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error
	inForce config.Config
	log     *slog.Logger

	good prometheus.Gauge // 1 while what the file says is in force
	at   prometheus.Gauge // when it last came into force, in Unix seconds

	seen, read fs.FileInfo    // at the last look, and when it was last read; nil when there was no file
	wanted     *config.Config // read, but not in force yet, because Redis was away
	asked      bool           // by a signal, which puts the file into force in the place of another process's
}

// NewReloader begins with the settings that a process was started with.
func NewReloader(path string, inForce config.Config, load func() (config.Config, error), log *slog.Logger) *reloader {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	r := &reloader{
		path: path, inForce: inForce, load: load, log: log,
		good: gauge("sluice_config_last_reload_successful", "1 if the policies of the configuration file are in force, 0 if the file was refused since."),
		at:   gauge("sluice_config_last_reload_success_timestamp_seconds", "When policies of the configuration file last came into force."),
	}
	r.good.Set(1)
	r.at.SetToCurrentTime()
	r.seen = r.stat()
	r.read = r.seen
	return r
}

// run looks at the file until ctx ends, and reads it at once when told to.
func (r *reloader) run(ctx context.Context, now <-chan os.Signal) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.look(ctx)
		case <-now:
			r.asked = true
			r.reload(ctx)
		}
	}
}

// look reads the file if it has changed since it was last read and has not while nobody looked: it
// may be half written.
func (r *reloader) look(ctx context.Context) {
	before := r.seen
	r.seen = r.stat()
	switch {
	case r.wanted != nil:
		r.enforce(ctx)
	case r.seen != nil && sameFile(before, r.seen) && !sameFile(r.read, r.seen):
		r.reload(ctx)
	}
}

func (r *reloader) stat() fs.FileInfo {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil
	}
	return info
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// reload reads the file and puts its policies into force.
func (r *reloader) reload(ctx context.Context) {
	r.read = r.stat()
	cfg, err := r.load()
	if err != nil {
		r.wanted = nil // what was read before is not what the file says any more
		r.good.Set(0)
		var problems shaper.Problems
		if !errors.As(err, &problems) {
			problems = shaper.Problems{{Field: "--config", Value: r.path, Rule: err.Error()}}
		}
		for _, p := range problems {
			r.log.Error("the configuration file is refused; the former policies stay in force", "problem", p.String())
		}
		return
	}
	if differ := startOnly(r.inForce, cfg); len(differ) > 0 {
		r.log.Warn("settings that are read at the start alone have changed; restart for them", "sections", strings.Join(differ, ", "))
	}
	r.wanted = &cfg
	r.enforce(ctx)
}

// enforce puts what was read into force; while Redis is away it is tried again at every look.
func (r *reloader) enforce(ctx context.Context) {
	tenants := r.wanted.Tenants
	if !r.asked && reflect.DeepEqual(tenants, r.inForce.Tenants) {
		r.wanted = nil
		r.good.Set(1)
		return
	}
	err := r.set(ctx, tenants.Baseline(), tenants.Named)
	switch {
	case err == nil:
		r.log.Info("the policies of the configuration file are in force", "tenants", len(tenants.Named), "tiers", len(tenants.Tiers))
		r.inForce.Tenants, r.wanted, r.asked = tenants, nil, false
		r.good.Set(1)
		r.at.SetToCurrentTime()
	case errors.Is(err, queue.ErrUnavailable):
		r.good.Set(0)
		if ctx.Err() == nil {
			r.log.Warn("the policies of the configuration file wait for redis", "error", err)
		}
	default:
		r.wanted = nil
		r.good.Set(0)
		r.log.Error("the policies of the configuration file cannot be put into force", "error", err)
	}
}

// startOnly names the sections other than tenants and tiers in which the settings differ.
func startOnly(before, after config.Config) []string {
	var differ []string
	a, b := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if name != "Tenants" && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			differ = append(differ, strings.ToLower(name))
		}
	}
	slices.Sort(differ)
	return differ
}
