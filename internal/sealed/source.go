package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Bounds of a program that prints keys.
const (
	commandEvery = 5 * time.Minute  // between two runs
	commandAgain = 20 * time.Second // the same, if keys are missing
	commandWait  = 20 * time.Second // for one
	maxComplaint = 200              // bytes of what it says about a failure
)

// Source is where the keys come from: a file, or a program that prints what such a file has, for
// keys that a key management service holds. The zero value has none.
type Source struct{ File, Command string } // paths; at most one of them

// IsSet reports whether there is a source.
func (s Source) IsSet() bool { return s != Source{} }

// String is the setting and its value.
func (s Source) String() string {
	if s.Command != "" {
		return "codec.command " + s.Command
	}
	return "codec.key_file " + s.File
}

// read reads the keys. Errors never have one.
func (s Source) read(ctx context.Context) (keys keyring, warning string, err error) {
	if s.Command == "" {
		keys, warning, err = readFile(s.File)
	} else {
		keys, err = run(ctx, s.Command)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%v %w", s, err)
	}
	return keys, warning, nil
}

// run runs a program that prints keys. Of its output an error has what it wrote to standard error.
func run(ctx context.Context, path string) (keyring, error) {
	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	printed, complaint := head{most: maxFile, strict: true}, head{most: maxComplaint}
	cmd := exec.CommandContext(ctx, programAt(path))
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &printed, &complaint, time.Second
	endWithChildren(cmd)
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.New("it did not end in time")
	}
	switch {
	case printed.cut: // the program may have ended otherwise by that
		return nil, fmt.Errorf("must print at most %d bytes", maxFile)
	case err != nil && len(complaint.first) > 0:
		return nil, fmt.Errorf("must print keys: %w: %q", err, bytes.TrimSpace(complaint.first))
	case err != nil:
		return nil, fmt.Errorf("must print keys: %w", err)
	}
	return parseKeys(printed.first)
}

// programAt is the program at a path, also of a name alone, which is not searched for.
func programAt(path string) string {
	if filepath.Base(path) == path {
		return "." + string(filepath.Separator) + path
	}
	return path
}

// head takes the first bytes that are written to it, and fails at the end of them if it is strict.
type head struct {
	first  []byte
	most   int
	strict bool
	cut    bool // more was written
}

func (h *head) Write(p []byte) (int, error) {
	room := min(h.most-len(h.first), len(p))
	h.first = append(h.first, p[:room]...)
	if h.cut = h.cut || room < len(p); h.cut && h.strict {
		return room, io.ErrShortWrite
	}
	return len(p), nil
}

// CheckCommand returns why a program cannot print keys, and a warning about its mode. It does not
// run it.
func CheckCommand(path string) (warning string, err error) {
	found, err := exec.LookPath(programAt(path))
	var cause *exec.Error
	if errors.As(err, &cause) {
		err = cause.Err
	}
	if err != nil {
		return "", fmt.Errorf("must name a program that can be run: %w", err)
	}
	info, err := os.Stat(found)
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		warning = fmt.Sprintf("the program %s has mode %04o: others than its owner may change it; chmod go-w", path, mode)
	}
	return warning, nil
}
