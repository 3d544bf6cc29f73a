package testservers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// NoteSources looks at every file below root that goes into the program. The go command
// notes what a test has looked at, and does not call a result still valid when one of
// those files has changed since.
func NoteSources(root string) error {
	for _, dir := range []string{"cmd", "internal", "pkg", "migrations", "go.mod"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("looking at the sources: %w", err)
		}
	}
	return nil
}
