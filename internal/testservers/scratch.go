package testservers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

const (
	// runPrefix names the folders that a later process may remove.
	runPrefix = "test-"
	lockName  = "lock"
)

// moduleRoot is found at load time, before a test can change the working directory.
var moduleRoot = findModuleRoot()

func findModuleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "provision")); err == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return ""
	}
}

// serversDir is where scripts/provision puts the servers.
func serversDir() string {
	dir := os.Getenv("FERRYTEST_SERVERS_DIR")
	if dir == "" {
		return filepath.Join(moduleRoot, ".servers")
	}
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(moduleRoot, dir)
}

// MySQLTool is the path of a program that comes with the provisioned MySQL, such as
// mysqlbinlog.
func MySQLTool(name string) string { return filepath.Join(serversDir(), "mysql", "bin", name) }

var (
	provisionMu sync.Mutex
	provisioned = map[string]bool{}
)

// provision makes sure that a server is there; one process asks for each only once.
func provision(name string) error {
	provisionMu.Lock()
	defer provisionMu.Unlock()
	if provisioned[name] {
		return nil
	}
	if moduleRoot == "" {
		return fmt.Errorf("provisioning %s: scripts/provision is not above the working directory", name)
	}
	cmd := exec.Command(filepath.Join(moduleRoot, "scripts", "provision"), name)
	cmd.Env = append(os.Environ(), "FERRYTEST_SERVERS_DIR="+serversDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("provisioning %s: %w\n%s", name, err, out)
	}
	provisioned[name] = true
	return nil
}

// program is the path of a provisioned program.
func program(server, name string) string {
	return filepath.Join(serversDir(), server, "bin", name)
}

// runDir is the folder for all servers of this process. A lock held on a file in it for
// as long as the process lives tells later processes when it may go.
var runDir = sync.OnceValues(makeRunDir)

// runLock keeps the lock file from being collected, which would close it.
var runLock *os.File

func makeRunDir() (string, error) {
	base := filepath.Join(serversDir(), "run")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", fmt.Errorf("making the folder for server data: %w", err)
	}
	// Held until the new folder is locked, so that nobody sweeps it before that.
	gate, err := lockFile(filepath.Join(base, ".lock"), syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer gate.Close()
	sweep(base)
	dir, err := os.MkdirTemp(base, runPrefix)
	if err != nil {
		return "", fmt.Errorf("making the folder for server data: %w", err)
	}
	runLock, err = lockFile(filepath.Join(dir, lockName), syscall.LOCK_EX)
	return dir, err
}

// sweep removes the folders of processes that have ended without doing so.
func sweep(base string) {
	dirs, _ := filepath.Glob(filepath.Join(base, runPrefix+"*"))
	for _, dir := range dirs {
		lock, err := lockFile(filepath.Join(dir, lockName), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // in use
		}
		os.RemoveAll(dir) // what cannot be removed is tried again next time
		lock.Close()
	}
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// removeRunDir removes what this process made, at its end.
func removeRunDir() {
	if runLock != nil {
		os.RemoveAll(filepath.Dir(runLock.Name()))
		runLock.Close()
	}
}

// newDir makes a folder for one server.
func newDir(name string) (string, error) {
	base, err := runDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, name+"-")
	if err != nil {
		return "", fmt.Errorf("making the folder for server data: %w", err)
	}
	return dir, nil
}

// FreePort picks a port on 127.0.0.1 where it and its neighbours up to span ports away,
// on either side, are free. It stays below the kernel's range for outgoing connections,
// so that the port of a stopped server is still free when it starts again.
func FreePort(span int) int {
	for {
		port := 10000 + rand.IntN(22000)
		if allFree(port-span, port+span) {
			return port
		}
	}
}

func allFree(from, to int) bool {
	for port := from; port <= to; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}
