package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// chart writes the Helm chart as `helm package` does, with the version of the release.
func (r *release) chart() error {
	root := filepath.Join(r.source, "deploy", "helm")
	var entries []entry
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		data, err := os.ReadFile(path) // of what a link leads to
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			data = []byte(strings.NewReplacer("\nversion: 0.1.0", "\nversion: "+r.semantic(),
				"\nappVersion: snapshot", "\nappVersion: \""+r.semantic()+"\"").Replace(string(data)))
		}
		entries = append(entries, entry{"sluice/" + filepath.ToSlash(name), 0o644, data})
		return nil
	})
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	sortEntries(entries)
	data, err := tarred(entries, r.time)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return os.WriteFile(filepath.Join(r.out, "sluice-"+r.semantic()+".tgz"), compressed(data), 0o644)
}

// semantic is the version as Semantic Versioning has it. That of a snapshot is one of packages,
// where ~ sorts before everything.
func (r *release) semantic() string {
	number, snapshot, is := strings.Cut(r.version, "~")
	if !is {
		return r.version
	}
	at, commit, _ := strings.Cut(snapshot, ".")
	return number + "-" + at + ".g" + commit // digits alone must not begin with 0
}
