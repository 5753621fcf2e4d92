// Package lua embeds the scripts that run inside Redis. One file is one command, and its header is
// its contract, which a test checks. The arithmetic in lib/bucket.lua is that of package shaper,
// step for step; a parity test compares the two.
//
// The scripts are plain Lua 5.1 and use only what the embedded engine has, too. Shared code is in
// lib and is linked by name.
package lua

import "embed"

// Sources holds the scripts as NAME.lua and their shared parts as lib/NAME.lua.
//
//go:embed *.lua lib/*.lua
var Sources embed.FS
