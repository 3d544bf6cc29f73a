//go:build !unix

package checkpoint

import (
	"errors"
	"os"
)

// lockFile refuses: without a lock two processes could share the file.
func lockFile(string) (*os.File, error) {
	return nil, errors.New("checkpoint files are supported on Unix only")
}
