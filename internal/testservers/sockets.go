package testservers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Connections returns how many TCP connections over IPv4 this process has, by the port of
// the other side, and how many files of any kind it has open. Connections to port 0 are
// sockets that listen.
func Connections(tb testing.TB) (byPort map[int]int, files int) {
	tb.Helper()
	ports, err := socketPorts()
	if err != nil {
		tb.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	byPort = map[int]int{}
	for _, fd := range fds {
		link, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err != nil {
			continue // it was the one by which the folder was read
		}
		files++
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			if port, ok := ports[strings.TrimSuffix(inode, "]")]; ok {
				byPort[port]++
			}
		}
	}
	return byPort, files
}

// socketPorts returns the other side's port of every socket, by inode.
func socketPorts() (map[string]int, error) {
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return nil, fmt.Errorf("listing the sockets: %w", err)
	}
	ports := map[string]int{}
	for i, line := range strings.Split(strings.TrimSpace(string(table)), "\n") {
		fields := strings.Fields(line)
		if i == 0 || len(fields) < 10 {
			continue // the heading
		}
		_, hex, _ := strings.Cut(fields[2], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("listing the sockets: %q: %w", line, err)
		}
		ports[fields[9]] = int(port)
	}
	return ports, nil
}
