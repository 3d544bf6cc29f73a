package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// The variables that point to servers which run already.
const (
	mysqlVariable       = "FERRYTEST_MYSQL_DSN"
	nameServersVariable = "FERRYTEST_ROCKETMQ_NAMESRV"
)

// servers are the MySQL and the RocketMQ that the demo uses.
type servers struct {
	dsn, nameServers string
	stop             func() error // ends what findServers started, and nothing else
}

// findServers takes the servers named by the environment. If none are, it starts
// some, or uses those that were started by hand and leaves them running.
func findServers(ctx context.Context, scratch string) (servers, error) {
	s := servers{os.Getenv(mysqlVariable), os.Getenv(nameServersVariable), func() error { return nil }}
	switch {
	case s.dsn != "" && s.nameServers != "":
		return s, nil
	case s.dsn != "" || s.nameServers != "":
		return s, fmt.Errorf("set both %s and %s, or neither", mysqlVariable, nameServersVariable)
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return s, err
	}
	t := serviceTool{path: filepath.Join(scratch, "services"), root: root}
	if err := buildBinary(ctx, t.path, "internal/testservers/services"); err != nil {
		return s, err
	}
	return t.start(ctx)
}

// moduleRoot is the folder of the repository: the servers are fetched into it.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", modulePath).Output()
	if err != nil {
		return "", fmt.Errorf("looking for the repository (run the demo inside it): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// serviceTool is the program that starts and stops servers for trying things.
type serviceTool struct{ path, root string }

func (t serviceTool) start(ctx context.Context) (servers, error) {
	before, err := t.call(ctx, "status")
	if err != nil {
		return servers{}, err
	}
	stop := func() error {
		fmt.Println("stopping MySQL and RocketMQ, which takes some seconds")
		_, err := t.call(context.WithoutCancel(ctx), "down")
		return err
	}
	if strings.Contains(before, "runs on port") {
		stop = func() error { return nil } // somebody else's: left running
	}
	fmt.Println("starting MySQL and RocketMQ (fetched first if they are not here yet, which takes minutes)")
	if _, err := t.call(ctx, "up"); err != nil {
		return servers{}, errors.Join(err, stop())
	}
	env, err := t.call(ctx, "env")
	if err != nil {
		return servers{}, errors.Join(err, stop())
	}
	s := servers{dsn: exported(env, mysqlVariable), nameServers: exported(env, nameServersVariable), stop: stop}
	if s.dsn == "" || s.nameServers == "" {
		return s, errors.Join(fmt.Errorf("the servers do not say where they are: %q", env), stop())
	}
	return s, nil
}

// call runs the tool in a process group of its own: Ctrl-C reaches it, and what it
// runs, through ctx. The servers that it has started go on until "down".
func (t serviceTool) call(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, t.path, command)
	cmd.Dir = t.root
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("services %s: %w\n%s", command, err, problems.String())
	}
	return out.String(), nil
}

// exported finds export NAME='VALUE' in lines meant for a shell.
func exported(env, name string) string {
	m := regexp.MustCompile(`(?m)^export ` + name + `='(.*)'$`).FindStringSubmatch(env)
	if m == nil {
		return ""
	}
	return m[1]
}
