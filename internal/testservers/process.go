package testservers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// logTailBytes is how much of a server's log an error quotes.
const logTailBytes = 3000

// stopTimeout bounds a clean shutdown. RocketMQ's broker needs several seconds of it.
const stopTimeout = 60 * time.Second

// Launcher starts server processes.
type Launcher struct {
	// Outlive lets the servers go on after this process; otherwise the kernel kills them
	// with it.
	Outlive bool
}

// Process is a running server.
type Process struct {
	// PID and StartTime (in clock ticks since boot) name the process without doubt, also
	// after its PID has been used again.
	PID       int
	StartTime uint64

	logFile string
	exited  chan struct{} // closed when reaped; nil for a process of another parent
	waitErr error         // how it ended, once exited is closed
}

// Start runs cmd with its output appended to the file server.log in dir.
func (l Launcher) Start(dir string, cmd *exec.Cmd) (*Process, error) {
	logFile := filepath.Join(dir, "server.log")
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if l.Outlive {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = cmd.Start()
	} else {
		// A group of its own keeps Ctrl-C on the terminal for the test process alone.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		err = starter.start(cmd)
	}
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	p := &Process{PID: cmd.Process.Pid, logFile: logFile, exited: make(chan struct{})}
	p.StartTime, _ = startTime(p.PID) // unreadable only if it has ended already
	go p.reap(cmd)
	return p, nil
}

func (p *Process) reap(cmd *exec.Cmd) {
	p.waitErr = cmd.Wait()
	close(p.exited)
}

// Ended returns how the process ended: whether it has, and the error of its exit code.
func (p *Process) Ended() (bool, error) {
	if p.Alive() {
		return false, nil
	}
	return true, p.waitErr
}

// Freeze halts the process (SIGSTOP) and returns when every thread has stopped: the signal
// is only begun to be delivered when kill returns, and a busy thread may answer once more
// until then.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return p.await("a stopped server", func() error { return allStopped(p.PID) })
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Attach finds a process that an earlier Launcher started; false if it has ended.
func Attach(pid int, started uint64, dir string) (*Process, bool) {
	p := &Process{PID: pid, StartTime: started, logFile: filepath.Join(dir, "server.log")}
	return p, p.Alive()
}

// Alive tells whether the process runs.
func (p *Process) Alive() bool {
	if p.exited != nil {
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	now, err := startTime(p.PID)
	return err == nil && now == p.StartTime
}

// Signal sends sig, if the process is still the one that was started.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.Alive() {
		return fmt.Errorf("signal %v: process %d has ended", sig, p.PID)
	}
	return syscall.Kill(p.PID, sig)
}

// Stop asks for a clean shutdown and waits for its end. A frozen process is thawed.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return nil // ended in between
	}
	return p.wait(stopTimeout)
}

// Kill ends the process at once, as a crash would, and waits for its end.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.wait(10 * time.Second)
}

func (p *Process) wait(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) {
		if !p.Alive() {
			return nil
		}
		p.pause(20 * time.Millisecond)
	}
	return fmt.Errorf("process %d did not end within %v; its log ends:\n%s", p.PID, timeout, p.LogTail())
}

// pause waits for d or for the end of the process, whichever is first.
func (p *Process) pause(d time.Duration) {
	select {
	case <-p.exited: // never, for a process of another parent
	case <-time.After(d):
	}
}

// await calls ready until it returns nil, the process ends, or the time is up.
func (p *Process) await(what string, ready func() error) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if !p.Alive() {
			return fmt.Errorf("%s ended while starting (%v); its log ends:\n%s", what, p.waitErr, p.LogTail())
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not answer within %v (%w); its log ends:\n%s", what, startTimeout, err, p.LogTail())
		}
		p.pause(pollInterval)
	}
}

// LogTail is the end of the server's log.
func (p *Process) LogTail() string {
	log, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}
	if len(log) > logTailBytes {
		log = log[len(log)-logTailBytes:]
	}
	return string(log)
}

// startTime reads when a live process started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := statFields(stat)
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, errors.New("process has ended")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// statFields splits what stands in a stat file behind the command name, which is field
// 2, may hold anything and ends with the last parenthesis. The state comes first.
func statFields(stat []byte) []string {
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return strings.Fields(rest)
}

// allStopped returns nil when a signal has stopped every thread of a process.
func allStopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended meanwhile
		}
		if err != nil {
			return err
		}
		if fields := statFields(stat); len(fields) == 0 || fields[0] != "T" {
			return fmt.Errorf("%s is not stopped yet", file)
		}
	}
	return nil
}

// starter starts processes from one thread that lives as long as this process: the kernel
// sends a child its parent-death signal when the *thread* that started it ends, and Go
// ends threads as it sees fit.
var starter threadStarter

type threadStarter struct {
	once sync.Once
	jobs chan func()
}

func (s *threadStarter) start(cmd *exec.Cmd) error {
	s.once.Do(func() {
		s.jobs = make(chan func())
		go s.loop()
	})
	result := make(chan error)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

func (s *threadStarter) loop() {
	runtime.LockOSThread()
	for job := range s.jobs {
		job()
	}
}

// close ends the thread, and with it every server that still runs.
func (s *threadStarter) close() {
	s.once.Do(func() { s.jobs = make(chan func()) })
	close(s.jobs)
}
