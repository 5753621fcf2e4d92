package jobs

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// brokenDisk accepts left bytes.
type brokenDisk struct{ left int }

func (d *brokenDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.left)
	if d.left -= n; n < len(p) {
		return n, errors.New("the disk is full")
	}
	return n, nil
}

// A job that could not be printed whole is an error, wherever the output broke.
func TestJobThatCannotBeWritten(t *testing.T) {
	job := wire.Job{
		State: "dead", Created: time.Now(), AttemptLog: []wire.Attempt{{}},
		Response: &wire.Response{Status: 400, Headers: map[string]string{"A": "1"}},
	}
	for _, print := range []func(w io.Writer) error{
		func(w io.Writer) error { return showJob(w, job, wire.Flow{}) },
		func(w io.Writer) error { return printJob(w, job, false) },
		func(w io.Writer) error { return showJob(w, wire.Job{Done: true}, wire.Flow{}) },
	} {
		var whole bytes.Buffer
		if err := print(&whole); err != nil {
			t.Fatal(err)
		}
		for n := range whole.Len() {
			if print(&brokenDisk{n}) == nil {
				t.Errorf("no error after %d bytes of\n%s", n, whole.String())
			}
		}
	}
}
