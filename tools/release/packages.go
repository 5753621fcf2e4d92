package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats register themselves
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packageName is not sluice, because Debian has a package of that name.
const packageName = "sluice-shaper"

// linuxPackage writes a package of a format: deb or rpm.
func (r *release) linuxPackage(format, processor, program string) error {
	work, err := os.MkdirTemp("", "sluice-package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	unit, err := os.ReadFile(filepath.Join(r.source, "deploy/systemd/sluice.service"))
	if err != nil {
		return err
	}
	texts := map[string][]byte{
		"unit": packagedUnit(unit), "man": compressed(r.texts["man"]), "bash": r.texts["bash"], "zsh": r.texts["zsh"],
		"fish": r.texts["fish"], "changelog": compressed(r.debianChangelog()), "copyright": r.copyright(),
	}
	file := func(name string) string { return filepath.Join(work, name) }
	for name, text := range texts {
		if err := os.WriteFile(file(name), text, 0o644); err != nil {
			return err
		}
	}
	deploy := func(name string) string { return filepath.Join(r.source, "deploy/package", name) }
	zsh, redis := "/usr/share/zsh/vendor-completions/_sluice", "redis-server | valkey-server"
	if format == "rpm" {
		zsh, redis = "/usr/share/zsh/site-functions/_sluice", "redis"
	}
	info := &nfpm.Info{
		Name: packageName, Arch: processor, Platform: "linux", Version: r.version, VersionSchema: "none",
		Section: "net", Priority: "optional", Maintainer: "The Sluice authors <sluice@invalid.example>",
		Vendor: "The Sluice authors", License: "MIT", Homepage: "https://github.com/7509e464/sluice", MTime: r.time,
		Description: "queue-backed leaky-bucket request shaper\n" +
			"Clients send bursts. Your service receives what it can take: Sluice queues\n" +
			"requests in Redis, for each tenant, and delivers them evenly.",
		Overridables: nfpm.Overridables{
			Conflicts: []string{"sluice"}, Recommends: []string{redis},
			Scripts: nfpm.Scripts{
				PreInstall: deploy("preinstall.sh"), PostInstall: deploy("postinstall.sh"),
				PreRemove: deploy("preremove.sh"), PostRemove: deploy("postremove.sh"),
			},
			Contents: files.Contents{
				r.file(program, "/usr/bin/sluice", 0o755, ""),
				r.file(file("unit"), "/usr/lib/systemd/system/sluice.service", 0o644, ""),
				r.file(deploy("sluice.yaml"), "/etc/sluice/sluice.yaml", 0o644, files.TypeConfigNoReplace),
				r.file(deploy("sluice.env"), "/etc/sluice/sluice.env", 0o600, files.TypeConfigNoReplace),
				r.file(file("man"), "/usr/share/man/man1/sluice.1.gz", 0o644, ""),
				r.file(file("bash"), "/usr/share/bash-completion/completions/sluice", 0o644, ""),
				r.file(file("zsh"), zsh, 0o644, ""),
				r.file(file("fish"), "/usr/share/fish/vendor_completions.d/sluice.fish", 0o644, ""),
				r.file(file("copyright"), "/usr/share/doc/sluice-shaper/copyright", 0o644, ""),
				r.file(file("changelog"), "/usr/share/doc/sluice-shaper/changelog.gz", 0o644, ""),
			},
			RPM: nfpm.RPM{BuildHost: "sluice", Group: "System Environment/Daemons", Summary: "queue-backed leaky-bucket request shaper"},
		},
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := packager.Package(info, &out); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, packager.ConventionalFileName(info)), out.Bytes(), 0o644)
}

func (r *release) file(from, to string, mode os.FileMode, kind string) *files.Content {
	return &files.Content{
		Source: from, Destination: to, Type: kind,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.time},
	}
}

// packagedUnit returns the unit of deploy for the path and the user of the packages.
func packagedUnit(unit []byte) []byte {
	return []byte(strings.NewReplacer("/usr/local/bin/", "/usr/bin/", "DynamicUser=yes", "User=sluice\nGroup=sluice").
		Replace(string(unit)))
}

func (r *release) copyright() []byte {
	text, err := os.ReadFile(filepath.Join(r.source, "LICENSE"))
	if err != nil {
		return nil
	}
	return text
}

func (r *release) debianChangelog() []byte {
	return fmt.Appendf(nil, "%s (%s) stable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n -- %s  %s\n",
		packageName, r.version, "The Sluice authors <sluice@invalid.example>", r.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
}
