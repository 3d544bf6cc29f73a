package binlog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/pkg/outbox"
)

// randomTable makes changes of the outbox table and rows whose values say of which
// column and row they are.
type randomTable struct {
	*rand.Rand
	flavor string
	rows   int
	tables int
}

// order is the columns of one type in any order.
func (r *randomTable) order() string {
	names := []string{"aggregate_type", "aggregate_id", "event_type", "note", "payload"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return strings.Join(names, " VARCHAR(30), ") + " VARCHAR(30)"
}

func (r *randomTable) create(name string) string {
	return fmt.Sprintf("CREATE TABLE %s (id BIGINT PRIMARY KEY, %s, status VARCHAR(16) NOT NULL DEFAULT 'PENDING') CHARACTER SET utf8mb4", name, r.order())
}

func (r *randomTable) insert() string {
	var values []string
	for range 1 + r.IntN(3) {
		r.rows++
		values = append(values, fmt.Sprintf("(%[1]d, 't%[1]d', 'a%[1]d', 'e%[1]d', 'n%[1]d', 'p%[1]d')", r.rows))
	}
	return "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, note, payload) VALUES " + strings.Join(values, ", ")
}

// step is a few statements, mostly rows.
func (r *randomTable) step() []string {
	one := []string{"aggregate_type", "aggregate_id", "event_type", "note", "payload"}[r.IntN(5)]
	behind := []string{"FIRST", "AFTER id", "AFTER status"}[r.IntN(3)]
	switch r.IntN(16) {
	case 0:
		return []string{fmt.Sprintf("ALTER TABLE outbox MODIFY COLUMN %s VARCHAR(30) %s", one, behind)}
	case 1:
		return []string{"ALTER TABLE outbox CHANGE aggregate_id event_type VARCHAR(30), CHANGE event_type aggregate_id VARCHAR(30)"}
	case 2:
		return []string{"ALTER TABLE outbox ADD COLUMN more VARCHAR(30) " + behind, r.insert(), "ALTER TABLE outbox DROP COLUMN more"}
	case 3:
		return []string{"DROP TABLE outbox", r.create("outbox")}
	case 4:
		r.tables++
		return []string{r.create(fmt.Sprint("n", r.tables)), fmt.Sprintf("RENAME TABLE outbox TO o%[1]d, n%[1]d TO outbox", r.tables)}
	case 5:
		return []string{"FLUSH BINARY LOGS"}
	case 6:
		return []string{"CREATE TABLE IF NOT EXISTS other (a INT)", "ALTER TABLE other COMMENT 'none'"}
	case 7:
		if r.flavor == testservers.FlavorMySQL {
			return []string{"SET SESSION binlog_transaction_compression = ON", r.insert(), "SET SESSION binlog_transaction_compression = OFF"}
		}
		return []string{"OPTIMIZE TABLE outbox"}
	}
	return []string{"BEGIN", r.insert(), r.insert(), "COMMIT"}
}

func (r *randomTable) steps(n int) (all []string) {
	for range n {
		all = append(all, r.step()...)
	}
	return all
}

// Whatever is done to the table, before a reader comes and while it reads, however long it
// waits for proofs, and wherever it begins: no value comes under another column's name.
func TestRandomChangesOfTables(t *testing.T) {
	flavours(t, func(t *testing.T, server *testservers.DB) {
		for range 5 {
			seed := rand.Uint64()
			r := &randomTable{Rand: rand.New(rand.NewPCG(seed, 0)), flavor: server.Flavor()}
			g := newRig(t, server, r.create("outbox"), "CREATE TABLE mark "+proofColumns)
			from := g.resolve(g.reader(), "now")
			g.session(r.steps(4)...)
			if r.IntN(2) == 0 {
				from = g.unnamed("now")
			}
			g.session(append(r.steps(12), r.insert())...)
			g.watch("outbox", "mark")
			g.config.Unseen = g.countUnseen
			reader := g.reader()
			if r.IntN(3) > 0 {
				reader.proofWait = patience
			}
			tl := newTail(t, reader)
			pass := make(chan struct{})
			tl.run(from, func(b outbox.Batch) {
				if len(b.Events) > 0 {
					<-pass // in the middle of it the table is changed further
				}
			})
			g.session(append(r.steps(6), r.insert())...)
			close(pass)
			g.exec(strings.Replace(proofInsert, "outbox", "mark", 1))
			events := eventsOf(tl.awaitMark())
			read := 0
			for _, e := range events {
				if e.Table.Name == "mark" || e.Unread != "" {
					continue
				}
				read++
				if want := fmt.Sprintf("t%[1]s|a%[1]s|e%[1]s|p%[1]s", e.ID); form(e) != want {
					t.Errorf("seed %d: row %s came as %s", seed, e.ID, form(e))
				}
			}
			t.Logf("seed %d: %d events, %d of them by place", seed, len(events), read)
			tl.stop()
		}
	})
}

func (tl *tail) awaitMark() []outbox.Batch {
	return tl.await("the mark", func(bs []outbox.Batch) bool {
		return len(bs) > 0 && len(bs[len(bs)-1].Events) > 0 && bs[len(bs)-1].Events[0].Table.Name == "mark"
	})
}
