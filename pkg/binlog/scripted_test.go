package binlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// tail runs a reader of the master behind from.
func (m *master) tail(t *testing.T, from string) *tail {
	t.Helper()
	return tailOf(t, m.config(), from)
}

func tailOf(t *testing.T, cfg Config, from string) *tail {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.Resolve(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	return runTail(t, r, text)
}

// wantPayloads waits for the last payload and compares all that came until then.
func (tl *tail) wantPayloads(want ...string) []outbox.Batch {
	tl.t.Helper()
	last := want[len(want)-1]
	batches := tl.await("payload "+last, func(bs []outbox.Batch) bool { return slices.Contains(payloads(eventsOf(bs)), last) })
	wantStrings(tl.t, "payloads", payloads(eventsOf(batches)), want)
	return batches
}

// read runs a reader of the master from the earliest position on until the payload last
// has come, and returns all that came. Unlike a tail it may run in any goroutine.
func (m *master) read(ctx context.Context, cfg Config, last string) (got []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := New(cfg)
	if err != nil {
		return nil, err
	}
	from, err := r.Resolve(ctx, "earliest")
	if err != nil {
		return nil, err
	}
	errDone := errors.New("done")
	err = r.Run(ctx, from, func(_ context.Context, b outbox.Batch) error {
		got = append(got, payloads(b.Events)...)
		if slices.Contains(got, last) {
			return errDone
		}
		return nil
	})
	if errors.Is(err, errDone) {
		err = nil
	}
	return got, err
}

// together runs cases at once: they wait for pauses between connections, and for nothing
// that they would take from each other.
func together(t *testing.T, cases map[string]func(context.Context) error) {
	t.Helper()
	var wg sync.WaitGroup
	for name, run := range cases {
		wg.Go(func() {
			if err := run(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

func differ(got, want []string) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// wantEnd waits until Run has returned.
func (tl *tail) wantEnd(want error, text string) {
	tl.t.Helper()
	select {
	case <-tl.done:
	case <-time.After(patience):
		tl.t.Fatalf("Run goes on; state %+v", tl.reader.State())
	}
	if !errors.Is(tl.err, want) || !strings.Contains(tl.err.Error(), text) {
		tl.t.Errorf("Run returned %v, want %v with %q", tl.err, want, text)
	}
}

// threeTransactions is a log with the payloads a, b, c and d.
func threeTransactions(t testing.TB, r release) *madeLog {
	l := newLog(r, "binlog.000001")
	l.transaction(t, 1, "a")
	l.transaction(t, 2, "b", "c")
	l.transaction(t, 3, "d")
	return l
}

// executedOf is the GTID set of the transactions 1 to n of such a log.
func (r release) executedOf(n int) string {
	switch {
	case r.isMariaDB():
		return fmt.Sprintf("0-7-%d", n)
	case n == 1:
		return "09090909-0909-0909-0909-090909090909:1"
	}
	return fmt.Sprintf("09090909-0909-0909-0909-090909090909:1-%d", n)
}

// Every release is asked only what it understands: the statements were renamed twice.
// (The servers themselves are real elsewhere, as far as they can be had; these have the
// statements and the event forms of theirs.)
func TestMadeReleases(t *testing.T) {
	for _, r := range everyRelease {
		for _, gtids := range []string{"ON", "OFF"} {
			if r.isMariaDB() && gtids == "OFF" {
				continue
			}
			t.Run(r.version+" gtid_mode "+gtids, func(t *testing.T) {
				t.Parallel()
				testMadeRelease(t, r, gtids)
			})
		}
	}
}

func testMadeRelease(t *testing.T, r release, gtids string) {
	l := threeTransactions(t, r)
	m := newMaster(t, nil, l)
	if !r.isMariaDB() {
		m.vars["gtid_mode"] = gtids
	}
	tl := m.tail(t, "earliest")
	batches := tl.wantPayloads("a", "b", "c", "d")
	if end := batches[len(batches)-1].End; end.File != l.name || end.Offset != l.place {
		t.Errorf("the end is %+v, want %s:%d", end, l.name, l.place)
	}
	saved := tl.reader.Encode(batches[0].End)
	tl.stop()
	again := m.tail(t, saved)
	again.wantPayloads("b", "c", "d")
	again.stop()
	now, err := again.reader.Resolve(t.Context(), "now")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsePosition(now)
	if err != nil || p.offset != l.place || p.gtids != nil && p.gtids.String() != r.executedOf(3) {
		t.Errorf("now is %s (%v)", now, err)
	}
	if useGTIDs := gtids == "ON"; useGTIDs != (p.gtids != nil) {
		t.Errorf("now is %s", now)
	}
}

// What each release says when it cannot serve a position, and what that means.
func TestRefusedDumps(t *testing.T) {
	const at = "; the first event 'binlog.000001' at 4, the last event read from './binlog.000001' at 197, the last byte read from './binlog.000001' at 216."
	for _, c := range []struct {
		release release
		code    uint16
		text    string
	}{
		{mysql57, 1236, "Could not find first log file name in binary log index file"},
		{mysql57, 1236, "Client requested master to start replication from position > file size" + at},
		{mysql57, 1236, "bogus data in log event" + at},
		{mysql57, 1236, "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on master" + at},
		{mysql57, 1236, "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary logs containing GTIDs that the slave requires."},
		{mysql80, 1236, "Cannot replicate because the master purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new slave from backup. Consider increasing the master's binary log expiration period. The GTID set sent by the slave is '', and the missing transactions are ''"},
		{mysql80, 1236, "Slave has more GTIDs than the master has, using the master's SERVER_UUID. This may indicate that the end of the binary log was truncated or that the last binary log file was lost."},
		{mysql84, 1236, "Client requested source to start replication from position > file size" + at},
		{mysql84, 1236, "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new replica from backup."},
		{mysql97, 1236, "Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the end of the binary log was truncated."},
		{mysql97, 1773, "Malformed GTID set encoding."},
		{mariadb1011, 1236, "Could not find first log file name in binary log index file"},
		{mariadb1011, 1236, "Client requested master to start replication from impossible position" + at},
		{mariadb1011, 1236, "Error: connecting slave requested to start from GTID 0-7-9999, which is not in the master's binlog"},
		{mariadb1011, 1236, "Error: connecting slave requested to start from GTID 0-7-9999, which is not in the master's binlog. Since the master's binlog contains GTIDs with higher sequence numbers, it probably means that the slave has diverged due to executing extra erroneous transactions"},
		{mariadb1011, 1236, "The binlog on the master is missing the GTID 0-7-2 requested by the slave (even though a subsequent sequence number does exist), and GTID strict mode is enabled"},
		{mariadb118, 1236, "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required binlog files have been purged."},
		{mariadb118, 1943, "GTID 0-8-2 and 0-7-1 conflict (duplicate domain id 0)"},
	} {
		t.Run(c.release.version+" "+cut(c.text), func(t *testing.T) {
			t.Parallel()
			l := threeTransactions(t, c.release)
			m := newMaster(t, func(d *dumping) {
				d.begin(l)
				d.fail(c.code, c.text)
			}, l)
			m.tail(t, "earliest").wantEnd(ErrGap, c.text[:20])
			if n := m.served(); n != 1 {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// What only an operator can mend is said by name, tried again slowly, and no gap.
func TestMisconfiguredDumps(t *testing.T) {
	for _, c := range []struct {
		release    release
		code       uint16
		text, want string
	}{
		{mysql57, 1236, "A slave with the same server_uuid/server_id as this slave has connected to the master; the first event 'b.1' at 4", "ROWFERRY_SERVER_ID"},
		{mysql84, 1236, "A replica with the same server_uuid/server_id as this replica has connected to the source; the first event 'b.1' at 4", "ROWFERRY_SERVER_ID"},
		{mariadb118, 4052, "A slave with the same server_id is already connected", "ROWFERRY_SERVER_ID"},
		{mysql57, 1236, "Misconfigured master - server_id was not set", "server_id"},
		{mysql80, 1236, "Misconfigured master - master server_id is 0", "server_id"},
		{mariadb1011, 1236, "Binary log is not open", "Binary log is not open"},
	} {
		t.Run(c.release.version+" "+cut(c.text), func(t *testing.T) {
			t.Parallel()
			m := newMaster(t, func(d *dumping) { d.fail(c.code, c.text) }, newLog(c.release, "binlog.000001"))
			tl := m.tail(t, "earliest")
			s := awaitState(t, tl.reader, "refused", func(s State) bool { return s.LastError != "" })
			if !strings.Contains(s.LastError, c.want) {
				t.Errorf("LastError is %q, want something of %s", s.LastError, c.want)
			}
			tl.stop()
			var config *configError
			if err := classify(fmt.Errorf("dump: %w", myError(c.code, c.text))); !errors.As(err, &config) {
				t.Errorf("classified as %v", err)
			}
		})
	}
}

// Wherever the connection breaks, every row comes once and in order.
func TestCutAnywhere(t *testing.T) {
	cases := map[string]func(context.Context) error{}
	for _, r := range []release{mysql57, mysql97, mariadb1011} {
		l := threeTransactions(t, r)
		total := 100 // of the artificial rotation and the packets' heads
		for _, e := range l.events {
			total += len(e)
		}
		for cut := 0; cut < total; cut += 23 {
			m := newMaster(t, func(d *dumping) {
				if d.number == 1 {
					d.cutAfter(cut)
				}
				d.follow(l)
			}, l)
			cases[fmt.Sprint(r.version, " cut after ", cut)] = func(ctx context.Context) error {
				got, err := m.read(ctx, m.config(), "d")
				return errors.Join(err, differ(got, []string{"a", "b", "c", "d"}))
			}
		}
	}
	together(t, cases)
}

// Several breaks inside one transaction leave nothing of the pieces behind.
func TestSeveralCutsInOneTransaction(t *testing.T) {
	for _, r := range []release{mysql80, mariadb118} {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			l := newLog(r, "binlog.000001")
			first := l.transaction(t, 1, "a")
			second := l.transaction(t, 2, "b", "c", "d")
			var asked []string
			m := newMaster(t, func(d *dumping) {
				asked = append(asked, d.set)
				switch d.number {
				case 1:
					d.begin(l)
					d.send(first...)
					d.send(second[:len(second)-1]...)
				case 2, 3:
					d.begin(l)
					d.send(second[:d.number+1]...)
				default:
					d.follow(l)
				}
			}, l)
			m.tail(t, "earliest").wantPayloads("a", "b", "c", "d")
			one := r.executedOf(1)
			m.close()
			wantStrings(t, "sets asked for", asked, []string{"", one, one, one})
		})
	}
}

// An EOF packet says that the server has nothing more to send on this connection: the
// reader makes another.
func TestEOF(t *testing.T) {
	l := threeTransactions(t, mysql80)
	m := newMaster(t, func(d *dumping) {
		d.begin(l)
		events := d.wanted(l)
		if d.number == 1 {
			d.send(events[:len(events)/2]...)
			d.broken = errors.Join(d.broken, d.conn.eof())
			return
		}
		d.send(events...)
		d.idle()
	}, l)
	m.tail(t, "earliest").wantPayloads("a", "b", "c", "d")
}

// Heartbeats of both forms stand between any two events without touching anything.
func TestHeartbeatsBetweenEvents(t *testing.T) {
	for _, r := range []release{mysql57, mysql84, mariadb118} {
		t.Run(r.version, func(t *testing.T) {
			t.Parallel()
			l := threeTransactions(t, r)
			m := newMaster(t, func(d *dumping) {
				d.begin(l)
				for _, e := range d.wanted(l) {
					d.heartbeat(l.name, uint32(l.place), !r.isMariaDB() && r.number > 80026)
					d.send(e)
				}
				d.heartbeat(l.name, uint32(l.place), false)
				d.idle()
			}, l)
			batches := m.tail(t, "earliest").wantPayloads("a", "b", "c", "d")
			var last uint64
			for _, b := range batches {
				if b.End.Offset <= last {
					t.Errorf("position %+v does not come after %d", b.End, last)
				}
				last = b.End.Offset
			}
			if last != l.place {
				t.Errorf("the end is %d, want %d", last, l.place)
			}
		})
	}
}
