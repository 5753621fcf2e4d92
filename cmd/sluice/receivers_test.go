package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/internal/queuetest"
)

const (
	receivers      = "../../docs/examples/receivers/"
	receiverSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	servletAPI     = "/usr/share/java/jakarta-servlet-api.jar" // of Debian's libjakarta-servlet-api-java
)

// callbacksTo are requests to a receiver of the tenant acme, and the status of its answers.
var callbacksTo = []struct {
	name, secret, body, tampered string
	age                          time.Duration
	want                         int
}{
	{name: "signed", want: http.StatusNoContent},
	{name: "signed by another secret", secret: "whsec_YW5vdGhlciBzZWNyZXQgb2YgYW5vdGhlcg==", want: http.StatusUnauthorized},
	{name: "of another tenant", body: `{"type":"job.succeeded","data":{"id":"1","tenant":"other"}}`, want: http.StatusUnauthorized},
	{name: "changed on the way", tampered: `{"type":"job.succeeded","data":{"id":"2","tenant":"acme"}}`, want: http.StatusUnauthorized},
	{name: "old", age: time.Hour, want: http.StatusUnauthorized},
}

// signedCallback returns the three headers of a signature, and the body.
func signedCallback(t *testing.T, secret, body string, age time.Duration) (id, at, signature, sent string) {
	t.Helper()
	if secret == "" {
		secret = receiverSecret
	}
	if body == "" {
		body = `{"type":"job.succeeded", "data":{"id":"1","tenant":"acme","note":"é"}}`
	}
	w, err := webhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	when := time.Now().Add(-age)
	signature, err = w.Sign("msg", when, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return "msg", strconv.FormatInt(when.Unix(), 10), signature, body
}

// TestReceivers runs the receivers of callbacks for frameworks, where those are installed.
func TestReceivers(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, framework string }{
		{"express.mjs", "express@5.1.0"}, {"fastify.mjs", "fastify@5.6.1"}, {"flask_app.py", "flask"}, {"fastapi_app.py", "fastapi, uvicorn"},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			source, err := os.ReadFile(receivers + c.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), source, 0o600); err != nil {
				t.Fatal(err)
			}
			run := exec.CommandContext(t.Context(), "node", c.file)
			if strings.HasSuffix(c.file, ".mjs") {
				npmInstall(t, dir, c.framework, filepath.Join(root, "api/client/typescript"))
			} else {
				run = exec.CommandContext(t.Context(), pythonWith(t, c.framework), c.file)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().(*net.TCPAddr)
			_ = l.Close()
			run.Dir, run.Stdout, run.Stderr = dir, t.Output(), t.Output()
			run.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join(root, "api/client/python"),
				"SECRETS="+receiverSecret, "TENANT=acme", "PORT="+strconv.Itoa(address.Port))
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = run.Process.Kill()
				_ = run.Wait() // it was killed
			}()
			queuetest.Await(t, "the receiver", func() bool {
				conn, err := net.Dial("tcp", address.String())
				if err == nil {
					_ = conn.Close()
				}
				return err == nil
			})
			for _, call := range callbacksTo {
				id, at, signature, body := signedCallback(t, call.secret, call.body, call.age)
				if call.tampered != "" {
					body = call.tampered
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address.String()+"/callbacks", bytes.NewBufferString(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = http.Header{
					"Content-Type": {"application/json"}, "Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature},
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != call.want {
					t.Errorf("%s: %d, want %d", call.name, resp.StatusCode, call.want)
				}
			}
			resp, err := http.Post("http://"+address.String()+"/callbacks", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("without anything: %d, want 401", resp.StatusCode)
			}
			http.DefaultClient.CloseIdleConnections()
		})
	}
}

// pythonWith returns a Python that has the modules. It skips the test if there is none.
func pythonWith(t *testing.T, modules string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import "+modules).Run() == nil {
			return python
		}
	}
	t.Skip("no Python has " + modules)
	return ""
}

// TestServletFilter runs the filter for servlets.
func TestServletFilter(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("without a JDK, which make test does not install")
	}
	if _, err := os.Stat(servletAPI); err != nil {
		t.Skip("without libjakarta-servlet-api-java")
	}
	classes := t.TempDir()
	sources, err := filepath.Glob(clients + "java/src/io/sluice/client/*.java")
	if err != nil {
		t.Fatal(err)
	}
	path := classes + ":" + servletAPI
	compile := exec.CommandContext(t.Context(), "javac", append([]string{"-Xlint:all", "-Werror", "-cp", path, "-d", classes,
		receivers + "SluiceFilter.java", "testdata/receivers/FilterTest.java"}, sources...)...)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, call := range callbacksTo {
		id, at, signature, body := signedCallback(t, call.secret, call.body, call.age)
		if call.tampered != "" {
			body = call.tampered
		}
		run := exec.CommandContext(t.Context(), "java", "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8", "-cp", path, "FilterTest",
			receiverSecret, "acme", id, at, signature, body)
		out, err := run.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(call.want) {
			t.Errorf("%s: %v, %s, want %d", call.name, err, out, call.want)
		}
	}
}
