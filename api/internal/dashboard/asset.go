package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

// formats are the media types of the files, by the end of their names.
var formats = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// asset is a file as it is sent: plain, and compressed where that saves something.
//
// Browsers cache it and revalidate it each time: names have no version, and after an upgrade no
// module of the old program may be used.
type asset struct {
	format string
	plain  []byte
	tag    string        // of the plain form; the compressed form has another
	packed func() []byte // compressed at the first request; nil if that saves nothing
}

func newAsset(name string, content []byte) (*asset, error) {
	format, known := formats[path.Ext(name)]
	if !known {
		return nil, fmt.Errorf("%s: a file with an unknown extension", name)
	}
	sum := sha256.Sum256(content)
	return &asset{
		format: format, plain: content, tag: hex.EncodeToString(sum[:12]),
		packed: sync.OnceValue(func() []byte { return pack(content) }),
	}, nil
}

// pack compresses content; nil if that saves nothing.
func pack(content []byte) []byte {
	var packed bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // neither this level nor a buffer fails
	_, _ = zip.Write(content)
	_ = zip.Close()
	if packed.Len() >= len(content) {
		return nil
	}
	return packed.Bytes()
}

// serve answers with the file, or with 304 if the browser has it.
func (a *asset) serve(w http.ResponseWriter, r *http.Request, status int) {
	h := w.Header()
	content, tag := a.plain, `"`+a.tag+`"`
	if packed := a.packed(); packed != nil {
		h.Set("Vary", "Accept-Encoding")
		if takesGzip(r.Header.Get("Accept-Encoding")) {
			content, tag = packed, `"`+a.tag+`-gzip"`
			h.Set("Content-Encoding", "gzip")
		}
	}
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", tag)
	if status == http.StatusOK && names(r.Header.Get("If-None-Match"), tag) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", a.format)
	h.Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(content) // the client may be gone
	}
}

// takesGzip reads Accept-Encoding. A quality of zero is a refusal.
func takesGzip(accepted string) bool {
	for one := range strings.SplitSeq(accepted, ",") {
		name, quality, _ := strings.Cut(one, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, rated := strings.CutPrefix(strings.ReplaceAll(quality, " ", ""), "q=")
		return !rated || strings.Trim(q, "0.") != ""
	}
	return false
}

// names reports whether a list of entity tags, weak ones included, has this one.
func names(list, tag string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if strings.TrimPrefix(strings.TrimSpace(one), "W/") == tag {
			return true
		}
	}
	return false
}
