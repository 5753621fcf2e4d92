package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
)

// queueFull is the kind of the refusal that means that a tenant's queue is full.
const queueFull = "queue-full"

// neverFits is the type of the refusal of what is larger than the queue.
const neverFits = "urn:sluice:problem:never-fits"

// apiFlags say where the API is and who asks. The flag is not called --key, which names a job in
// submit.
type apiFlags struct {
	API    string `name:"api" default:"http://${api}" env:"SLUICE_API" placeholder:"URL" help:"Where the API is [http://${api}]."`
	APIKey string `name:"api-key" env:"SLUICE_KEY" placeholder:"TEXT" help:"API key or token, if clients must have one; the variable keeps it out of the list of processes."`
}

// adminFlags say where the admin listener is.
type adminFlags struct {
	Admin      string `name:"admin" default:"http://${admin}" env:"SLUICE_ADMIN,SLUICE_ADMIN_LISTEN" placeholder:"URL" help:"Where the admin listener is [http://${admin}]."`
	AdminToken string `name:"admin-token" env:"SLUICE_ADMIN_TOKEN" placeholder:"TEXT" help:"Its token, if it has one; the variable keeps it out of the list of processes."`
}

// jobsAPI is the API as the commands use it.
type jobsAPI struct{ *client.Client }

// connect makes a client for so many calls at once.
func (f apiFlags) connect(calls int) (jobsAPI, error) {
	c, err := client.New(baseURL(f.API), f.APIKey, httpClient(calls))
	if err != nil {
		return jobsAPI{}, usagef("--api: %v", err)
	}
	return jobsAPI{c}, nil
}

func (f adminFlags) connect() (*client.Client, error) { return f.dial(1) }

// dial makes a client for so many calls at once.
func (f adminFlags) dial(calls int) (*client.Client, error) {
	c, err := client.New(baseURL(f.Admin), f.AdminToken, httpClient(calls))
	if err != nil {
		return nil, usagef("--admin: %v", err)
	}
	return c, nil
}

// httpClient keeps a connection for each call at once; a held answer comes well within its bound.
func httpClient(calls int) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = calls
	return &http.Client{Transport: transport, Timeout: 2 * wire.MaxWaitSeconds * time.Second}
}

// refusedError is a refusal of a submission by the server.
type refusedError struct {
	kind string // such as queue-full
	err  error
}

func (e *refusedError) Error() string { return e.err.Error() }

func (e *refusedError) Unwrap() error { return e.err }

// submit submits one job. A refusal with a reason is a *refusedError.
func (a jobsAPI) submit(ctx context.Context, s client.Submission) (client.Submitted, error) {
	got, err := a.Submit(ctx, s)
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() != "" {
		err = &refusedError{kind: answer.Kind(), err: err}
	}
	return got, err
}

// awaitJob reads the job until it is done or ctx ends; then it returns the job as it was last read,
// with ctx's error. A server that is away may come back, for the job was there before.
func (a jobsAPI) awaitJob(ctx context.Context, tenant string, job wire.Job) (wire.Job, error) {
	for {
		now, err := a.Job(ctx, tenant, job.ID, wire.MaxWaitSeconds*time.Second)
		switch {
		case ctx.Err() != nil:
			return job, ctx.Err()
		case err == nil && now.Done:
			return now, nil
		case err == nil:
			job = now
		case transient(err):
			_ = sleep(ctx, time.Second)
		case tooOften(err) > 0:
			_ = sleep(ctx, tooOften(err))
		default:
			return job, err
		}
	}
}

// tooOften is how long the server asks to wait because its tenant reads too often, 0 if that is not
// what it says.
func tooOften(err error) time.Duration {
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() == "rate-limited" {
		return max(answer.RetryAfter, time.Second)
	}
	return 0
}

// transient reports whether the call may go well when it is made again: the server was not reached,
// or does not work now.
func transient(err error) bool {
	var answer *client.Error
	if !errors.As(err, &answer) {
		return true
	}
	switch answer.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// sleep passes the time, unless ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
