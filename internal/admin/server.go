package admin

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Relay is what the server needs of a relay. Its methods are called from many
// goroutines.
type Relay interface {
	// Status must answer from memory: it is asked on every probe.
	Status() Status
	// Ready returns the reasons why the relay is not ready; none: it is. Not
	// leading is no reason.
	Ready() []string
	// Sweep does one sweep and returns when nothing eligible is left.
	Sweep(ctx context.Context) (outbox.Tally, error)
	// Topics compares the frozen queue lists with what the brokers have.
	Topics(ctx context.Context) (Topics, error)
	// SetPaused writes down that publishing is paused, or no longer is, and returns when
	// nothing is being sent, or a send takes too long to be waited for.
	SetPaused(ctx context.Context, on bool) (Pausing, error)
	// Refreeze says what another queue list of a topic would move, or replaces it.
	Refreeze(ctx context.Context, ask RefreezeRequest) (Refreezing, error)
}

// Config is what Start needs; all but Token, Refresh and Letters are required.
type Config struct {
	Addr    string // host:port; port 0 takes a free one
	Token   string // bearer token; empty: actions from this host only
	Relay   Relay
	Letters Letters // nil: there are no paths for dead letters
	Metrics prometheus.Gatherer
	Refresh func() // brings gauges up to date before they are gathered; one call at a time
	Logger  zerolog.Logger
}

// Server answers HTTP until Close.
type Server struct {
	config  Config
	http    *http.Server
	addr    net.Addr
	cancel  context.CancelFunc // ends what requests are doing
	ended   chan struct{}
	scrapes sync.Mutex // held while gauges are refreshed and gathered
}

// Start binds the address and serves. Its error means that the address cannot be
// bound, and names it.
func Start(c Config) (*Server, error) {
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Addr)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("listening for HTTP (ROWFERRY_HTTP_ADDR=%s): %w", c.Addr, err)
	}
	s := &Server{config: c, addr: listener.Addr(), cancel: cancel, ended: make(chan struct{})}
	s.http = &http.Server{
		Handler: s.handler(),
		// A write deadline is set per request by withDeadline: a sweep may take
		// long, anything else may not.
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          stdlog.New(warnings{c.Logger}, "", 0),
	}
	go s.serve(listener)
	return s, nil
}

func (s *Server) serve(listener net.Listener) {
	defer close(s.ended)
	if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		s.config.Logger.Error().Err(err).Msg("HTTP server ended; health, metrics and actions are gone until a restart")
	}
}

// Addr returns the address that was bound.
func (s *Server) Addr() string { return s.addr.String() }

// Close stops the actions that are running, lets their answers out until ctx
// ends, then cuts the connections. Nothing of the server runs afterwards.
func (s *Server) Close(ctx context.Context) error {
	s.cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("stopping the HTTP server: %w", err), s.http.Close())
	}
	<-s.ended
	return err
}

// warnings writes what net/http complains about to the log.
type warnings struct{ log zerolog.Logger }

// Write implements io.Writer.
func (w warnings) Write(p []byte) (int, error) {
	w.log.Warn().Str("detail", string(p)).Msg("HTTP connection failed")
	return len(p), nil
}
