// Package browsertest opens the dashboard of a real program in a real browser: Debian's chromium,
// driven by chromedp.
//
// It is for the tests of this package (make test-ui, build tag ui), which need chromium and
// redis-server, and for the command that makes the pictures of the documentation (make
// screenshots). Everything stays on loopback.
package browsertest
