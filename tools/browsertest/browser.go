package browsertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds each wait for a page. It is generous, because machines that run tests are busy.
const patience = 60 * time.Second

// Browser is one chromium without a window.
type Browser struct {
	ctx  context.Context
	stop []context.CancelFunc
}

// Open starts chromium, which must be on PATH.
func Open(ctx context.Context) (*Browser, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, fmt.Errorf("%w: install Debian's package chromium, as make test-ui does", err)
	}
	b := &Browser{}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU,
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("no-proxy-server", true))
	allocator, cancel := chromedp.NewExecAllocator(ctx, options...)
	b.stop = append(b.stop, cancel)
	b.ctx, cancel = chromedp.NewContext(allocator)
	b.stop = append(b.stop, cancel)
	if err := chromedp.Do(b.ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("start chromium: %w", err)
	}
	return b, nil
}

// Close ends chromium.
func (b *Browser) Close() {
	if b.ctx != nil {
		_ = chromedp.Cancel(b.ctx)
	}
	for i := len(b.stop) - 1; i >= 0; i-- {
		b.stop[i]()
	}
}

// Page is one tab.
type Page struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu         sync.Mutex
	complaints []string
}

// NewPage opens a tab of this size and colour scheme, "light" or "dark".
func (b *Browser) NewPage(width, height int64, scale float64, scheme string) (*Page, error) {
	p := &Page{}
	p.ctx, p.cancel = chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(p.ctx,
		chromedp.EmulateViewport(width, height, chromedp.EmulateScale(scale))); err != nil {
		p.Close()
		return nil, err
	}
	err := chromedp.Listen(p.ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.complain("exception: " + e.ExceptionDetails.Text + " " + describe(e.ExceptionDetails.Exception))
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.EntryLevelError {
				p.complain(string(e.Entry.Source) + ": " + e.Entry.Text)
			}
		}
	})
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{
		Name: "prefers-color-scheme", Value: scheme,
	}}}
	if err == nil {
		_, err = chromedp.Call(p.ctx, emulation.SetEmulatedMedia, media)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func describe(o *runtime.RemoteObject) string {
	if o == nil {
		return ""
	}
	return o.Description
}

func (p *Page) complain(complaint string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = append(p.complaints, complaint)
}

// Complaints are the errors that the browser has logged since the last call: of scripts, of the
// Content-Security-Policy, of requests.
func (p *Page) Complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.complaints
	p.complaints = nil
	return all
}

// Close closes the tab.
func (p *Page) Close() { p.cancel() }

// Context is the context for commands of chromedp on the page.
func (p *Page) Context() context.Context { return p.ctx }

// Go opens an address.
func (p *Page) Go(url string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Do(ctx, chromedp.Navigate(url))
}

// SignIn opens an address with a session of its own. It does not go through the sign-in page, which
// takes twice as long.
func (p *Page) SignIn(admin, hash string) error {
	cookies, key, err := session(p.ctx, admin)
	if err != nil {
		return err
	}
	for _, c := range cookies {
		cookie := network.SetCookieParams{Name: c.Name, Value: c.Value, URL: admin, HTTPOnly: &c.HttpOnly}
		if _, err := chromedp.Call(p.ctx, network.SetCookie, cookie); err != nil {
			return fmt.Errorf("set the cookie of the session: %w", err)
		}
	}
	if err := p.Go(admin + "/login"); err != nil {
		return err
	}
	if _, err := Eval[bool](p, fmt.Sprintf("sessionStorage.setItem('sluice.session', %q), true", key)); err != nil {
		return err
	}
	if err := p.Go(admin + "/" + hash); err != nil {
		return err
	}
	return p.Wait(`document.querySelector("#pulse")?.dataset.phase === "live"`)
}

// session opens a session with the token, and returns its cookies and the key of its page.
func session(ctx context.Context, admin string) (cookies []*http.Cookie, key string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	form := strings.NewReader(url.Values{"token": {Token}}.Encode())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, admin+"/login", form)
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultTransport.RoundTrip(r) // which follows no redirect
	if err != nil {
		return nil, "", err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusSeeOther {
		return nil, "", fmt.Errorf("POST /login: %s", answer.Status)
	}
	return answer.Cookies(), answer.Header.Get("Sluice-Session"), nil
}

// Eval evaluates a script in the page.
func Eval[T any](p *Page, script string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		return v, fmt.Errorf("%.100s: %w", script, err)
	}
	return v, nil
}

// Wait waits until the script is true.
func (p *Page) Wait(script string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	for {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+script+")"))
		if err == nil && v {
			return nil
		}
		select {
		case <-ctx.Done():
			seen, _ := Eval[string](p, `document.body?.innerText.slice(0, 2000) || ""`)
			return fmt.Errorf("condition not met: %s: %w\nthe page shows:\n%s", script,
				errors.Join(err, ctx.Err()), seen)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// WaitText waits until the element shows the text.
func (p *Page) WaitText(selector, text string) error {
	return p.Wait(fmt.Sprintf(`[...document.querySelectorAll(%s)].some((n) => n.textContent.includes(%s))`,
		strconv.Quote(selector), strconv.Quote(text)))
}

// Click clicks the first element that is visible, as a person does.
func (p *Page) Click(selector string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible)); err != nil {
		return fmt.Errorf("click %s: %w", selector, err)
	}
	return nil
}

// Fill replaces the value of a field by typing over it.
func (p *Page) Fill(selector, value string) error {
	if err := p.Click(selector); err != nil {
		return err
	}
	// The click may miss a field that moves while the page is made.
	if _, err := Eval[bool](p, fmt.Sprintf("(() => { const f = document.querySelector(%s); f.focus(); f.select(); return true; })()", Quote(selector))); err != nil {
		return err
	}
	if err := p.Press(value); err != nil {
		return fmt.Errorf("fill %s: %w", selector, err)
	}
	return nil
}

// Press types keys into the focused element.
func (p *Page) Press(keys string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Do(ctx, chromedp.KeyEvent(keys))
}

// Picture writes a screenshot of the tab to a PNG file.
func (p *Page) Picture(file string) error {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return fmt.Errorf("picture %s: %w", file, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, png, 0o644)
}

// Quote is the text as a JavaScript literal.
func Quote(text string) string { return strings.ReplaceAll(strconv.Quote(text), "</", `<\/`) }
