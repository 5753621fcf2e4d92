//go:build !seeded

package seeded

// Is reports whether the bug is planted.
func Is(string) bool { return false }

// Script is the text of a script's file, with the bug in it.
func Script(_, text string) string { return text }
