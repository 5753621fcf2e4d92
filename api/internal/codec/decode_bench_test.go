package codec

import "testing"

func BenchmarkSubmission(b *testing.B) {
	body := []byte(`{"type":"order.create","payload":{"sku":1,"customer":"c-1234567","items":[1,2,3],` +
		`"note":"leave at the door, please ring twice"}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeSubmission(body); err != nil {
			b.Fatal(err)
		}
	}
}
