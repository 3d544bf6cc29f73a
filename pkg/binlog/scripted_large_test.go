package binlog

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// largeLog has one event of each kind that is not simply gathered: rows that nobody wants,
// rows that somebody does, either of so many bytes, and a compressed transaction.
func largeLog(t testing.TB, rowBytes int) *madeLog {
	l := newLog(mysql84, "binlog.000001")
	tableMap, rows := bigRows(1, strings.Repeat("w", rowBytes))
	l.script(t, "gtid 1; query BEGIN; map other")
	l.add(byte(replication.WRITE_ROWS_EVENTv2), append(handRows("1", "")[:6:6], make([]byte, rowBytes)...))
	l.script(t, "xid; gtid 2; query BEGIN")
	l.add(byte(replication.TABLE_MAP_EVENT), tableMap)
	l.add(byte(replication.WRITE_ROWS_EVENTv2), rows)
	l.script(t, "xid; gtid 3")
	payload := largePayload(t, newHand(t, flavorMySQL), 1300)
	l.add(byte(replication.TRANSACTION_PAYLOAD_EVENT), payload[headSize:])
	l.transaction(t, 4, "end")
	return l
}

const largeRowBytes = 300_000

// readLarge reads largeLog from m and judges what came of it.
func readLarge(ctx context.Context, m *master, cfg Config) error {
	got, err := m.read(ctx, cfg, "end")
	if err != nil {
		return err
	}
	if len(got) != 1302 || len(got[0]) != largeRowBytes || len(got[1]) != 150 || len(got[1300]) != 150 {
		return fmt.Errorf("%d rows came, want 1302", len(got))
	}
	return nil
}

// largeConfig has a layout for either form of the table that largeLog shows.
func largeConfig(t testing.TB, m *master) Config {
	cfg := m.config()
	big := bigLayout(t)
	cfg.Reload = func(context.Context, outbox.Table) (*outbox.Layout, error) { return big, nil }
	return cfg
}

// Large events are taken in while they arrive. Wherever they break off, every row comes
// once and in order.
func TestCutInLargeEvents(t *testing.T) {
	l := largeLog(t, largeRowBytes)
	cases := map[string]func(context.Context) error{}
	for cut := 500; cut < int(l.place); cut += int(l.place) / 11 {
		m := newMaster(t, func(d *dumping) {
			if d.number == 1 {
				d.cutAfter(cut)
			}
			d.follow(l)
		}, l)
		cases[fmt.Sprint("cut after ", cut)] = func(ctx context.Context) error { return readLarge(ctx, m, largeConfig(t, m)) }
	}
	together(t, cases)
}

// A damaged large event is read again like any other, and nothing of it goes out before
// its checksum has been seen.
func TestDamagedLargeEvents(t *testing.T) {
	l := largeLog(t, largeRowBytes)
	cases := map[string]func(context.Context) error{}
	for i, e := range l.events {
		if len(e) < 100_000 {
			continue
		}
		for _, at := range []int{headSize + 3, len(e) - 1} {
			for _, times := range []int{1, 99} {
				m := newMaster(t, func(d *dumping) {
					d.begin(l)
					for _, sent := range d.wanted(l) {
						if d.number <= times && &sent[0] == &e[0] {
							sent = spoiled(e, func(e []byte) { e[at] ^= 0x40 })
						}
						d.send(sent)
					}
					d.idle()
				}, l)
				cases[fmt.Sprintf("event %d at %d, times %d", i, at, times)] = func(ctx context.Context) error {
					err := readLarge(ctx, m, largeConfig(t, m))
					if times < doubtfulMax {
						return err
					}
					return judgeDamage(err, m.served())
				}
			}
		}
	}
	if len(cases) != 12 {
		t.Fatalf("%d cases", len(cases))
	}
	together(t, cases)
}
