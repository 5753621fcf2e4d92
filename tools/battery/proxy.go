package main

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"github.com/7509e464/sluice/internal/scripts"
)

// proxy stands between Sluice and Redis and loses replies: of a share of the scripts that Redis has
// executed it closes the connection with the reply unsent, and all that was to follow on that
// connection.
//
// It is not toxiproxy with a toxic of our own: a toxic sees the bytes of one direction only, and
// which reply is that of a script is known by the request; toxiproxy's chances are not drawn from
// our seed; and it listens on TCP alone.
type proxy struct {
	upstream string // the socket of Redis
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	rng     *rand.Rand
	share   float64
	open    map[net.Conn]bool
	scripts int            // replies of scripts that came while a share was to be lost, errors left out
	lost    map[string]int // those not passed on, by script
	// behind counts other replies that were outstanding on the closed connections; they are lost
	// too.
	behind int
}

func newProxy(socket, upstream string, rng *rand.Rand, share float64) (*proxy, error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	p := &proxy{
		upstream: upstream, listener: l, rng: rng, share: share, open: map[net.Conn]bool{},
		lost: map[string]int{},
	}
	p.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.running.Go(func() { p.serve(c) })
		}
	})
	return p, nil
}

// close ends all connections.
func (p *proxy) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	for c := range p.open {
		_ = c.Close()
	}
	p.open = nil
	p.mu.Unlock()
	p.running.Wait()
	return err
}

// lose sets the share of replies to be lost.
func (p *proxy) lose(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share = share
}

// keep notes the connections so that close ends them; it is false when it was called before.
func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		return false
	}
	for _, c := range conns {
		p.open[c] = true
	}
	return true
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.open, c)
	}
}

// serve passes one connection on until either side or a loss ends it.
func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("unix", p.upstream)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	if !p.keep(client, upstream) {
		return
	}
	defer p.forget(client, upstream)
	var asked asked
	requests := make(chan struct{})
	go func() {
		defer close(requests)
		p.requests(client, upstream, &asked)
		_ = upstream.Close() // the client has left
	}()
	p.replies(upstream, client, &asked)
	_, _ = client.Close(), upstream.Close()
	<-requests
}

// requests passes requests on and notes what is asked.
func (p *proxy) requests(from io.Reader, to io.Writer, asked *asked) {
	in := bufio.NewReaderSize(from, 64<<10)
	out := bufio.NewWriterSize(to, 64<<10)
	for {
		raw, err := readValue(in)
		if err != nil {
			return
		}
		asked.push(raw)
		if _, err := out.Write(raw); err != nil {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// replies passes replies on until one is to be lost.
func (p *proxy) replies(from io.Reader, to io.Writer, asked *asked) {
	in := bufio.NewReaderSize(from, 64<<10)
	out := bufio.NewWriterSize(to, 64<<10)
	for {
		raw, err := readValue(in)
		if err != nil {
			return
		}
		if raw[0] != '>' { // a push answers nothing
			if script := asked.pop(); script != "" && raw[0] != '-' && p.loses(script) {
				_ = out.Flush() // those before it are not lost
				p.mu.Lock()
				p.behind += asked.len()
				p.mu.Unlock()
				return
			}
		}
		if _, err := out.Write(raw); err != nil {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// loses decides on the reply of a script.
func (p *proxy) loses(script string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.share == 0 {
		return false
	}
	p.scripts++
	if p.rng.Float64() >= p.share {
		return false
	}
	p.lost[script]++
	return true
}

// asked is what was asked on a connection and is not answered yet: names of scripts, empty for all
// other commands.
type asked struct {
	mu    sync.Mutex
	names []string
	plain bool // subscribed: what comes from then on answers nothing
}

func (a *asked) push(request []byte) {
	first := words(request, 2)
	a.mu.Lock()
	defer a.mu.Unlock()
	name := ""
	if len(first) > 0 {
		switch strings.ToUpper(first[0]) {
		case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE":
			a.plain = true
		case "EVALSHA", "EVAL":
			name = scriptName(first[len(first)-1])
		}
	}
	a.names = append(a.names, name)
}

// pop is the script that the next reply belongs to, empty if it is none's.
func (a *asked) pop() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plain || len(a.names) == 0 {
		return ""
	}
	name := a.names[0]
	a.names = a.names[1:]
	return name
}

func (a *asked) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.names)
}

// scriptName names a script by its hash or source; those of another version are "other".
func scriptName(script string) string {
	for _, s := range scripts.Commands.All() {
		if script == s.SHA() || script == s.Source() {
			return s.Name
		}
	}
	return "other"
}

// openProxy starts a proxy before the world's Redis, which need not run yet, for the processes that
// are started from then on.
func (w *world) openProxy(share float64) (*proxy, error) {
	socket := filepath.Join(w.dir, "proxy.sock")
	p, err := newProxy(socket, w.socket(), rand.New(rand.NewPCG(w.rng.Uint64(), 0)), share)
	w.url = "unix://" + socket
	return p, err
}
