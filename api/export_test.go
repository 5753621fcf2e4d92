package api

import "github.com/7509e464/sluice/queue"

// Ports, and those of them that tests outside the package replace.
type (
	Ports    = ports
	Admitter = admitter
	Jobs     = jobs
	Ends     = ends
)

func (p *ports) Admitter() *Admitter { return &p.admitter }
func (p *ports) Jobs() *Jobs         { return &p.jobs }
func (p *ports) Ends() *Ends         { return &p.ends }

// NewOver is New with ports of the queue replaced.
func NewOver(q *queue.Queue, cfg Config, replace ...func(*Ports)) (*Server, error) {
	p := portsOf(q)
	for _, r := range replace {
		r(&p)
	}
	return newServer(p, cfg)
}
