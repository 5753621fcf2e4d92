package process

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

// adminToken returns the token of the first admin: that of the configuration, or one that an
// earlier start or this one has made. It is empty for a listener on loopback that needs none.
func (p *Process) adminToken() (string, error) {
	a := p.Config.Admin
	if a.Token != "" || a.TokenFile == "" && config.IsLoopback(a.Listen) {
		return a.Token, nil
	}
	path := cmp.Or(a.TokenFile, filepath.Join(p.Config.Redis.DataDir, "admin.token"))
	token, made, err := tokenIn(path)
	if err != nil {
		return "", shaper.Problems{{Field: "admin.token_file", Value: path, Rule: err.Error()}}
	}
	if made && p.Stderr != nil {
		_, _ = fmt.Fprintf(p.Stderr, "The token of the first admin is %s\nIt is shown once, and kept in %s.\n", token, path)
	}
	return token, nil
}

// tokenIn reads the token of a file, or makes both. Of processes that start at once one makes them.
func tokenIn(path string) (token string, made bool, err error) {
	token, err = readToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", false, fmt.Errorf("must be a file that can be written: %w", err)
	}
	next, err := os.CreateTemp(filepath.Dir(path), ".admin.token-*") // with the mode 0600
	if err != nil {
		return "", false, fmt.Errorf("must be a file that can be written: %w", err)
	}
	defer func() { _ = os.Remove(next.Name()) }()
	token = rand.Text() + rand.Text() // 260 bits
	_, failed := next.WriteString(token + "\n")
	if err := errors.Join(failed, next.Sync(), next.Close()); err != nil {
		return "", false, fmt.Errorf("must be a file that can be written: %w", err)
	}
	// A link is whole at once, and replaces no file that another process has made meanwhile.
	switch err := os.Link(next.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		token, err := readToken(path)
		return token, false, err
	case err != nil:
		return "", false, fmt.Errorf("must be a file that can be written: %w", err)
	}
	return token, true, nil
}

// readToken reads a token that an earlier start has made. Errors: fs.ErrNotExist.
func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errors.New("must be a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("must not be readable by others: its mode is %#o, not 0600", info.Mode().Perm())
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if len(token) < 16 || len(token) > 255 || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", errors.New("must have one line of 16 to 255 visible ASCII characters")
	}
	return token, nil
}
