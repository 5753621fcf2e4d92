package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/queuetest"
)

// upToN is a list of the numbers from 1 to n; a cursor is the last number.
func upToN(n int, asked *[]int) Listed[int] {
	return Listed[int]{
		Most: 4, Head: "NUMBER", Row: strconv.Itoa,
		Fetch: func(cursor string, limit int) ([]int, string, error) {
			*asked = append(*asked, limit)
			from, _ := strconv.Atoi(cursor)
			var items []int
			for i := from + 1; i <= n && len(items) < limit; i++ {
				items = append(items, i)
			}
			if last := from + len(items); last < n {
				return items, strconv.Itoa(last), nil
			}
			return items, "", nil
		},
	}
}

// A list is fetched in pages up to its limit. Where there is more, it ends with the next cursor.
func TestListing(t *testing.T) {
	for _, c := range []struct {
		n     int
		flags ListFlags
		shown int
		next  string
		asked string
	}{
		{0, ListFlags{Limit: new(10)}, 0, "", "[4]"},
		{3, ListFlags{Limit: new(10)}, 3, "", "[4]"},
		{10, ListFlags{Limit: new(10)}, 10, "", "[4 4 2]"},
		{11, ListFlags{Limit: new(10)}, 10, "10", "[4 4 2]"},
		{11, ListFlags{Limit: new(2)}, 2, "2", "[2]"},
		{11, ListFlags{Limit: new(1), All: true}, 11, "", "[4 4 4]"},
	} {
		for _, c.flags.JSON = range []bool{false, true} {
			var asked []int
			var out, notes strings.Builder
			if err := upToN(c.n, &asked).Print(&out, &notes, c.flags); err != nil {
				t.Fatal(err)
			}
			sizes := strings.ReplaceAll(toJSON(t, asked), ",", " ")
			if sizes != c.asked {
				t.Errorf("%+v of %d: pages of %v, want %s", c.flags, c.n, asked, c.asked)
			}
			if !c.flags.JSON {
				lines := strings.Count(out.String(), "\n")
				if lines != c.shown+min(c.shown, 1) || (notes.Len() > 0) != (c.next != "" || c.n == 0) {
					t.Errorf("%+v of %d: %q %q", c.flags, c.n, out.String(), notes.String())
				}
				continue
			}
			var got struct {
				Items []int  `json:"items"`
				Next  string `json:"next_cursor"`
			}
			what := fmt.Sprintf("%+v of %d: ", c.flags, c.n)
			if err := json.Unmarshal([]byte(out.String()), &got); err != nil || got.Items == nil {
				t.Errorf("%s%v: %s, want a list of items", what, err, out.String())
			}
			queuetest.Compare(t, what+"the items", len(got.Items), c.shown)
			queuetest.Compare(t, what+"the next cursor", got.Next, c.next)
			queuetest.Compare(t, what+"the notes", notes.String(), "")
		}
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A limit of 0 is wrong usage. If a page cannot be fetched, the pages before it are printed.
func TestListingFailures(t *testing.T) {
	var asked []int
	if err := upToN(1, &asked).Print(&strings.Builder{}, &strings.Builder{}, ListFlags{Limit: new(0)}); !errors.As(err,
		new(UsageError)) {
		t.Errorf("a limit of 0: %v", err)
	}
	broken := errors.New("broken")
	list := upToN(10, &asked)
	fetch := list.Fetch
	list.Fetch = func(cursor string, limit int) ([]int, string, error) {
		if cursor != "" {
			return nil, "", broken
		}
		return fetch(cursor, limit)
	}
	var out strings.Builder
	if err := list.Print(&out, &strings.Builder{}, ListFlags{Limit: new(1), All: true}); !errors.Is(err, broken) ||
		!strings.Contains(out.String(), "4\n") {
		t.Errorf("%v, printed %q", err, out.String())
	}
}
