package mysqlconn

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
)

// connector sets up each session before the pool may use it.
type connector struct {
	driver.Connector
	zone  *time.Location
	image string
}

// session is everything that database/sql looks for in a connection of the
// driver, so that wrapping one hides nothing.
type session interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

// zoned is a session that knows the offset it was set to.
type zoned struct {
	session
	zone   *time.Location
	offset string
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &zoned{session: conn.(session), zone: c.zone, offset: offset(c.zone, time.Now())}
	if err := c.setUp(ctx, s); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up a session: %w", err), conn.Close())
	}
	return s, nil
}

// ResetSession implements driver.SessionResetter. A session whose zone went over
// to or from daylight saving is thrown away: in it, ages would be an hour off.
func (z *zoned) ResetSession(ctx context.Context) error {
	if offset(z.zone, time.Now()) != z.offset {
		return driver.ErrBadConn
	}
	return z.session.ResetSession(ctx)
}

// setUp runs the statements of a new session. None but the last needs a right.
//
// The SQL mode is fixed because the ledger depends on it: strict, or an ENUM
// status without FAILED would silently become empty; no PAD_CHAR_TO_FULL_LENGTH,
// which changes what a CHAR id reads as; zero dates allowed, because a cursor
// may hold one. The isolation level goes by statement, since the variable has
// different names on MySQL and MariaDB.
func (c *connector) setUp(ctx context.Context, s *zoned) error {
	statements := []string{
		"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
		// MySQL takes what stands between /*M! and */ for a comment.
		fmt.Sprintf("SET SESSION autocommit=1, innodb_lock_wait_timeout=2, lock_wait_timeout=2, wait_timeout=%d, "+
			"sql_mode='STRICT_TRANS_TABLES', time_zone='%s' /*M!100318 , in_predicate_conversion_threshold=0 */",
			IdleTimeoutSeconds, s.offset),
	}
	for _, statement := range statements {
		if _, err := s.ExecContext(ctx, statement, nil); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return c.setImage(ctx, s)
}

func (c *connector) setImage(ctx context.Context, s *zoned) error {
	if c.image != ImageAuto && c.image != ImageMinimal {
		return nil
	}
	_, err := s.ExecContext(ctx, "SET SESSION binlog_row_image=MINIMAL", nil)
	var refused *mysql.MySQLError
	switch {
	case errors.As(err, &refused) && refused.Number == 1227 && c.image == ImageAuto:
		return nil // RowImage tells status and doctor
	case errors.As(err, &refused) && refused.Number == 1227:
		return ErrRowImage
	}
	return err
}

// offset writes the zone's present offset as MySQL takes it without zone tables.
func offset(zone *time.Location, now time.Time) string {
	if zone == nil {
		zone = time.UTC
	}
	return now.In(zone).Format("-07:00")
}
