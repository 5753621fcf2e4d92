// Package deploy_test checks what is shipped for containers: that docker-compose.yml means what it
// should, and that the configuration it mounts is one that the program accepts.
package deploy_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/7509e464/sluice/internal/config"
)

func project(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../docker-compose.yml"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRedisKeepsJobs(t *testing.T) {
	redis, err := project(t).GetService("redis")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(redis.Image, "redis:7.") || !strings.HasSuffix(redis.Image, "-alpine") {
		t.Errorf("image %q is not a pinned Redis 7", redis.Image)
	}
	for flag, want := range map[string]string{"--appendonly": "yes", "--maxmemory-policy": "noeviction"} {
		i := slices.Index(redis.Command, flag)
		if i < 0 || i+1 >= len(redis.Command) || redis.Command[i+1] != want {
			t.Errorf("command %v lacks %s %s", redis.Command, flag, want)
		}
	}
	if len(redis.Volumes) != 1 || redis.Volumes[0].Target != "/data" {
		t.Errorf("volumes %v: the append-only file must outlive the container", redis.Volumes)
	}
	if len(redis.Ports) > 0 {
		t.Errorf("Redis is published: %v", redis.Ports)
	}
}

func TestProcesses(t *testing.T) {
	p := project(t)
	for _, name := range []string{"api", "worker"} {
		s, err := p.GetService(name)
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.Index(s.Command, "--roles"); i < 0 || s.Command[i+1] != name {
			t.Errorf("%s: command %v", name, s.Command)
		}
		if s.DependsOn["redis"].Condition != types.ServiceConditionHealthy {
			t.Errorf("%s does not wait for Redis", name)
		}
		if s.StopGracePeriod == nil || types.Duration(*s.StopGracePeriod).String() != "30s" {
			t.Errorf("%s: stop_grace_period %v does not cover the 20 s that deliveries may take", name,
				s.StopGracePeriod)
		}
		mounted := slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool {
			return filepath.Base(v.Source) == "sluice.yaml" && slices.Contains(s.Command, v.Target) && v.ReadOnly
		})
		if !mounted {
			t.Errorf("%s: the configuration %v is not what %v reads", name, s.Volumes, s.Command)
		}
	}
	for name, s := range p.Services {
		if s.HealthCheck == nil || len(s.HealthCheck.Test) == 0 {
			t.Errorf("%s has no health check", name)
		} else if name != "redis" && !slices.Contains(s.HealthCheck.Test, "healthcheck") {
			t.Errorf("%s: health check %v", name, s.HealthCheck.Test)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to other machines", name, port.Published)
			}
		}
		if s.Build != nil && s.Build.Dockerfile != "deploy/Dockerfile" {
			t.Errorf("%s is built from %s", name, s.Build.Dockerfile)
		}
	}
}

// The admin listener opens, to this machine alone, when there is a token for it, and is where it
// was when there is none.
func TestAdminListenerOfTheComposeFile(t *testing.T) {
	for token, listen := range map[string]string{"": "127.0.0.1:8081", "0123456789abcdef": "0.0.0.0:8081"} {
		options, err := cli.NewProjectOptions([]string{"../docker-compose.yml"},
			cli.WithEnv([]string{"SLUICE_ADMIN_TOKEN=" + token}))
		if err != nil {
			t.Fatal(err)
		}
		p, err := options.LoadProject(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		api, err := p.GetService("api")
		if err != nil {
			t.Fatal(err)
		}
		var environ []string
		for name, value := range api.Environment {
			if value != nil {
				environ = append(environ, name+"="+*value)
			}
		}
		c, err := config.Load(config.Sources{File: "sluice.yaml", Environ: environ})
		if err != nil {
			t.Fatal(err)
		}
		if c.Admin.Listen != listen || c.Admin.Token != token {
			t.Errorf("with the token %q it listens on %s", token, c.Admin.Listen)
		}
		published := slices.ContainsFunc(api.Ports, func(port types.ServicePortConfig) bool {
			return port.Target == 8081 && port.Published == "8081"
		})
		if !published {
			t.Error("the admin listener is not published")
		}
	}
}

func TestConfigurationIsAccepted(t *testing.T) {
	c, err := config.Load(config.Sources{File: "sluice.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	if c.API.Listen != "0.0.0.0:8080" || !c.API.AllowPublic {
		t.Errorf("the API would not be reached from outside its container: %+v", c.API)
	}
	if !strings.Contains(c.Redis.URL, "//redis:") {
		t.Error("the Redis is not that of the compose file")
	}
}
