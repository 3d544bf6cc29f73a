package main

import (
	"fmt"
	"sync"

	"github.com/rowferry/rowferry/internal/testservers"
)

// server is a process that faults befall. Whoever acts on it holds its target, so there is
// one act at a time; the mutex is for those who look.
type server struct {
	name   string
	launch func() (*testservers.Process, error)
	await  func(*testservers.Process) error

	mu sync.Mutex
	p  *testservers.Process
}

func (s *server) process() *testservers.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p
}

// start starts it and returns when it answers.
func (s *server) start() error {
	p, err := s.launch()
	if err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	s.mu.Lock()
	s.p = p
	s.mu.Unlock()
	if err := s.await(p); err != nil {
		return fmt.Errorf("starting %s: %w", s.name, err)
	}
	return nil
}

func (s *server) kill() error {
	if p := s.process(); p != nil && p.Alive() {
		return p.Kill()
	}
	return nil
}

func (s *server) freeze() error { return s.process().Freeze() }
func (s *server) thaw() error   { return s.process().Thaw() }
