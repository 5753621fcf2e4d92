package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/7509e464/sluice/tools/internal/product"
)

var host = platform{"linux", runtime.GOARCH}

// made is a release with the program for these platforms.
func made(t *testing.T, program string, texts map[string][]byte, platforms ...platform) *release {
	t.Helper()
	r, err := newRelease(t.Context(), "v1.2.3", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(t.TempDir(), "roots.pem")
	r.texts = texts
	err = os.WriteFile(roots, []byte("certificates"), 0o644)
	if texts == nil {
		err = errors.Join(err, r.describe(t.Context(), program))
	}
	programs := map[platform]string{}
	for _, p := range platforms {
		programs[p] = program
		err = errors.Join(err, r.pack(p, program))
	}
	if err := errors.Join(err, r.image(programs, roots), r.chart(), r.checksums()); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSameBytes: the same commit gives the same files in every directory.
func TestSameBytes(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it: to pack takes a minute")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.org/small\n", "main.go": "package main\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-o", "small", ".") // because a small program is packed sooner
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	texts := map[string][]byte{"bash": {'b'}, "zsh": {'z'}, "fish": {'f'}, "man": {'m'}}
	small := filepath.Join(dir, "small")
	sameFiles(t, made(t, small, texts, platforms...).out, made(t, small, texts, platforms...).out)
}

// one returns the only file of the release that matches.
func (r *release) one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.out, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v, want one file", pattern, found, err)
	}
	return found[0]
}

// TestFiles: every file of a release has what users rely on.
func TestFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-full runs it: to pack takes a minute")
	}
	program := filepath.Join(t.TempDir(), "sluice")
	if err := product.Build(t.Context(), program, "-ldflags=-s -w"); err != nil {
		t.Fatal(err)
	}
	r := made(t, program, nil, host)
	t.Run("archive", func(t *testing.T) {
		file, err := os.Open(r.one(t, "*.tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		names := namesOf(t, file, true)
		for _, want := range []string{"sluice", "LICENSE", "completions/_sluice", "completions/sluice.bash", "man/sluice.1"} {
			if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "/"+want) }) {
				t.Errorf("%s is missing in %v", want, names)
			}
		}
	})
	t.Run("checksums", func(t *testing.T) {
		cmd := exec.Command("sha256sum", "-c", "--quiet", "checksums.txt")
		cmd.Dir = r.out
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("sbom", func(t *testing.T) {
		text, err := os.ReadFile(r.one(t, "*_linux_*.cdx.json"))
		var sbom struct {
			BOMFormat  string
			Components []struct{ PURL string }
		}
		if err := errors.Join(err, json.Unmarshal(text, &sbom)); err != nil || sbom.BOMFormat != "CycloneDX" {
			t.Fatalf("%v: %s", err, text)
		}
		if !bytes.Contains(text, []byte("pkg:golang/github.com/redis/go-redis/v9@v9.")) {
			t.Errorf("go-redis is not in %s", text)
		}
	})
	t.Run("man", func(t *testing.T) {
		for _, want := range []string{".TH SLUICE 1", "queue\\-backed", "simulate"} {
			if !bytes.Contains(r.texts["man"], []byte(want)) {
				t.Errorf("%q is not in the man page", want)
			}
		}
	})
	t.Run("deb", func(t *testing.T) { checkDeb(t, r, program) })
	t.Run("image", func(t *testing.T) {
		root := extractImage(t, r)
		out, err := exec.Command(filepath.Join(root, "usr/local/bin/sluice"), "version").Output()
		if err != nil || !bytes.HasPrefix(out, []byte("sluice ")) {
			t.Errorf("%v: %s", err, out)
		}
	})
}

func checkDeb(t *testing.T, r *release, program string) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Fatal("dpkg-deb is not installed: install dpkg")
	}
	file := r.one(t, "*.deb")
	control, err := exec.Command("dpkg-deb", "--field", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Package: sluice-shaper", "Version: 1.2.3", "Architecture: " + runtime.GOARCH, "Conflicts: sluice",
		"Recommends: redis-server | valkey-server", "Maintainer: ",
	} {
		if !strings.Contains(string(control), want) {
			t.Errorf("%q is not in the control file:\n%s", want, control)
		}
	}
	root := t.TempDir()
	if out, err := exec.Command("dpkg-deb", "--extract", file, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, mode := range map[string]os.FileMode{
		"usr/bin/sluice": 0o755, "usr/lib/systemd/system/sluice.service": 0o644, "etc/sluice/sluice.yaml": 0o644,
		"etc/sluice/sluice.env": 0o600, "usr/share/man/man1/sluice.1.gz": 0o644,
		"usr/share/bash-completion/completions/sluice": 0o644, "usr/share/doc/sluice-shaper/copyright": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", name, info, err, mode)
		}
	}
	if out, err := exec.Command(program, "config", "check", filepath.Join(root, "etc/sluice/sluice.yaml")).CombinedOutput(); err != nil {
		t.Errorf("the configuration is refused: %v: %s", err, out)
	}
	unit := filepath.Join(root, "usr/lib/systemd/system/sluice.service")
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ExecStart=/usr/bin/sluice serve", "User=sluice", "ProtectSystem=strict", "StateDirectory=sluice"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("%q is not in the unit:\n%s", want, text)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	// The program is not at its place here, which verify reports too.
	local := filepath.Join(t.TempDir(), "sluice.service")
	if err := os.WriteFile(local, bytes.ReplaceAll(text, []byte("/usr/bin/sluice"), []byte(filepath.Join(root, "usr/bin/sluice"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", local).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
}

// extractImage checks the image of this machine's processor and returns its root directory.
func extractImage(t *testing.T, r *release) string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(r.out, "image"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var img v1.Image
	for _, m := range manifest.Manifests {
		if m.Platform != nil && m.Platform.Architecture == runtime.GOARCH {
			if img, err = index.Image(m.Digest); err != nil {
				t.Fatal(err)
			}
		}
	}
	if img == nil {
		t.Fatalf("no image for %s in %v", runtime.GOARCH, manifest.Manifests)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/usr/local/bin/sluice"}) ||
		c.Labels["org.opencontainers.image.version"] != r.version || c.StopSignal != "SIGTERM" || c.Healthcheck == nil {
		t.Errorf("the configuration of the image is %+v", c)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, %v, want 2", len(layers), err)
	}
	root := t.TempDir()
	for _, l := range layers {
		data, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for in := tar.NewReader(data); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || h.Uid != 0 || h.Gid != 0 || h.Mode&0o6022 != 0 {
				t.Fatalf("%v, %+v: want files of root that only root writes", err, h)
			}
			to := filepath.Join(root, filepath.FromSlash(h.Name))
			if h.Typeflag == tar.TypeDir {
				err = os.MkdirAll(to, 0o755)
			} else {
				var text []byte
				if text, err = io.ReadAll(in); err == nil {
					err = os.WriteFile(to, text, os.FileMode(h.Mode))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = data.Close()
	}
	return root
}

func namesOf(t *testing.T, file io.Reader, small bool) (names []string) {
	t.Helper()
	if small {
		z, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		file = z
	}
	for in := tar.NewReader(file); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func sameFiles(t *testing.T, one, other string) {
	t.Helper()
	listed := func(dir string) map[string]string {
		all := map[string]string{}
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			name, _ := filepath.Rel(dir, path)
			all[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	a, b := listed(one), listed(other)
	if len(a) != len(b) || len(a) < 8 {
		t.Errorf("%d files and %d files", len(a), len(b))
	}
	for name, text := range a {
		if b[name] != text {
			t.Errorf("%s differs", name)
		}
	}
}

// long skips a test that make test-release runs.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("SLUICE_TEST_RELEASE") == "" {
		t.Skip("make test-release runs it")
	}
}

// TestRelease: the release of a checkout in another directory has the same bytes, and the image
// starts as its user with nothing but its root.
func TestRelease(t *testing.T) {
	long(t)
	make := func(dir string) string {
		out := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "go", "run", "./release", "-version", "v1.2.3", "-platforms", host.String(), "-out", out)
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out
	}
	here := make("..")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if text, err := exec.Command("git", "clone", "--quiet", "--local", "../..", elsewhere).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	sameFiles(t, here, make(filepath.Join(elsewhere, "tools")))
	root := extractImage(t, &release{out: here, version: "1.2.3"})
	if os.Getuid() != 0 {
		t.Skip("only root may start the image's program in its root")
	}
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		if strings.HasPrefix(dir, os.TempDir()+"/") {
			_ = os.Chmod(dir, 0o755)
		}
	}
	cmd := exec.Command("/usr/local/bin/sluice", "version", "--json")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	if text, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(text, []byte(`"1.2.3"`)) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestInstall: the package is installed, upgraded, removed and purged, and its program serves.
func TestInstall(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("dpkg"); err != nil || os.Getuid() != 0 {
		t.Skip("it needs dpkg and root")
	}
	if exec.Command("dpkg", "--status", packageName).Run() == nil {
		t.Fatalf("%s is installed already", packageName)
	}
	program := filepath.Join(t.TempDir(), "sluice")
	if err := product.Build(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	dpkg := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("dpkg", args...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg %v: %v: %s", args, err, out)
		}
	}
	version := func(v string) string {
		r, err := newRelease(t.Context(), v, t.TempDir())
		if err := errors.Join(err, r.describe(t.Context(), program), r.linuxPackage("deb", runtime.GOARCH, program)); err != nil {
			t.Fatal(err)
		}
		return r.one(t, "*.deb")
	}
	t.Cleanup(func() { _ = exec.Command("dpkg", "--purge", packageName).Run() })
	dpkg("--install", "--force-depends", version("1.2.3"))
	if out, err := exec.Command("getent", "passwd", "sluice").Output(); err != nil {
		t.Errorf("there is no user sluice: %v: %s", err, out)
	}
	const file = "/etc/sluice/sluice.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := append(text, "# mine\n"...)
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	startInstalled(t, file)
	dpkg("--install", "--force-depends", version("1.2.4"))
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, changed) {
		t.Errorf("the upgrade changed the configuration: %v: %s", err, after)
	}
	startInstalled(t, file)
	dpkg("--remove", packageName)
	if _, err := os.Stat("/usr/bin/sluice"); err == nil {
		t.Error("the program is still there after the removal")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the configuration is gone before the purge: %v", err)
	}
	dpkg("--purge", packageName)
	if _, err := os.Stat("/etc/sluice"); err == nil {
		t.Error("/etc/sluice is still there after the purge")
	}
}

// startInstalled runs the installed program with the installed configuration until it is ready.
func startInstalled(t *testing.T, file string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := exec.CommandContext(ctx, "/usr/bin/sluice", "serve", "--config", file, "--api", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--redis-data-dir", t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(text.String(), `"ready"`) && !strings.Contains(text.String(), "ready ") {
		n, err := log.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			t.Fatalf("the program ended before it was ready: %s", text.String())
		}
	}
	stop()
	_, _ = io.Copy(io.Discard, log)
	_ = cmd.Wait()
}
