// Package subprocess ties a child process to the one that starts it.
package subprocess
