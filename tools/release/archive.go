package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive or a layer.
type entry struct {
	name string
	mode fs.FileMode
	data []byte
}

// archive writes the program with its completions, man page and license: as zip for Windows, as
// tar.gz for others.
func (r *release) archive(p platform, program string) error {
	name := "sluice_" + r.version + "_" + p.String()
	binary := "sluice"
	if p.system == "windows" {
		binary = "sluice.exe"
	}
	var entries []entry
	for _, f := range []struct {
		name, file string
		mode       fs.FileMode
	}{
		{binary, program, 0o755}, {"LICENSE", "LICENSE", 0o644}, {"README.md", "README.md", 0o644},
		{"CHANGELOG.md", "CHANGELOG.md", 0o644},
	} {
		if !filepath.IsAbs(f.file) {
			f.file = filepath.Join(r.source, f.file)
		}
		data, err := os.ReadFile(f.file)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name + "/" + f.name, f.mode, data})
	}
	for to, text := range map[string]string{
		"completions/sluice.bash": "bash", "completions/_sluice": "zsh", "completions/sluice.fish": "fish", "man/sluice.1": "man",
	} {
		entries = append(entries, entry{name + "/" + to, 0o644, r.texts[text]})
	}
	sortEntries(entries)
	if p.system == "windows" {
		data, err := zipped(entries, r.time)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(r.out, name+".zip"), data, 0o644)
	}
	data, err := tarred(entries, r.time)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name+".tar.gz"), compressed(data), 0o644)
}

func zipped(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		h.SetMode(e.mode)
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func sortEntries(entries []entry) {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
}

func tarred(entries []entry, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	t := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), Size: int64(len(e.data)), ModTime: at, Typeflag: tar.TypeReg}
		if e.mode.IsDir() {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if err := t.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := t.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// sbom writes what the program is built from, as CycloneDX. The program itself knows it.
func (r *release) sbom(p platform, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	type component struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version"`
		PURL    string `json:"purl"`
	}
	list := []component{{"library", "std", info.GoVersion, "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, component{"library", m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version})
	}
	text, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": list,
		"metadata": map[string]any{
			"timestamp": r.time.Format(time.RFC3339),
			"component": component{"application", "sluice", r.version, "pkg:golang/" + info.Main.Path + "@" + r.version},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "sluice_"+r.version+"_"+p.String()+".cdx.json"), append(text, '\n'), 0o644)
}

// checksums writes SHA-256 sums of all files of the release, as sha256sum -c reads them.
func (r *release) checksums() error {
	files, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		if f.IsDir() {
			continue // the image names its files by their digests
		}
		data, err := os.ReadFile(filepath.Join(r.out, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), f.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "checksums.txt"), []byte(sums.String()), 0o644)
}
