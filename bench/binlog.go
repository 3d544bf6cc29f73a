package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/binlog"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// stretch is a piece of the binlog to be read: one transaction in a hundred, or one
// row, is the outbox's.
type stretch struct {
	name   string
	schema string
	file   string // where it begins, for mysqlbinlog
	from   string // the same, for the reader
	end    logEnd
	bytes  int64
	events int
}

type logEnd struct {
	file   string
	offset uint64
}

// binlogs measures how fast rowferry reads a binlog that hardly concerns it, beside
// the server's own mysqlbinlog copying the same bytes over the same loopback.
func (b *bench) binlogs(ctx context.Context) error {
	for _, fill := range []struct {
		name string
		do   func(context.Context, string) error
	}{{"small transactions", b.fillSmall}, {"bulk", b.fillBulk}} {
		s, err := b.newStretch(ctx, fill.name, fill.do)
		if err != nil {
			return fmt.Errorf("binlog of %s: %w", fill.name, err)
		}
		if err := b.compareReaders(ctx, s, ""); err != nil {
			return fmt.Errorf("binlog of %s: %w", fill.name, err)
		}
		if fill.name != "small transactions" {
			continue
		}
		if err := b.fragmentGTIDs(ctx); err != nil {
			return err
		}
		if s, err = b.newStretch(ctx, fill.name, fill.do); err != nil {
			return err
		}
		if err := b.compareReaders(ctx, s, ", 3 x 2,000 GTID fragments"); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) compareReaders(ctx context.Context, s *stretch, suffix string) error {
	var copied, read []float64
	for round := range max(3, b.o.rounds) {
		took, err := b.mysqlbinlog(ctx, s)
		if err != nil {
			return fmt.Errorf("mysqlbinlog: %w", err)
		}
		copied = append(copied, float64(s.bytes)/took.Seconds()/1e6)
		if took, err = b.read(ctx, s, round == 0); err != nil {
			return fmt.Errorf("reading: %w", err)
		}
		read = append(read, float64(s.bytes)/took.Seconds()/1e6)
	}
	name := "binlog, " + s.name + suffix
	b.results.add(name+": size", float64(s.bytes)/1e6, "MB")
	b.results.add(name+": mysqlbinlog --raw", median(copied), "MB/s")
	b.results.add(name+": rowferry's reader", median(read), "MB/s")
	b.results.add(name+": ratio", median(read)/median(copied), "")
	return nil
}

// newStretch begins a file, fills it and notes where it ends.
func (b *bench) newStretch(ctx context.Context, name string, fill func(context.Context, string) error) (*stretch, error) {
	schema, err := b.schema("bench_binlog")
	if err != nil {
		return nil, err
	}
	db := b.servers.db
	for _, q := range []string{
		"CREATE TABLE " + schema + ".other (id BIGINT AUTO_INCREMENT PRIMARY KEY, a VARCHAR(255), b INT, c DATETIME(6) DEFAULT NOW(6))",
		"SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0", // only to fill faster
		"FLUSH BINARY LOGS",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return nil, err
		}
	}
	s := &stretch{name: name, schema: schema}
	begin, err := b.logEnd(ctx)
	if err != nil {
		return nil, err
	}
	s.file = begin.file
	r, err := b.reader(ctx, s)
	if err != nil {
		return nil, err
	}
	if s.from, err = r.Resolve(ctx, "now"); err != nil {
		return nil, err
	}
	if err := fill(ctx, schema); err != nil {
		return nil, err
	}
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+schema+".outbox").Scan(&s.events); err != nil {
		return nil, err
	}
	if s.end, err = b.logEnd(ctx); err != nil {
		return nil, err
	}
	if s.bytes, err = b.bytesFrom(ctx, s.file); err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "SET GLOBAL sync_binlog = 1, GLOBAL innodb_flush_log_at_trx_commit = 1")
	return s, err
}

// fillSmall commits transactions of two rows each, as services do; one in a hundred
// writes the outbox too.
func (b *bench) fillSmall(ctx context.Context, schema string) error {
	const transactions, writers = 60_000, 8
	return b.commitEach(ctx, transactions, writers, func(i int) []string {
		queries := []string{"INSERT INTO " + schema + ".other (a, b) VALUES (REPEAT('a', 100), 1), (REPEAT('b', 100), 2)"}
		if i%100 == 0 {
			queries = append(queries, outboxInsert(schema, b.o.payload))
		}
		return queries
	})
}

// fillBulk commits transactions of a thousand rows and ten of the outbox.
func (b *bench) fillBulk(ctx context.Context, schema string) error {
	const transactions, writers, rows = 1200, 4, 1000
	values := strings.TrimSuffix(strings.Repeat("(REPEAT('a', 200), 1),", rows), ",")
	outboxRows := outboxInsert(schema, b.o.payload) + strings.Repeat(", "+outboxValues(b.o.payload), rows/100-1)
	queries := []string{"INSERT INTO " + schema + ".other (a, b) VALUES " + values, outboxRows}
	return b.commitEach(ctx, transactions, writers, func(int) []string { return queries })
}

// commitEach commits so many transactions by several writers at once; queries gives the
// statements of a writer's i-th one.
func (b *bench) commitEach(ctx context.Context, transactions, writers int, queries func(i int) []string) error {
	var g errgroup.Group
	for range writers {
		g.Go(func() error {
			for i := range transactions / writers {
				if err := b.commit(ctx, queries(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (b *bench) commit(ctx context.Context, queries []string) error {
	tx, err := b.servers.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for _, q := range queries {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

func outboxInsert(schema string, payloadBytes int) string {
	return "INSERT INTO " + schema + ".outbox (aggregate_type, aggregate_id, event_type, payload) VALUES " + outboxValues(payloadBytes)
}

func outboxValues(payloadBytes int) string {
	return fmt.Sprintf("('orders', 'order-1', 'OrderPlaced', REPEAT('p', %d))", payloadBytes)
}

// fragmentGTIDs gives the server what a replica with many appliers and a history of
// failovers has: three sources of 2,000 intervals each.
func (b *bench) fragmentGTIDs(ctx context.Context) error {
	conn, err := b.servers.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is left on it
	if _, err := conn.ExecContext(ctx, "SET GLOBAL sync_binlog = 0"); err != nil {
		return err
	}
	for source := range 3 {
		for n := range 2000 {
			for _, q := range []string{
				fmt.Sprintf("SET gtid_next = '%08d-0000-0000-0000-000000000001:%d'", source+1, 2*n+1), "BEGIN", "COMMIT",
			} {
				if _, err := conn.ExecContext(ctx, q); err != nil {
					return fmt.Errorf("fragmenting the GTID set: %w", err)
				}
			}
		}
	}
	_, err = conn.ExecContext(ctx, "SET gtid_next = 'AUTOMATIC'")
	return err
}

func (b *bench) logEnd(ctx context.Context) (e logEnd, err error) {
	var doDB, ignoreDB, gtids string
	err = b.servers.db.QueryRowContext(ctx, "SHOW BINARY LOG STATUS").Scan(&e.file, &e.offset, &doDB, &ignoreDB, &gtids)
	return e, err
}

// bytesFrom sums the files from one on.
func (b *bench) bytesFrom(ctx context.Context, first string) (total int64, err error) {
	rows, err := b.servers.db.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name, encrypted string
		var size int64
		if err := rows.Scan(&name, &size, &encrypted); err != nil {
			return 0, err
		}
		if name >= first {
			total += size
		}
	}
	return total, rows.Err()
}

// mysqlbinlog copies the stretch into files.
func (b *bench) mysqlbinlog(ctx context.Context, s *stretch) (time.Duration, error) {
	dir, err := os.MkdirTemp(b.dir, "copy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	dsn, err := mysql.ParseDSN(b.servers.dsn)
	if err != nil {
		return 0, err
	}
	host, port, _ := strings.Cut(dsn.Addr, ":")
	cmd := exec.CommandContext(ctx, testservers.MySQLTool("mysqlbinlog"), "--no-defaults", "--read-from-remote-server", "--raw", "--to-last-log",
		"--host="+host, "--port="+port, "--protocol=TCP", "--user="+dsn.User, "--result-file="+dir+string(filepath.Separator), s.file)
	cmd.Env = append(os.Environ(), "MYSQL_PWD="+dsn.Passwd)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return time.Since(start), nil
}

func (b *bench) reader(ctx context.Context, s *stretch) (*binlog.Reader, error) {
	dsn, err := mysql.ParseDSN(b.servers.dsn)
	if err != nil {
		return nil, err
	}
	table := outbox.Table{Schema: s.schema, Name: "outbox"}
	layout, err := outbox.ReadTable(ctx, b.servers.db, table, outbox.Options{})
	if err != nil {
		return nil, err
	}
	return binlog.New(binlog.Config{DSN: dsn, ServerID: 424242, Layouts: map[outbox.Table]*outbox.Layout{table: layout}, Logger: zerolog.Nop()})
}

var errRead = errors.New("all is read")

// read has the reader take the stretch, with its checks and its connection.
func (b *bench) read(ctx context.Context, s *stretch, profiled bool) (took time.Duration, err error) {
	if profiled && b.o.profile != "" {
		f, err := os.Create(filepath.Join(b.o.profile, "binlog.pprof"))
		if err != nil {
			return 0, err
		}
		defer f.Close() //nolint:errcheck // an aid
		if err := pprof.StartCPUProfile(f); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	start := time.Now()
	r, err := b.reader(ctx, s)
	if err != nil {
		return 0, err
	}
	events := 0
	err = r.Run(ctx, s.from, func(_ context.Context, batch outbox.Batch) error {
		events += len(batch.Events)
		if batch.End.File == s.end.file && batch.End.Offset >= s.end.offset {
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		return 0, err
	}
	if events != s.events {
		return 0, fmt.Errorf("%d events read of %d", events, s.events)
	}
	return time.Since(start), nil
}
