package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user of the process in the image.
const imageUser = "65532"

// image writes an OCI image layout for the processors of Linux. It has the program, the
// certificates that its TLS trusts, and a user: no shell, no package manager.
func (r *release) image(programs map[platform]string, roots string) error {
	trusted, err := os.ReadFile(roots)
	if err != nil {
		return fmt.Errorf("-ca: %w", err)
	}
	license, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		program, chosen := programs[p]
		if p.system != "linux" || !chosen {
			continue
		}
		binary, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		system := []entry{
			{"etc/", fs.ModeDir | 0o755, nil},
			{"etc/group", 0o644, []byte("root:x:0:\nsluice:x:" + imageUser + ":\n")},
			{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\n" +
				"sluice:x:" + imageUser + ":" + imageUser + ":sluice:/:/sbin/nologin\n")},
			{"etc/ssl/", fs.ModeDir | 0o755, nil}, {"etc/ssl/certs/", fs.ModeDir | 0o755, nil},
			{"etc/ssl/certs/ca-certificates.crt", 0o644, trusted},
			{"etc/sluice/", fs.ModeDir | 0o755, nil},
		}
		own := []entry{
			{"usr/", fs.ModeDir | 0o755, nil}, {"usr/local/", fs.ModeDir | 0o755, nil},
			{"usr/local/bin/", fs.ModeDir | 0o755, nil}, {"usr/local/bin/sluice", 0o755, binary},
			{"usr/share/", fs.ModeDir | 0o755, nil}, {"usr/share/doc/", fs.ModeDir | 0o755, nil},
			{"usr/share/doc/sluice/", fs.ModeDir | 0o755, nil}, {"usr/share/doc/sluice/LICENSE", 0o644, license},
		}
		img, err := r.imageOf(p.processor, [][]entry{system, own})
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: p.processor},
		}})
	}
	dir := filepath.Join(r.out, "image")
	if _, err := layout.Write(dir, index); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return nil
}

func (r *release) imageOf(processor string, layers [][]entry) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, entries := range layers {
		data, err := tarred(entries, r.time)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		img, err = mutate.Append(img, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "sluice release"}, MediaType: types.OCILayer,
		})
		if err != nil {
			return nil, err
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", processor, v1.Time{Time: r.time}
	file.Config = v1.Config{
		User: imageUser + ":" + imageUser, Entrypoint: []string{"/usr/local/bin/sluice"},
		Cmd: []string{"serve", "--config", "/etc/sluice/sluice.yaml"}, Env: []string{"PATH=/usr/local/bin"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}, "9464/tcp": {}}, StopSignal: "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/local/bin/sluice", "healthcheck"}, Interval: 5 * time.Second,
			Timeout: 4 * time.Second, StartPeriod: 10 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title": "sluice", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.licenses": "MIT",
			"org.opencontainers.image.created": r.time.Format(time.RFC3339),
			"org.opencontainers.image.source":  "https://github.com/7509e464/sluice",
		},
	}
	return mutate.ConfigFile(img, file)
}
