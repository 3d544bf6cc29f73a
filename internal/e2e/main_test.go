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

// raceBinary is the program under test, built once with the race detector.
var raceBinary string

func TestMain(m *testing.M) {
	var err error
	if raceBinary, err = build("rowferry-race", "-race"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testservers.Main(m)
}

// plainBinary is the program as it is shipped, for measurements.
var plainBinary = sync.OnceValues(func() (string, error) { return build("rowferry") })

// build builds the program into a git-ignored folder of the module. It is put in
// place by a rename, so that another test process may be running an older one.
func build(name string, flags ...string) (string, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
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
