package queue

import "testing"

func FuzzReadCursor(f *testing.F) {
	for _, seed := range []string{"", "0-0", "63-17", "64-0", "-1-0", "0-1099511627777", "1-", "x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		shard, from, err := readCursor(cursor, 64)
		if err == nil && (shard < 0 || shard >= 64 || from < 0) {
			t.Errorf("cursor %q is read as %d, %d", cursor, shard, from)
		}
	})
}
