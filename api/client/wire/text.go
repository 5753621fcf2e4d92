package wire

import "unicode"

// IsControl reports whether no name may have this character: it controls terminals, changes the
// direction of text, ends lines or cannot be seen. A name must look like what it is.
func IsControl(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp)
}
