package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestChart: the package of the chart has its files, also those that are links in the repository,
// and the version of the release.
func TestChart(t *testing.T) {
	for version, want := range map[string]string{
		"1.2.3":                        "1.2.3",
		"0.0.0~20261127101112.0123456": "0.0.0-20261127101112.g0123456",
		"1.3.0-rc.1":                   "1.3.0-rc.1",
		"1.2.3-4-g0123456":             "1.2.3-4-g0123456",
	} {
		r := &release{source: "../..", out: t.TempDir(), version: version, time: time.Unix(1, 0)}
		if err := r.chart(); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(r.out, "sluice-"+want+".tgz"))
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{}
		for archive := tar.NewReader(z); ; {
			h, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(text)
		}
		for name, part := range map[string]string{
			"Chart.yaml": "\nversion: " + want + "\nappVersion: \"" + want + "\"\n", "values.yaml": "image:",
			"values.schema.json": "json-schema", "templates/deployments.yaml": "kind: Deployment",
			"files/rules.yml": "SluiceDown", "files/dashboard.json": "panels",
		} {
			if !strings.Contains(files["sluice/"+name], part) {
				t.Errorf("%s: %s lacks %q", version, name, part)
			}
		}
	}
}
