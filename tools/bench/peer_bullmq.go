package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The lock file omits the optional native part of msgpackr, which not every registry has. BullMQ
// works the same without it.
//
//go:embed peers/bullmq
var bullmqFiles embed.FS

// bullmqOrders are what peers/bullmq/worker.mjs is to do.
type bullmqOrders struct {
	Socket   string    `json:"socket"` // of Redis
	URL      string    `json:"url"`
	Payload  string    `json:"payload"`
	Max      int       `json:"max"`      // jobs
	Duration int       `json:"duration"` // in this time, in milliseconds
	Arrivals []arrival `json:"arrivals"`
}

// bullmqReady matches the line of a ready worker, with its versions.
var bullmqReady = regexp.MustCompile(`(?m)^ready bullmq (\S+) node (\S+)$`)

// prepareBullMQ starts a worker of BullMQ in node with the limiter.
func prepareBullMQ(most, durationMS int) func(context.Context, race) (contender, error) {
	return func(ctx context.Context, r race) (contender, error) {
		node, err := exec.LookPath("node")
		if err != nil {
			return contender{}, absent{"no node on PATH"}
		}
		dir, err := installBullMQ(ctx, filepath.Join(filepath.Dir(r.dir), "bullmq"))
		if err != nil {
			return contender{}, err
		}
		store, socket, err := startRedis(ctx, r.dir)
		if err != nil {
			return contender{}, err
		}
		orders, err := json.Marshal(bullmqOrders{socket, r.url, string(payload), most, durationMS, r.arrivals})
		if err != nil {
			store.end()
			return contender{}, err
		}
		c, err := spawn(exec.Command(node, filepath.Join(dir, "worker.mjs"), string(orders)), r.dir, "bullmq")
		end := func() { c.end(); store.end() }
		if err != nil {
			end()
			return contender{}, err
		}
		versions, err := c.awaitLine(ctx, bullmqReady)
		if err != nil {
			end()
			return contender{}, err
		}
		return contender{about: fmt.Sprintf("BullMQ %s, node %s", versions[0], versions[1]), end: end,
			begin: func(context.Context) error {
				_, err := fmt.Fprintln(c.stdin, "go")
				return err
			}}, nil
	}
}

// installBullMQ puts BullMQ into dir, unless it is there, from the registry that npm is configured
// with. Where that cannot be reached, the peer is absent.
func installBullMQ(ctx context.Context, dir string) (string, error) {
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", absent{"no npm on PATH"}
	}
	files, err := fs.Sub(bullmqFiles, "peers/bullmq")
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, files)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if err := complete(ctx, cmd, dir, "npm"); err != nil {
		return "", absent{lastLine(err.Error())}
	}
	return dir, os.WriteFile(done, nil, 0o600)
}

// lastLine is the last line that is not blank.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
