package queue

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// order is JSON such as a shop sends, of about 100 bytes for each item.
func order(items int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString(`{"order_id":"a3f09c","items":[`)
	for i := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":"SKU-%08x","quantity":%d,"unit_price":%d.%02d,"name":"shirt, colour %d"}`,
			r.Uint32(), 1+r.IntN(5), r.IntN(200), r.IntN(100), r.IntN(9))
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func TestCompress(t *testing.T) {
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for _, tt := range []struct {
		name    string
		over    int
		payload []byte
		shrinks bool
	}{
		{"never", 0, order(100), false},
		{"too small", 1024, order(5), false},
		{"large", 1024, order(100), true},
		{"at the bound", len(order(20)), order(20), true},
		{"nothing to gain", 1024, noise, false},
		{"like a compressed one", 0, append(bytes.Clone(compressed), order(100)...), true},
		{"like a short compressed one", 0, bytes.Clone(compressed), false},
		{"empty", 1, nil, false},
	} {
		q := &Queue{compressOver: tt.over}
		stored := q.compress(tt.payload)
		if shrinks := len(stored) < len(tt.payload); shrinks != tt.shrinks {
			t.Errorf("%s: %d bytes are stored as %d", tt.name, len(tt.payload), len(stored))
		}
		if back, err := decompress(stored); err != nil || !bytes.Equal(back, tt.payload) {
			t.Errorf("%s: came back as %d bytes, %v", tt.name, len(back), err)
		}
	}
}

func FuzzDecompress(f *testing.F) {
	f.Add([]byte(`{"a":1}`), 0)
	f.Add(order(20), 1)
	f.Add((&Queue{compressOver: 1}).compress(order(20)), 0)
	f.Add(append(bytes.Clone(compressed), 0xff, 0xff, 0xff, 0xff, 0x0f), 0)
	f.Fuzz(func(t *testing.T, payload []byte, over int) {
		_, _ = decompress(payload) // must not panic, nor take more memory than a payload may have
		back, err := decompress((&Queue{compressOver: over}).compress(payload))
		if err != nil || !bytes.Equal(back, payload) {
			t.Errorf("%d bytes came back as %d, %v", len(payload), len(back), err)
		}
	})
}

func BenchmarkCompress(b *testing.B) {
	for _, items := range []int{10, 100, 1000} {
		payload, q := order(items), &Queue{compressOver: 1}
		stored := q.compress(payload)
		b.Run(fmt.Sprintf("%dB", len(payload)), func(b *testing.B) {
			b.SetBytes(int64(len(payload)))
			b.ReportMetric(float64(len(stored))/float64(len(payload)), "stored/submitted")
			for b.Loop() {
				q.compress(payload)
			}
		})
		b.Run(fmt.Sprintf("%dB/back", len(payload)), func(b *testing.B) {
			b.SetBytes(int64(len(payload)))
			for b.Loop() {
				_, _ = decompress(stored)
			}
		})
	}
}
