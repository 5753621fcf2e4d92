package process

import (
	"os"
	"sync"
)

// ballast is allocated memory that is never touched, so it occupies no RAM. Go collects when the
// heap has doubled. With the ballast counted, that is after another 64 MB at the least, although a
// server holds only a few megabytes: with 4 MB live, 2 GB of garbage take 54 collections instead of
// 344. Each collection delays requests and departures.
//
// Neither GOGC nor GOMEMLIMIT does this for small and large heaps alike. GOGC=1600 lets a live heap
// of 200 MB grow to 2.2 GB. A memory limit with it collects without end above the limit: 104
// collections for 2 GB with 400 MB live and a limit of 256 MB, against 5 with the ballast.
//
// Where GOGC is set, the choice is the operator's, and there is none.
var ballast = sync.OnceValue(func() []byte {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return make([]byte, 32<<20)
})
