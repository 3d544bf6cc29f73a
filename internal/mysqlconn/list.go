package mysqlconn

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"
)

// Choice is which servers of a list a pool may use.
type Choice int

// The choices.
const (
	AnyServer   Choice = iota // the first that answers
	Writable                  // the first that is not read-only
	PrimaryOnly               // the first that is neither read-only nor a replica
)

// OpenList makes a pool for a list of servers that hold the same data. The list is
// asked for before each new connection, so that rotated secrets are picked up. With
// one server, that one is used as it is; with several, each new connection goes to
// the server of the last one if the choice still allows it, else to the first that
// it allows. Sessions of another server are then not used any more, and one that
// finds its server read-only is given up. OpenList does not connect.
func OpenList(list func() ([]*mysql.Config, error), choice Choice, o Options) (*sql.DB, error) {
	configs, err := list()
	if err != nil {
		return nil, err
	}
	for _, c := range configs { // mistakes are told now
		db, err := OpenConfig(c, o)
		if err != nil {
			return nil, err
		}
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("connection to %s: %w", c.Addr, err)
		}
	}
	return limits(sql.OpenDB(&listConnector{list: list, choice: choice, options: o}), o), nil
}

// listConnector chooses a server for each new connection.
type listConnector struct {
	list    func() ([]*mysql.Config, error)
	choice  Choice
	options Options

	mu   sync.Mutex
	used string // address of the server chosen last
}

// Driver implements driver.Connector.
func (l *listConnector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// Connect implements driver.Connector.
func (l *listConnector) Connect(ctx context.Context) (driver.Conn, error) {
	configs, err := l.list()
	if err != nil {
		return nil, err
	}
	used := l.inUse()
	var errs []error
	for _, preferred := range []bool{true, false} {
		for _, c := range configs {
			if (c.Addr == used) != preferred {
				continue
			}
			s, err := l.open(ctx, c, len(configs) > 1)
			if err == nil {
				l.use(c.Addr)
				return listed{s, l, c.Addr}, nil
			}
			errs = append(errs, err)
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, fmt.Errorf("no server of the list can be used: %w", errors.Join(errs...))
}

func (l *listConnector) inUse() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

func (l *listConnector) use(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = addr
}

// open connects to one server. Only where there is another may it be refused.
func (l *listConnector) open(ctx context.Context, c *mysql.Config, several bool) (session, error) {
	inner, err := newConnector(c, l.options, several)
	if err != nil {
		return nil, err
	}
	conn, err := inner.Connect(ctx)
	if err != nil {
		return nil, named(c, several, err)
	}
	s := conn.(session)
	if !several || l.choice == AnyServer {
		return s, nil
	}
	if err := l.refuse(ctx, s); err != nil {
		return nil, errors.Join(named(c, several, err), s.Close())
	}
	return s, nil
}

// named says which server of several an error is of.
func named(c *mysql.Config, several bool, err error) error {
	if several {
		return fmt.Errorf("%s: %w", c.Addr, err)
	}
	return err
}

func (l *listConnector) refuse(ctx context.Context, s session) error {
	rows, err := query(ctx, s, "SELECT @@GLOBAL.read_only, VERSION()")
	if err != nil || len(rows) != 1 {
		return errors.Join(errors.New("asking whether the server is read-only"), err)
	}
	if on := rows[0][0]; on != "0" && on != "OFF" {
		return errors.New("the server is read-only")
	}
	if l.choice != PrimaryOnly {
		return nil
	}
	return refuseReplica(ctx, s, strings.Contains(rows[0][1], "MariaDB"))
}

// ErrReplica says that a server copies from another, so that writing to it would
// make it differ from that one.
var ErrReplica = errors.New("the server is a replica; name the primary in ROWFERRY_STORE_DSN")

func refuseReplica(ctx context.Context, s session, mariadb bool) error {
	statements := []string{"SHOW REPLICA STATUS", "SHOW SLAVE STATUS"} // the latter before MySQL 8.0.22
	if mariadb {
		statements = []string{"SHOW ALL SLAVES STATUS"}
	}
	var rows [][]string
	var err error
	for _, statement := range statements {
		rows, err = query(ctx, s, statement)
		var refused *mysql.MySQLError
		if !errors.As(err, &refused) {
			break
		}
		if refused.Number == 1227 { // who may not ask is told nothing
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("asking whether the server is a replica: %w", err)
	}
	if len(rows) > 0 {
		return ErrReplica
	}
	return nil
}

// RefuseReplica returns ErrReplica if the server of a pool of this package is a
// replica. An account that may not ask is told nothing.
func RefuseReplica(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	err = conn.Raw(func(c any) error {
		s := c.(session)
		rows, err := query(ctx, s, "SELECT VERSION()")
		if err != nil || len(rows) != 1 {
			return errors.Join(errors.New("asking for the version"), err)
		}
		return refuseReplica(ctx, s, strings.Contains(rows[0][0], "MariaDB"))
	})
	return errors.Join(err, conn.Close())
}

// query reads a small result.
func query(ctx context.Context, s session, statement string) ([][]string, error) {
	rows, err := s.QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Next reports what matters
	var out [][]string
	values := make([]driver.Value, len(rows.Columns()))
	for {
		switch err := rows.Next(values); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		}
		texts := make([]string, len(values))
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				texts[i] = string(b)
			} else if v != nil {
				texts[i] = fmt.Sprint(v)
			}
		}
		out = append(out, texts)
	}
}

// listed is a session that knows its server.
type listed struct {
	session
	list *listConnector
	addr string
}

// ResetSession implements driver.SessionResetter. A session of a server that is no
// longer the chosen one is thrown away: what it shows may be stale.
func (c listed) ResetSession(ctx context.Context) error {
	if c.list.inUse() != c.addr {
		return driver.ErrBadConn
	}
	return c.session.ResetSession(ctx)
}
