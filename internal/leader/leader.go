// Package leader lets one relay of a name be active, by GET_LOCK on a connection
// of its own.
//
// It promises that two processes never both hold a fresh lock, as far as the
// server's word goes: a lock is lost when its session is, the loss is noticed by
// a ping within seconds, and whoever could not ping (a frozen process, a dead
// network) sees by the clock that the lock is no longer to be trusted. Whatever
// still slips through is stopped by the epoch of the checkpoint.
package leader

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

// The server ends a session that has been silent for sessionSeconds, and with it
// the lock; the owner stops trusting the lock earlier, after FreshFor.
const (
	FreshFor       = 6 * time.Second
	pingInterval   = 3 * time.Second
	pingTimeout    = 3 * time.Second
	sessionSeconds = 9
	waitSeconds    = 2 // of one GET_LOCK; below any read timeout
	nameMax        = 64
)

// ErrReadOnly says that the server takes no writes, so leading there is useless.
var ErrReadOnly = errors.New("the server is read-only")

// Name returns the name of the lock for a relay of that name in a schema, as
// IS_USED_LOCK takes it. MariaDB compares lock names case-sensitively and MySQL
// refuses more than 64 characters, so it is lower case, and hashed if long.
func Name(schema, name string) string {
	full := strings.ToLower("rowferry:" + schema + ":" + name)
	if utf8.RuneCountInString(full) <= nameMax {
		return full
	}
	sum := sha256.Sum256([]byte(full))
	return "rowferry:" + hex.EncodeToString(sum[:])[:40]
}

// Holder is the session that holds a lock.
type Holder struct {
	ConnectionID int64
	User, Host   string // empty if the account may not see that session
}

// String returns how to find the session.
func (h Holder) String() string {
	s := fmt.Sprintf("connection %d", h.ConnectionID)
	if h.User != "" {
		s += " of " + h.User + "@" + h.Host
	}
	return s
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// HolderOf returns who holds the lock of a relay; found is false if nobody does.
func HolderOf(ctx context.Context, db *sql.DB, schema, name string) (h Holder, found bool, err error) {
	return holderOf(ctx, db, Name(schema, name))
}

func holderOf(ctx context.Context, db querier, lock string) (h Holder, found bool, err error) {
	var id sql.NullInt64
	if err := db.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", lock).Scan(&id); err != nil {
		return h, false, fmt.Errorf("asking who holds lock %s: %w", lock, err)
	}
	if !id.Valid {
		return h, false, nil
	}
	h.ConnectionID = id.Int64
	err = db.QueryRowContext(ctx, "SELECT user, host FROM information_schema.processlist WHERE id = ?", id.Int64).Scan(&h.User, &h.Host)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil // without the PROCESS right one's own sessions are seen only
	}
	return h, true, err
}

// Lock is a lock that is held, or was. It may be used by several goroutines.
type Lock struct {
	name string
	conn *sql.Conn
	log  zerolog.Logger

	born  time.Time
	fresh atomic.Int64 // when the last good ping was sent, since born

	lost     chan struct{}
	stop     context.CancelFunc
	done     chan struct{} // the pinging has ended
	released sync.Once
	err      error // of the release
}

// Acquire waits until it gets the lock, logging once who has it. An error of the
// connection ends the waiting; ErrReadOnly: the server takes no writes. The pool
// must not belong to anybody who keeps all its connections.
func Acquire(ctx context.Context, db *sql.DB, schema, name string, log zerolog.Logger) (*Lock, error) {
	return acquire(ctx, db, Name(schema, name), log, true)
}

// TryAcquire is Acquire without waiting: it returns nil if somebody has the lock.
func TryAcquire(ctx context.Context, db *sql.DB, schema, name string, log zerolog.Logger) (*Lock, error) {
	return acquire(ctx, db, Name(schema, name), log, false)
}

func acquire(ctx context.Context, db *sql.DB, name string, log zerolog.Logger, wait bool) (*Lock, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting for the leader lock: %w", err)
	}
	l := &Lock{name: name, conn: conn, log: log, born: time.Now(), lost: make(chan struct{}), done: make(chan struct{})}
	got, err := l.take(ctx, wait)
	if err != nil || !got {
		return nil, errors.Join(err, discard(conn))
	}
	pings, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.ping(pings)
	return l, nil
}

// take gets the lock; without wait it returns false if somebody has it.
func (l *Lock) take(ctx context.Context, wait bool) (bool, error) {
	if _, err := l.conn.ExecContext(ctx, "SET SESSION wait_timeout = ?", sessionSeconds); err != nil {
		return false, fmt.Errorf("setting up the leader's session: %w", err)
	}
	got, err := l.getLock(ctx, 0)
	if err == nil && !got && wait {
		l.sayWho(ctx)
	}
	for err == nil && !got && wait {
		got, err = l.getLock(ctx, waitSeconds)
	}
	if err != nil || !got {
		return false, err
	}
	return true, l.refuseReadOnly(ctx)
}

// getLock asks once. NULL, MariaDB's answer to a KILL QUERY, is "not yet".
func (l *Lock) getLock(ctx context.Context, seconds int) (bool, error) {
	var got sql.NullBool
	sent := time.Since(l.born)
	if err := l.conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, ?)", l.name, seconds).Scan(&got); err != nil {
		return false, fmt.Errorf("waiting for leader lock %s: %w", l.name, err)
	}
	l.fresh.Store(int64(sent))
	return got.Bool, nil
}

func (l *Lock) sayWho(ctx context.Context) {
	h, found, err := holderOf(ctx, l.conn, l.name)
	switch {
	case err != nil:
		l.log.Info().Err(err).Str("lock", l.name).Msg("another relay leads; waiting")
	case found:
		l.log.Info().Str("lock", l.name).Str("holder", h.String()).Msg("another relay leads; waiting")
	}
}

func (l *Lock) refuseReadOnly(ctx context.Context) error {
	var readOnly string
	if err := l.conn.QueryRowContext(ctx, "SELECT @@GLOBAL.read_only").Scan(&readOnly); err != nil {
		return fmt.Errorf("asking whether the server is read-only: %w", err)
	}
	if isOn(readOnly) {
		return fmt.Errorf("leader lock %s: %w", l.name, ErrReadOnly)
	}
	return nil
}

func isOn(variable string) bool { return variable != "0" && variable != "OFF" }

// ping keeps the session alive and closes lost at the first doubt: after any
// error the connection, and with it the lock, is gone.
func (l *Lock) ping(ctx context.Context) {
	defer close(l.done)
	ticks := time.NewTicker(pingInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if err := l.pingOnce(ctx); err != nil {
			if ctx.Err() == nil {
				l.log.Error().Err(err).Str("lock", l.name).Msg("the leader lock is lost")
				close(l.lost)
			}
			return
		}
	}
}

// pingOnce counts the lock's freshness from the moment the ping was sent: the
// server heard of us no later than it answered, and maybe no later than that.
func (l *Lock) pingOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	sent := time.Since(l.born)
	var held sql.NullBool
	var readOnly string
	if err := l.conn.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?) = CONNECTION_ID(), @@GLOBAL.read_only", l.name).Scan(&held, &readOnly); err != nil {
		return fmt.Errorf("pinging: %w", err)
	}
	if isOn(readOnly) { // another server is the primary now, and the lock on this one keeps nobody away
		return ErrReadOnly
	}
	if !held.Bool {
		return errors.New("the server says that this session does not hold it")
	}
	l.fresh.Store(int64(sent))
	return nil
}

// Lost returns a channel that is closed when the lock is lost, and not when it
// is released.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Fresh reports whether the lock may be relied on now: the last good ping was
// sent less than FreshFor ago, and the lock is neither lost nor released. Ask
// before each send; it costs nothing.
func (l *Lock) Fresh() bool {
	select {
	case <-l.lost:
		return false
	case <-l.done:
		return false
	default:
		return time.Since(l.born)-time.Duration(l.fresh.Load()) < FreshFor
	}
}

// Release gives the lock up and closes its connection. Releasing a lost lock, or
// a lock twice, is fine.
func (l *Lock) Release(ctx context.Context) error {
	l.released.Do(func() {
		l.stop()
		<-l.done
		_, err := l.conn.ExecContext(ctx, "DO RELEASE_LOCK(?)", l.name)
		if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
			err = nil // lost with its session
		}
		select {
		case <-l.lost:
			err = nil
		default:
		}
		if err = errors.Join(err, discard(l.conn)); err != nil {
			l.err = fmt.Errorf("releasing leader lock %s: %w", l.name, err)
		}
	})
	return l.err
}

// discard closes the connection itself instead of giving it back: whatever
// happened, a lock must not live on in the pool.
func discard(conn *sql.Conn) error {
	err := conn.Raw(func(any) error { return driver.ErrBadConn })
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		err = nil
	}
	if closing := conn.Close(); closing != nil && !errors.Is(closing, sql.ErrConnDone) && !errors.Is(closing, driver.ErrBadConn) {
		err = errors.Join(err, closing)
	}
	return err
}
