package rocketmq

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
	"github.com/rs/zerolog"
)

// What the library keeps once for a whole process: its logger, its panic
// handler, and the TLS switch and timeouts of every connection. Writing them
// while clients run is a data race, so this is done once, before the first client.
var process struct {
	sync.Mutex
	prepared   bool
	tls        bool
	configured bool // a producer has been built with the options below
}

// panics counts panics that the library swallowed. One of them may have ended a
// loop that refreshes routes, so a producer older than the last one is rebuilt.
var panics atomic.Int64

// prepareProcess takes the library over. The first sink's logger serves them all.
func prepareProcess(useTLS bool, log zerolog.Logger) error {
	process.Lock()
	defer process.Unlock()
	if process.prepared {
		if process.tls != useTLS {
			return fmt.Errorf("ROWFERRY_ROCKETMQ_TLS: the client library has one switch for a process, and it is already %t", process.tls)
		}
		return nil
	}
	process.prepared, process.tls = true, useTLS
	log = log.With().Str("component", "rocketmq").Logger()
	rlog.SetLogger(&libraryLog{log: log, last: map[string]*logged{}, now: time.Now})
	primitive.DefaultPanicHandler = func(v any) {
		panics.Add(1)
		log.Error().Str("panic", fmt.Sprint(v)).Msg("the RocketMQ client library panicked; its producers are rebuilt")
	}
	return nil
}

// newLibraryProducer builds a producer. The options that write process globals
// go to the first one only.
func newLibraryProducer(options ...producer.Option) (libraryProducer, error) {
	process.Lock()
	defer process.Unlock()
	if !process.configured {
		options = append(options,
			// Dialing holds a lock of the whole producer, and reading must outlast
			// the heartbeat of 30 s.
			producer.WithRemotingTimeout(3*time.Second, 90*time.Second, 10*time.Second),
			producer.WithTls(process.tls))
	}
	p, err := producer.NewDefaultProducer(options...)
	if err != nil {
		return nil, err
	}
	process.configured = true
	return p, nil
}

// libraryLog passes the library's messages on, each text at most once in
// logInterval: under failure it writes a line for every attempt of every lane.
type libraryLog struct {
	log  zerolog.Logger
	now  func() time.Time
	mu   sync.Mutex
	last map[string]*logged // by text; the library has some dozens
}

type logged struct {
	at         time.Time
	suppressed int
}

const logInterval = 30 * time.Second

// allow reports whether text may be written now, and how often it was not.
func (l *libraryLog) allow(text string) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	seen := l.last[text]
	if seen == nil {
		l.last[text] = &logged{at: now}
		return 0, true
	}
	if now.Sub(seen.at) < logInterval {
		seen.suppressed++
		return 0, false
	}
	suppressed, seen.suppressed, seen.at = seen.suppressed, 0, now
	return suppressed, true
}

// emit formats only values that nobody else changes.
func (l *libraryLog) emit(level zerolog.Level, text string, fields map[string]interface{}) {
	if l.log.GetLevel() > level {
		return
	}
	suppressed, ok := l.allow(text)
	if !ok {
		return
	}
	e := l.log.WithLevel(level)
	for name, v := range fields {
		switch v := v.(type) {
		case string:
			e = e.Str(name, v)
		case error:
			e = e.AnErr(name, v)
		case int:
			e = e.Int(name, v)
		case int64:
			e = e.Int64(name, v)
		case bool:
			e = e.Bool(name, v)
		}
	}
	e.Int("suppressed", suppressed).Msg(text)
}

// Debug implements rlog.Logger: nothing in it helps an operator.
func (l *libraryLog) Debug(string, map[string]interface{}) {}

// Info implements rlog.Logger.
func (l *libraryLog) Info(m string, f map[string]interface{}) { l.emit(zerolog.DebugLevel, m, f) }

// Warning implements rlog.Logger.
func (l *libraryLog) Warning(m string, f map[string]interface{}) { l.emit(zerolog.DebugLevel, m, f) }

// Error implements rlog.Logger.
func (l *libraryLog) Error(m string, f map[string]interface{}) { l.emit(zerolog.WarnLevel, m, f) }

// Fatal implements rlog.Logger and, unlike the library's own, does not exit.
func (l *libraryLog) Fatal(m string, f map[string]interface{}) { l.emit(zerolog.ErrorLevel, m, f) }

// Level implements rlog.Logger; LOG_LEVEL decides.
func (l *libraryLog) Level(string) {}

// OutputPath implements rlog.Logger; logs go where all others go.
func (l *libraryLog) OutputPath(string) error { return nil }
