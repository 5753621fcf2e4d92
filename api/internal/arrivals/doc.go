// Package arrivals remembers when jobs came to this process, and lets others watch them come.
//
// # Words
//
//	arrival    a submission that the queue has judged: the store's instant, its cost, its route, and whether it was admitted
//	history    the arrivals of one flow, a tenant's for one route, in the last hour
//	run        arrivals of a history that came close together: exact at both ends, spread evenly between them
//	width      how long a run may be: 1 ms at first, more where a history has not the room for so many runs
//	follower   somebody who is told every arrival of a tenant, exactly
//
// # What it promises
//
// Noting an arrival takes some tens of nanoseconds and allocates nothing once a history has its
// room. Memory is bounded, whatever the number of tenants and of their arrivals: then histories
// become coarser, and tenants that were silent longest are forgotten. An arrival that is remembered
// at all is counted exactly, with its cost. A follower who is slower than the arrivals is told how
// many were lost.
//
// What other processes have admitted is not known here, and nothing outlives the process.
package arrivals
