package audit

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLines: lines are appended to a file that only its owner reads, also after it was rotated.
func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for n := range 2 {
		w, err := OpenLines(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("one\n")); err != nil {
			t.Error(err)
		}
		if n == 1 {
			if err := os.Rename(path, path+".1"); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write([]byte("two\n")); err != nil {
				t.Error(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{path + ".1": "one\none\n", path: "two\n"} {
		got, err := os.ReadFile(name)
		info, _ := os.Stat(name)
		if err != nil || string(got) != want || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %q, %v, %v", name, got, info.Mode(), err)
		}
	}
	if w, err := OpenLines(NoLines); w != nil || err != nil {
		t.Error(w, err)
	}
	if _, err := OpenLines(filepath.Join(path, "no")); err == nil {
		t.Error("a path below a file is opened")
	}
}
