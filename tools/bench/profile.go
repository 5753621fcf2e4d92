package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
)

// profile writes a processor profile of this process until stop, where profiles are asked for.
func (b *bench) profile(name string) (stop func() error, err error) {
	if b.profiles == "" {
		return func() error { return nil }, nil
	}
	f, err := b.profileFile(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// fetchProfile writes one of the process with this admin address, over the next three seconds.
func (b *bench) fetchProfile(ctx context.Context, admin, name string) error {
	if b.profiles == "" || admin == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+admin+"/debug/pprof/profile?seconds=3", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("no profile: %s", resp.Status)
	}
	f, err := b.profileFile(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}

func (b *bench) profileFile(name string) (*os.File, error) {
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(b.profiles, name+".pprof"))
}
