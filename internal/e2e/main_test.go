package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }

var (
	// raceBinary is the program under test, with the race detector.
	raceBinary = sync.OnceValues(func() (string, error) { return build("rowferry-race", "-race") })
	// plainBinary is the program as it is shipped, for measurements.
	plainBinary = sync.OnceValues(func() (string, error) { return build("rowferry") })
)

// binary waits for a build, which is made once.
func binary(tb testing.TB, build func() (string, error)) string {
	tb.Helper()
	path, err := build()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// build builds the program into a git-ignored folder of the module. It is put in
// place by a rename, so that another test process may be running an older one.
func build(name string, flags ...string) (string, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	if err := testservers.NoteSources(root); err != nil {
		return "", err
	}
	path := filepath.Join(root, ".servers", "e2e", name)
	half := fmt.Sprintf("%s.%d", path, os.Getpid())
	args := append(append([]string{"build"}, flags...), "-o", half, "./cmd/rowferry")
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building rowferry: %w\n%s", err, out)
	}
	return path, os.Rename(half, path)
}
