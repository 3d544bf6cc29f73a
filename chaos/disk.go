package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// A small disk of the broker's own can be filled up. The broker keeps its messages in one
// file that is larger than all of them, since a full disk has it delete files that are done.
const (
	diskBytes      = 640 << 20
	commitLogBytes = 512 << 20
)

// disk is the broker's; nil where none can be mounted.
type disk struct{ dir string }

// mountDisk returns nil without an error where this process may not mount.
func mountDisk(dir string) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the broker's disk: %w", err)
	}
	if err := syscall.Mount("chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		return nil, nil
	}
	return &disk{dir}, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves a twentieth of the disk free; RocketMQ takes no messages beyond nine tenths.
func (d *disk) fill() error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &s); err != nil {
		return fmt.Errorf("measuring the broker's disk: %w", err)
	}
	f, err := os.Create(d.ballast())
	if err != nil {
		return fmt.Errorf("filling the broker's disk: %w", err)
	}
	defer f.Close()
	n := int64(s.Bavail)*s.Bsize - diskBytes/20
	if n <= 0 {
		return nil
	}
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, n); err != nil {
		return fmt.Errorf("filling the broker's disk: %w", err)
	}
	return nil
}

func (d *disk) clear() error { return os.Remove(d.ballast()) }

func (d *disk) unmount() error {
	if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("removing the broker's disk: %w", err)
	}
	return nil
}
