package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"github.com/go-sql-driver/mysql"
	"golang.org/x/sync/errgroup"
)

// The bare loop is what the libraries alone can do: it reads rows with go-mysql's
// BinlogSyncer and sends them with rocketmq-client-go in batches, eight queues side
// by side. It keeps none of rowferry's promises: it saves no position, waits for no
// transaction to end, orders no retries, looks nothing up, survives no lost
// connection and measures nothing. It runs in a process of its own, so that CPU time
// and memory are its own.

// bareConfig is the one argument of the bare loop's process, as JSON.
type bareConfig struct {
	DSN, Schema, From, NameServer, Topic string
	Rows                                 int
	Mark                                 bool // also UPDATE ... WHERE id IN
}

// bareReport is what it prints when it has carried all rows.
type bareReport struct {
	First   time.Time // when the first batch was acknowledged
	Mallocs uint64
}

// bareRow is an outbox row on its way.
type bareRow struct {
	id        string
	kind      string
	aggregate string
	event     string
	payload   []byte
	created   string
}

// bareLoop is one run.
type bareLoop struct {
	bareConfig
	lanes [queues]chan bareRow
	acked chan []string // ids, for the marker
	sent  atomic.Int64
	first atomic.Int64 // Unix time in ns
	p     rocketmq.Producer
}

// bareMain is the process.
func bareMain(argument string) error {
	l := bareLoop{acked: make(chan []string, 64)}
	if err := json.Unmarshal([]byte(argument), &l.bareConfig); err != nil {
		return err
	}
	for i := range l.lanes {
		l.lanes[i] = make(chan bareRow, 4*batchMax)
	}
	var err error
	if l.p, err = newProducer(l.NameServer, "bare"); err != nil {
		return err
	}
	if err := l.run(context.Background()); err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return json.NewEncoder(os.Stdout).Encode(bareReport{time.Unix(0, l.first.Load()), m.Mallocs})
}

func (l *bareLoop) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.read(ctx) })
	var senders errgroup.Group
	for q := range l.lanes {
		senders.Go(func() error { return l.send(ctx, q) })
	}
	g.Go(func() error {
		defer close(l.acked)
		return senders.Wait()
	})
	g.Go(func() error { return l.mark(ctx) })
	return g.Wait()
}

// read decodes the inserts of the table, in the way that costs the library least.
func (l *bareLoop) read(ctx context.Context) error {
	defer func() {
		for _, lane := range l.lanes {
			close(lane)
		}
	}()
	syncer, err := l.syncer()
	if err != nil {
		return err
	}
	defer syncer.Close()
	from, err := gomysql.ParseMysqlGTIDSet(l.From)
	if err != nil {
		return err
	}
	stream, err := syncer.StartSyncGTID(from)
	if err != nil {
		return err
	}
	for n := 0; n < l.Rows; {
		e, err := stream.GetEvent(ctx)
		if err != nil {
			return err
		}
		if rows, ok := e.Event.(*replication.RowsEvent); ok && len(rows.Rows) > 0 {
			n += len(rows.Rows)
			if err := l.pass(ctx, rows.Rows); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *bareLoop) syncer() (*replication.BinlogSyncer, error) {
	dsn, err := mysql.ParseDSN(l.DSN)
	if err != nil {
		return nil, err
	}
	host, portText, err := net.SplitHostPort(dsn.Addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	return replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 434343, Flavor: gomysql.MySQLFlavor, Host: host, Port: uint16(port), User: dsn.User, Password: dsn.Passwd,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), RowsEventDecodeFunc: l.decode,
	}), nil
}

// decode leaves all but the inserts of the table undecoded.
func (l *bareLoop) decode(e *replication.RowsEvent, data []byte) error {
	pos, err := e.DecodeHeader(data)
	if err != nil || e.Type() != replication.EnumRowsEventTypeInsert || string(e.Table.Schema) != l.Schema || string(e.Table.Table) != "outbox" {
		return err
	}
	return e.DecodeData(pos, data)
}

// pass gives each row to the lane of its key.
func (l *bareLoop) pass(ctx context.Context, rows [][]any) error {
	for _, v := range rows {
		row := bareRow{
			id: fmt.Sprint(v[0]), kind: textOf(v[1]), aggregate: textOf(v[2]), event: textOf(v[3]),
			payload: []byte(textOf(v[4])), created: strings.Replace(textOf(v[6]), " ", "T", 1) + "Z",
		}
		h := fnv.New32a()
		h.Write([]byte(row.aggregate)) //nolint:errcheck // a hash takes everything
		select {
		case l.lanes[h.Sum32()%queues] <- row:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func textOf(v any) string {
	switch v := v.(type) {
	case []byte:
		return string(v)
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// send sends what has gathered while the batch before was away.
func (l *bareLoop) send(ctx context.Context, queue int) error {
	for first := range l.lanes[queue] {
		rows := append(make([]bareRow, 0, batchMax), first)
	gather:
		for len(rows) < batchMax {
			select {
			case row, ok := <-l.lanes[queue]:
				if !ok {
					break gather
				}
				rows = append(rows, row)
			default:
				break gather
			}
		}
		if err := l.sendBatch(ctx, queue, rows); err != nil {
			return err
		}
	}
	return nil
}

func (l *bareLoop) sendBatch(ctx context.Context, queue int, rows []bareRow) error {
	messages := make([]*primitive.Message, len(rows))
	ids := make([]string, len(rows))
	for i, r := range rows {
		messages[i] = newMessage(l.Topic, queue, r)
		ids[i] = r.id
	}
	if err := sendAll(ctx, l.p, messages); err != nil {
		return err
	}
	l.first.CompareAndSwap(0, time.Now().UnixNano())
	l.sent.Add(int64(len(rows)))
	if !l.Mark {
		return nil
	}
	select {
	case l.acked <- ids:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mark gathers a thousand ids or what there is, and marks them with one statement.
func (l *bareLoop) mark(ctx context.Context) (err error) {
	if !l.Mark {
		return nil
	}
	marker, err := newMarker(ctx, l.DSN, l.Schema)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, marker.close()) }()
	for ids := range l.acked {
	gather:
		for len(ids) < markMax {
			select {
			case more, ok := <-l.acked:
				if !ok {
					break gather
				}
				ids = append(ids, more...)
			default:
				break gather
			}
		}
		if err := marker.mark(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}
