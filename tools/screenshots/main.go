// Command screenshots makes the pictures of docs/dashboard.md: it runs the program with sample
// tenants and traffic, and takes screenshots of the dashboard in a browser. It needs chromium and
// redis-server. The traffic has fixed seeds; times of day differ from run to run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/tools/browsertest"
)

const policies = `  defaults: { rate: 5/s, capacity: 300 }
  acme:     { rate: 20/s, capacity: 500 }
  shop:     { rate: 8/s, capacity: 200 }
  partner:  { rate: 30/m, capacity: 100 }
  slow:     { rate: 1/s, capacity: 50, paused: true }
  search:   { rate: 40/s, capacity: 5000, weight: 4, reserve: 5/s }
  support:  { rate: 40/s, capacity: 5000, weight: 2 }
  billing:  { rate: 4/s, capacity: 5000, weight: 2 }
  research: { rate: 40/s, capacity: 5000, weight: 3 }
  intern:   { rate: 40/s, capacity: 5000 }
  audit:    { rate: 40/s, capacity: 5000, reserve: 2/s }`

const settled = 3 * time.Second // after which a page without charts is complete

func main() {
	out := flag.String("out", "docs", "folder that the pictures are written to")
	warm := flag.Duration("warm", time.Minute, "how long each page is open before its picture")
	only := flag.String("only", "", "make only the pictures whose name contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *warm, *only); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, warm time.Duration, only string) (err error) {
	dir, err := os.MkdirTemp("", "sluice-pictures-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary, err := browsertest.Build(ctx, dir)
	if err != nil {
		return err
	}
	p, err := browsertest.Start(ctx, binary, dir, policies)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	b, err := browsertest.Open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()

	if err := kill(ctx, p, "acme", 5); err != nil {
		return err
	}
	var traffic sync.WaitGroup
	defer traffic.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, t := range []struct {
		tenant, route string
		mean          float64
	}{
		{"acme", "default", 21}, {"shop", "default", 7.5}, {"partner", "default", 0.48}, {"slow", "default", 0.4},
		{"depot", "default", 4}, {"kiosk", "default", 3}, {"mail", "default", 4.6}, {"reports", "default", 2},
		{"search", "orders", 25}, {"support", "orders", 12}, {"billing", "orders", 6}, {"research", "orders", 15},
		{"intern", "orders", 9}, {"audit", "orders", 1.2},
	} {
		traffic.Go(func() { p.Traffic(ctx, t.tenant, t.route, t.mean, uint64(i+1)) })
	}
	return pictures(ctx, p, b, out, warm, only)
}

// kill makes n dead letters, for the list of them.
func kill(ctx context.Context, p *browsertest.Program, tenant string, n int) error {
	p.Fail(tenant)
	defer p.Fail("")
	if err := p.Submit(ctx, tenant, n); err != nil {
		return err
	}
	for {
		var now wire.Tenant
		if err := p.Call(ctx, http.MethodGet, "/v1/tenants/"+tenant, nil, &now); err != nil {
			return err
		}
		if now.Dead >= int64(n) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// pictures takes one after the other: browser pages compete with the program and its Redis for the
// processor.
func pictures(
	ctx context.Context, p *browsertest.Program, b *browsertest.Browser, out string, warm time.Duration,
	only string,
) error {
	for _, one := range []picture{
		{"dashboard-overview.png", "#/", "light", 1280, 1060, nil, false},
		{"dashboard-tenant.png", "#/tenant/acme", "light", 1280, 870, draft, false},
		{"dashboard-pool.png", "#/pool/erp", "light", 1280, 1060, nil, false},
		{"dashboard-dark.png", "#/tenant/shop", "dark", 1280, 870, nil, false},
		{"dashboard-narrow.png", "#/tenant/acme", "dark", 390, 844, nil, false},
		{"dashboard-jobs.png", "#/tenant/acme", "light", 1280, 480, deadLetters, true},
	} {
		if !strings.Contains(one.file, only) {
			continue
		}
		if err := one.take(ctx, p, b, out, warm); err != nil {
			return fmt.Errorf("%s: %w", one.file, err)
		}
		fmt.Println("wrote", filepath.Join(out, one.file))
	}
	return nil
}

type picture struct {
	file, hash, scheme string
	width, height      int64
	before             func(*browsertest.Page) error // nil: the page as it opens
	still              bool                          // no charts are in the picture
}

// take opens the page, and takes the picture once its charts have filled.
func (one picture) take(
	ctx context.Context, p *browsertest.Program, b *browsertest.Browser, out string, warm time.Duration,
) error {
	page, err := b.NewPage(one.width, one.height, 1.5, one.scheme)
	if err != nil {
		return err
	}
	defer page.Close()
	if err := page.SignIn(p.Admin, one.hash); err != nil {
		return err
	}
	if one.still {
		warm = settled
	}
	select {
	case <-time.After(warm):
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := browsertest.Eval[bool](page, "(scrollTo(0, 0), true)"); err != nil {
		return err
	}
	if one.before != nil {
		if err := one.before(page); err != nil {
			return err
		}
	}
	return page.Picture(filepath.Join(out, one.file))
}

// draft moves the slider of the rate, and waits for the forecast.
func draft(page *browsertest.Page) error {
	const set = `(() => {
		const f = document.querySelector("#rate");
		f.value = 30;
		f.dispatchEvent(new Event("input"));
		return true;
	})()`
	if _, err := browsertest.Eval[bool](page, set); err != nil {
		return err
	}
	return page.WaitText(".forecast", "Deepest queue")
}

func deadLetters(page *browsertest.Page) error {
	const show = `(() => {
		const tab = document.querySelector("button[data-state=dead]");
		tab.click();
		tab.closest("section").scrollIntoView();
		scrollBy(0, -16);
		return true;
	})()`
	if _, err := browsertest.Eval[bool](page, show); err != nil {
		return err
	}
	return page.WaitText("section[aria-labelledby=jobs-title] tbody", "400 Bad Request")
}
