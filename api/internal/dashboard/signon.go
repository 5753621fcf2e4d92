package dashboard

import (
	"bytes"
	"html"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
)

const (
	// signOnTime is how long a sign-in at the provider may take.
	signOnTime = 10 * time.Minute
	// SignOnWait is how long one request waits for the provider.
	SignOnWait = 8 * time.Second
)

// leave sends the browser to the provider, with a ticket as a cookie.
func (d *Dashboard) leave(w http.ResponseWriter, r *http.Request) {
	if d.signOn == nil || d.sessions == nil {
		redirect(w, r, LoginPath)
		return
	}
	deadline.Within(w, SignOnWait+deadline.AnswerTimeout) // other handlers answer at once
	to, ticket, err := d.signOn.Begin(r)
	if err != nil {
		d.refuseSignOn(w, err)
		return
	}
	http.SetCookie(w, d.ticket(r, ticket, int(signOnTime/time.Second)))
	redirect(w, r, to)
}

// ticket is the cookie of a sign-in. Browsers send a strict cookie to no page that another site has
// led to.
func (d *Dashboard) ticket(r *http.Request, value string, maxAge int) *http.Cookie {
	c := d.sessions.bake(r, value, maxAge)
	c.Name, c.SameSite = d.sessions.name(r, ticketCookie), http.SameSiteLaxMode
	return c
}

// comeBack takes the browser back from the provider. The page that it answers with keeps the second
// key of the session, and goes on to the dashboard by itself: after a redirect from another site
// the browser would not send the cookie.
func (d *Dashboard) comeBack(w http.ResponseWriter, r *http.Request) {
	if d.signOn == nil || d.sessions == nil {
		redirect(w, r, LoginPath)
		return
	}
	ticket := ""
	if c, err := r.Cookie(d.ticket(r, "", 0).Name); err == nil {
		ticket = c.Value
	}
	deadline.Within(w, 2*SignOnWait+deadline.AnswerTimeout)
	who, err := d.signOn.End(r, ticket)
	if err != nil { // the ticket stays: it may be of a sign-in in another tab
		d.refuseSignOn(w, err)
		return
	}
	http.SetCookie(w, d.ticket(r, "", -1))
	cookie, key := d.sessions.begin(r, who)
	http.SetCookie(w, cookie)
	protect(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(bytes.Replace(d.entered, []byte(keyMark), []byte(`data-key="`+key+`"`), 1)) // the client may be gone
}

// refuseSignOn answers by the sign-in page with the reason.
func (d *Dashboard) refuseSignOn(w http.ResponseWriter, err error) {
	p := problem.Of(err)
	protect(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if after := p.Header.Get("Retry-After"); after != "" {
		w.Header().Set("Retry-After", after)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(loginWith(d.login.plain, html.EscapeString("Single sign-on has failed: "+p.Detail+".")))
}
