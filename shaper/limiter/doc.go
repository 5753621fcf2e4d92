// Package limiter holds the five classic rate limiters as pure functions: (state, policy, now,
// cost) → (state, decision). They count and refuse, while the shaper makes jobs wait. They suit
// requests that must be answered at once. Memory applies one of them to many keys in this process.
//
// # Words
//
//	key        whose requests are counted together
//	policy     which limiter, and its limit per period
//	cost       what a request takes of the limit, 1 or more; 0 reads the state and takes nothing
//	window     a stretch of one period
//	decision   allowed or refused, what remains, when to come back
//	overflow   a refusal of a request that would have fitted into an unused limit
//	reset      when the key is as if it had never been used
//
// # Which promises what
//
//	                   at most in any window        state                  weak where
//	fixed-window       2 × limit                    instant, count         two windows meet: twice the limit at one instant
//	sliding-log        limit                        16 B a request         memory grows with the limit
//	sliding-counter    2 × limit − 1                instant, two counts    the window before was not even: it guesses
//	token-bucket       burst + limit                instant, remainder     an idle key may send its burst at once, on top of the rate
//	leaky-meter        burst + limit                instant, remainder     the same: it is the token bucket seen from the other side
//
// All of them refuse, so a client that is too fast must try again, and the allowed requests are as
// bursty as the arrivals. That is why the shaper makes jobs wait instead.
//
// # Arithmetic
//
// Instants are whole microseconds. Nothing is rounded away: the buckets keep the remainder of each
// division. All numbers stay
// below 2⁵³, so that scripts may compute the same in IEEE doubles.
package limiter
