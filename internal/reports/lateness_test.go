package reports

import (
	"testing"
	"time"
)

// TestLatenessClasses: every lateness is in a class whose upper end is above it, by an eighth at
// most, and classes ascend.
func TestLatenessClasses(t *testing.T) {
	before := -1
	for us := int64(0); us < 1<<24; us += 1 + us/64 {
		d := time.Duration(us) * time.Microsecond
		class := LatenessClass(d)
		if class < before || class > before+1 {
			t.Fatalf("%v is in class %d, what came before in %d", d, class, before)
		}
		before = class
		if top := latenessOf(class); top <= d || top > d+d/8+time.Microsecond {
			t.Fatalf("%v is reported as %v", d, top)
		}
	}
	if before != LatenessClasses-1 {
		t.Errorf("the last class is %d", before)
	}
	for d, want := range map[time.Duration]int{-time.Hour: 0, 0: 0, time.Hour: LatenessClasses - 1} {
		if got := LatenessClass(d); got != want {
			t.Errorf("%v is in class %d, want %d", d, got, want)
		}
	}
}

func TestLatenessQuantiles(t *testing.T) {
	var l Lateness
	if l.Quantile(0.99) != 0 || string(l.encode()) != "{}" {
		t.Errorf("nothing is %v, %q", l.Quantile(0.99), l.encode())
	}
	l[3], l[5] = 99, 1 // 3 µs to 4 µs, 5 µs to 6 µs
	for q, want := range map[float64]time.Duration{0: 4, 0.5: 4, 0.99: 4, 0.991: 6, 1: 6} {
		if got := l.Quantile(q); got != want*time.Microsecond {
			t.Errorf("the quantile %v is %v, want %v", q, got, want*time.Microsecond)
		}
	}
}

// FuzzLateness: whatever another version or a stranger has written is read without harm, and what
// was written here as it was.
func FuzzLateness(f *testing.F) {
	for _, text := range []string{
		"", `{"3":99,"5":1}`, `{"175":1}`, `{"176":1,"-1":2}`, `{"3":-1}`, "3", `{"3":"x"}`, `{"x":3}`,
		`{"1":1,"1":1}`,
		`{"3":9999999999999999}`, "3:99 5:1",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var l, again Lateness
		l.add(text)
		for class, n := range l {
			if n < 0 {
				t.Fatalf("class %d has %d", class, n)
			}
		}
		if again.add(string(l.encode())); again != l && l.Sum() < 1<<40 {
			t.Errorf("%q is read as %q", l.encode(), again.encode())
		}
	})
}
