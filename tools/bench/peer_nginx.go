package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// prepareNginx starts an nginx whose limit_req delays what is above the rate. What waits there is
// open requests: they are lost with the process.
func prepareNginx(ctx context.Context, r race) (contender, error) {
	n, err := startNginx(ctx, r.dir, r.url, r.rate, r.jobs())
	if err != nil {
		return contender{}, err
	}
	return contender{about: n.about, end: n.end, begin: r.open(n.client, "http://nginx/")}, nil
}

// nginx is a running nginx, and a client whose requests all go to it.
type nginx struct {
	about  string // the version
	client *http.Client
	end    func()
}

// startNginx starts one with its files in dir. absent is the error where there is none.
func startNginx(ctx context.Context, dir, to string, rate shaper.Rate, burst int) (nginx, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		return nginx{}, absent{"no nginx on PATH"}
	}
	version, err := exec.CommandContext(ctx, program, "-v").CombinedOutput()
	if err != nil {
		return nginx{}, fmt.Errorf("nginx -v: %w: %s", err, version)
	}
	upstream, err := url.Parse(to)
	if err != nil {
		return nginx{}, err
	}
	socket, file := filepath.Join(dir, "nginx.sock"), filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(nginxConfig(rate, burst, socket, upstream)), 0o600); err != nil {
		return nginx{}, err
	}
	c, err := spawn(exec.Command(program, "-p", dir, "-c", file, "-e", "stderr"), dir, "nginx")
	if err != nil {
		return nginx{}, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	hc := &http.Client{
		Transport: &http.Transport{DialContext: dial, DisableCompression: true}, Timeout: raceLimit,
	}
	end := func() { c.end(); hc.CloseIdleConnections() }
	if err := answers(ctx, c, dial); err != nil {
		end()
		return nginx{}, err
	}
	return nginx{nginxVersion(string(version)), hc, end}, nil
}

// open sends the arrivals as requests that stay open until the upstream has answered.
func (r race) open(hc *http.Client, to string) func(context.Context) error {
	return func(ctx context.Context) error {
		failed := make(chan error, r.jobs())
		err := r.arrive(ctx, func(jobs int) error {
			for range jobs {
				go func() { failed <- post(hc, to) }()
			}
			return nil
		})
		for range r.jobs() {
			select {
			case late := <-failed:
				if err == nil {
					err = late
				}
			case <-ctx.Done():
				return err
			}
		}
		return err
	}
}

// answers waits until the child can be reached.
func answers(
	ctx context.Context, c *child, dial func(ctx context.Context, network, address string) (net.Conn, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := dial(ctx, "", "")
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.exited:
			return fmt.Errorf("%s ended: %s", c.name, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w: %s", c.name, err, c.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// nginxConfig delays the requests above the rate, up to burst. It is one process, which ends with
// the bench.
func nginxConfig(r shaper.Rate, burst int, socket string, upstream *url.URL) string {
	return fmt.Sprintf(`daemon off;
master_process off;
pid nginx.pid;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	limit_req_zone $server_name zone=paced:1m rate=%dr/s;
	upstream sink { server %s; keepalive 64; }
	server {
		listen unix:%s backlog=4096;
		server_name bench;
		location / {
			limit_req zone=paced burst=%d;
			proxy_pass http://sink%s;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
		}
	}
}
`, r.Limit*int64(time.Second)/int64(r.Period), upstream.Host, socket, burst, upstream.Path)
}

// nginxVersion reads "nginx version: nginx/1.22.1".
func nginxVersion(line string) string {
	_, version, _ := strings.Cut(strings.TrimSpace(line), "nginx/")
	return strings.TrimSpace("nginx " + version)
}
