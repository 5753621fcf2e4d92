package process

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
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
	path := tokenFile(p.Config)
	if path == "" {
		return p.Config.Admin.Token, nil
	}
	token, made, err := tokenIn(path)
	if err != nil {
		return "", tokenProblem(path, err)
	}
	if made && p.Stderr != nil {
		if whole, err := filepath.Abs(path); err == nil {
			path = whole
		}
		_, _ = fmt.Fprintf(p.Stderr, "The token of the first admin is %s\nIt is shown once, and kept in %s. "+
			"For the command line: export SLUICE_ADMIN_TOKEN=$(cat %[2]s)\n", token, path)
	}
	return token, nil
}

// tokenFile is the file of the first admin's token; empty where there is none.
func tokenFile(c config.Config) string {
	if c.Admin.Token != "" || c.Admin.TokenFile == "" && config.IsLoopback(c.Admin.Listen) {
		return ""
	}
	return cmp.Or(c.Admin.TokenFile, filepath.Join(c.Redis.DataDir, "admin.token"))
}

func tokenProblem(path string, err error) error {
	return shaper.Problems{{Field: "admin.token_file", Value: path, Rule: err.Error()}}
}

// CheckAdminToken returns why a process would not start with the file of its first admin's token. A
// file that does not exist is made then.
func CheckAdminToken(c config.Config) error {
	path := tokenFile(c)
	if path == "" {
		return nil
	}
	if _, err := readToken(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return tokenProblem(path, err)
	}
	return nil
}

// tokenIn reads the token of a file, or makes both. Of processes that start at once one makes them.
func tokenIn(path string) (token string, made bool, err error) {
	token, err = readToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", false, unwritable(err)
	}
	next, err := os.CreateTemp(filepath.Dir(path), ".admin.token-*") // with the mode 0600
	if err != nil {
		return "", false, unwritable(err)
	}
	defer func() { _ = os.Remove(next.Name()) }()
	token = rand.Text() + rand.Text() // 260 bits
	_, failed := next.WriteString(token + "\n")
	if err := errors.Join(failed, next.Sync(), next.Close()); err != nil {
		return "", false, unwritable(err)
	}
	// A link is whole at once, and replaces no file that another process has made meanwhile.
	switch err := os.Link(next.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		token, err := readToken(path)
		return token, false, err
	case err != nil:
		return "", false, unwritable(err)
	}
	return token, true, nil
}

func unwritable(err error) error {
	return fmt.Errorf("must be a file that can be written, unless admin.token is set: %w", err)
}

// readToken reads a token that an earlier start has made. Errors: fs.ErrNotExist.
func readToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() { // to open a pipe would wait for a writer
		return "", errors.New("must be a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil { // of what is read
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("must not be readable by others: its mode is %#o, not 0600 (chmod 600)", info.Mode().Perm())
	}
	raw, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(raw))
	if len(token) < 16 || len(token) > 255 || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", errors.New("must have one line of 16 to 255 visible ASCII characters; delete it for a new token")
	}
	return token, nil
}
