package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestASVSPage: the tests and targets that docs/asvs.md names exist.
func TestASVSPage(t *testing.T) {
	page, err := os.ReadFile(repository + "/docs/asvs.md")
	if err != nil {
		t.Fatal(err)
	}
	grep := exec.Command("git", "grep", "-hoE", "^func (Test|Fuzz)[A-Za-z0-9_]+", "--", "*_test.go")
	grep.Dir = repository
	found, err := grep.Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(found)) {
		known[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	for _, m := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		if !known[m[1]] {
			t.Errorf("docs/asvs.md names %s, which is no test", m[1])
		}
	}
	makefile, err := os.ReadFile(repository + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(string(makefile), "\n"+m[1]+":") {
			t.Errorf("docs/asvs.md names make %s, which does not exist", m[1])
		}
	}
}
