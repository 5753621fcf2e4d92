package process

import "os"

// ballastSize is how much the collector takes for in use that is not: so it runs when 64 MB more
// are, however little the process holds.
const ballastSize = 32 << 20

// ballast is memory that is never touched and so takes no room. A server holds few megabytes and
// makes many; without it the collector would run many times a second for them, in the way of
// requests and departures. With GOGC set the operator has decided otherwise.
var ballast []byte

func loadBallast() {
	if os.Getenv("GOGC") == "" {
		ballast = make([]byte, ballastSize)
	}
}
