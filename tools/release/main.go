// Release makes what users download: archives, packages for Debian and Red Hat, the image, a list
// of what each program is built from (SBOM), and checksums. It needs no network beyond that of go
// build. The same commit and the same version of Go give the same bytes in every directory.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/tools/internal/product"
)

// platform is an operating system and a processor.
type platform struct{ system, processor string }

func (p platform) String() string { return p.system + "_" + p.processor }

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"}, {"windows", "arm64"},
}

// release is what the files of a release have in common.
type release struct {
	source  string // root of the repository
	out     string
	version string // without the v of a tag
	commit  string
	time    time.Time         // of every file
	texts   map[string][]byte // man page and completions, by name
}

func main() {
	version := flag.String("version", "", "version; default: git describe")
	out := flag.String("out", "../dist", "directory of the files, which is emptied")
	only := flag.String("platforms", "", "platforms such as linux_amd64,darwin_arm64; default: all")
	roots := flag.String("ca", "/etc/ssl/certs/ca-certificates.crt", "certificates that the image trusts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, *out, *only, *roots); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, out, only, roots string) error {
	r, err := newRelease(ctx, version, out)
	if err != nil {
		return err
	}
	var chosen []platform
	for _, p := range platforms {
		if only == "" || strings.Contains(","+only+",", ","+p.String()+",") {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-platforms: %q names none of %v", only, platforms)
	}
	work, err := os.MkdirTemp("", "sluice-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	native := filepath.Join(work, "native")
	if err := r.build(ctx, platform{}, native); err != nil {
		return err
	}
	if err := r.describe(ctx, native); err != nil {
		return err
	}
	programs := map[platform]string{}
	for _, p := range chosen {
		programs[p] = filepath.Join(work, p.String())
		fmt.Println("building", p)
		if err := r.build(ctx, p, programs[p]); err != nil {
			return err
		}
		if err := r.pack(p, programs[p]); err != nil {
			return err
		}
	}
	if err := r.image(programs, roots); err != nil {
		return err
	}
	if err := r.chart(); err != nil {
		return err
	}
	return r.checksums()
}

// newRelease reads version, commit and time from git, and empties the directory out.
func newRelease(ctx context.Context, version, out string) (*release, error) {
	source, err := product.Dir(ctx)
	if err != nil {
		return nil, err
	}
	git := func(args ...string) string {
		text, _ := exec.CommandContext(ctx, "git", append([]string{"-C", source}, args...)...).Output()
		return strings.TrimSpace(string(text))
	}
	if version == "" {
		version = git("describe", "--tags", "--always")
	}
	r := &release{source: source, version: strings.TrimPrefix(version, "v"), commit: git("rev-parse", "--short", "HEAD")}
	seconds, err := strconv.ParseInt(git("log", "-1", "--format=%ct"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the time of the last commit: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	// A snapshot has no tag. Packages need a version that begins with a digit.
	if !strings.Contains(r.version, ".") {
		r.version = "0.0.0~" + r.time.Format("20060102150405") + "." + r.commit
	}
	if r.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return nil, err
	}
	return r, os.MkdirAll(r.out, 0o755)
}

// build builds the program for a platform; the zero platform is that of this machine.
func (r *release) build(ctx context.Context, p platform, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.commit=%s", r.version, r.commit), "-o", to, "./cmd/sluice")
	cmd.Dir, cmd.Stderr = r.source, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if p.system != "" {
		cmd.Env = append(cmd.Env, "GOOS="+p.system, "GOARCH="+p.processor)
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build for %v: %w", p, err)
	}
	return nil
}

// pack writes the archive, the packages and the SBOM of a platform.
func (r *release) pack(p platform, program string) error {
	if err := r.archive(p, program); err != nil {
		return err
	}
	if err := r.sbom(p, program); err != nil {
		return err
	}
	if p.system != "linux" {
		return nil
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := r.linuxPackage(format, p.processor, program); err != nil {
			return fmt.Errorf("%s for %v: %w", format, p, err)
		}
	}
	return nil
}
