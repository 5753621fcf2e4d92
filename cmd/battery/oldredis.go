package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
)

// answerAsOld speaks as much RESP as a client needs to find out that this is a Redis 6.0.16.
func answerAsOld(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "+OK\r\n"
		switch strings.ToUpper(command[0]) {
		case "PING":
			answer = "+PONG\r\n"
		case "HELLO":
			answer = "-ERR unknown command `HELLO`\r\n"
		case "INFO":
			info := "# Server\r\nredis_version:6.0.16\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n"
			answer = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

// readCommand reads an array of bulk strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		raw := make([]byte, size+2)
		if _, err := io.ReadFull(in, raw); err != nil {
			return nil, err
		}
		words[i] = string(raw[:size])
	}
	return words, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil || line[0] != kind || n < 1 || n > 1<<16 {
		return 0, fmt.Errorf("not RESP: %q", line)
	}
	return n, nil
}
