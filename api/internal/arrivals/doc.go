// Package arrivals records the arrivals of jobs at this process and streams them to followers.
//
// # Words
//
//	arrival    a submission that the queue has decided on: instant, cost, route, admitted or not
//	history    the arrivals of one flow, a tenant's for one route, in the last hour
//	run        arrivals of a history that came close together: exact at both ends, spread evenly between them
//	width      the greatest length of a run: 1 ms at first, more when a history is full of runs
//	follower   receives every arrival of a tenant, exactly
//
// # What it promises
//
// Recording an arrival takes some tens of nanoseconds and allocates nothing once a history has
// grown. Memory is bounded for any number of tenants and arrivals: at the bound, histories become
// coarser, and the tenants that were silent longest are dropped. A recorded arrival is counted
// exactly, with its cost. A follower that is slower than the arrivals gets the number of those it
// has lost.
//
// Arrivals at other processes are unknown here, and the record ends with the process.
package arrivals
