package shop

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowferry/rowferry/demo/reconcile"
	"github.com/rowferry/rowferry/internal/testservers"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// sell runs a small sale on a real server and returns what the shop was told of
// its commits.
func sell(t *testing.T, orders int, load Load) (*Sale, Counts, []reconcile.Key) {
	t.Helper()
	server := testservers.SharedMySQL(t)
	db, err := Open(server.DSN(server.Schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // a second shop finds the tables there
		if err := CreateTables(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	sale, err := Start(t.Context(), db, orders)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var keys []reconcile.Key
	load.Committed = func(k reconcile.Key, _ time.Time) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, k)
	}
	customers := NewCustomers(sale, load)
	if err := customers.Rush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sale, customers.Counts(), keys
}

// The tables after a sale hold what the shop was told that it committed, no row
// of a transaction or savepoint that was rolled back, and sound stock.
func TestSale(t *testing.T) {
	sale, counts, keys := sell(t, 200, Load{RatePerSecond: 400, Duration: time.Second, Workers: 8})
	if err := sale.Finish(t.Context(), counts); err != nil {
		t.Fatal(err)
	}
	facts, err := sale.Facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if counts.Orders == 0 || counts.Events <= counts.Orders || counts.SoldOut == 0 {
		t.Errorf("the sale shows too little: %+v", counts)
	}
	inbox := reconcile.NewInbox()
	for _, k := range keys {
		inbox.Record(reconcile.Event{UID: name(k), Key: k}, time.Time{})
	}
	// Without a relay nothing is SENT; all else must agree.
	differences := reconcile.Reconcile(facts, inbox, reconcile.Rules{}).Differences()
	if len(differences) != 1 || !strings.HasPrefix(differences[0], "outbox rows SENT") {
		t.Errorf("the shop's memory and its tables differ: %q", differences)
	}
	if facts.Rows["PENDING"] != counts.Events {
		t.Errorf("%d rows are PENDING, want %d", facts.Rows["PENDING"], counts.Events)
	}
	assertNothingRolledBack(t, sale, keys)
}

func name(k reconcile.Key) string { return k.Order + "/" + string(rune('0'+k.Version)) }

func assertNothingRolledBack(t *testing.T, sale *Sale, keys []reconcile.Key) {
	t.Helper()
	var rows, coupons int
	err := sale.each(t.Context(), "SELECT aggregate_id, event_type FROM outbox WHERE aggregate_id LIKE CONCAT(?, '-%')",
		func(scan func(...any) error) error {
			var order, event string
			err := scan(&order, &event)
			rows++
			if event == "CouponApplied" {
				coupons++
			}
			if !slices.ContainsFunc(keys, func(k reconcile.Key) bool { return k.Order == order }) {
				t.Errorf("order %s was not committed and has an outbox row", order)
			}
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	if rows != len(keys) || coupons != 0 {
		t.Errorf("%d outbox rows, %d of them undone; want %d and 0", rows, coupons, len(keys))
	}
}

// Orders that are declined, and events that are undone, really were written
// before: their outbox ids are missing from the sequence.
func TestRollbacksHappenAfterTheWrite(t *testing.T) {
	server := testservers.SharedMySQL(t)
	db, err := Open(server.DSN(server.Schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := CreateTables(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	sale, err := Start(t.Context(), db, 100)
	if err != nil {
		t.Fatal(err)
	}
	c := NewCustomers(sale, Load{})
	for _, o := range []order{
		{id: "a", quantity: 1, version: 1, declined: true},
		{id: "b", quantity: 1, version: 1, coupon: true},
	} {
		if err := c.buy(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.buy(t.Context(), order{id: "c", quantity: 1000, version: 1}); !errors.Is(err, errSoldOut) {
		t.Errorf("buying more than there is gives %v, want %v", err, errSoldOut)
	}
	var last, rows, left int
	err = db.QueryRowContext(t.Context(), "SELECT MAX(id), COUNT(*) FROM outbox").Scan(&last, &rows)
	if err != nil {
		t.Fatal(err)
	}
	if last != 2 || rows != 1 {
		t.Errorf("last id %d, %d rows; want 2 and 1", last, rows)
	}
	if err := db.QueryRowContext(t.Context(), "SELECT stock FROM product WHERE id = 0").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if want := 100*goods[0].stockPercent/100 + 1 - 1; left != want {
		t.Errorf("%d left, want %d: only the committed order takes from the stock", left, want)
	}
}

// One sale after another in the same tables: each sees its own rows only.
func TestSalesStayApart(t *testing.T) {
	server := testservers.SharedMySQL(t)
	db, err := Open(server.DSN(server.Schema(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := CreateTables(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if sale, err := Unreconciled(t.Context(), db); err != nil || sale != nil {
		t.Fatalf("before any sale: %v, %v", sale, err)
	}
	var sales []*Sale
	for range 2 {
		sale, err := Start(t.Context(), db, 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewCustomers(sale, Load{}).First(t.Context()); err != nil {
			t.Fatal(err)
		}
		newest, err := Unreconciled(t.Context(), db)
		if err != nil || newest.ID != sale.ID {
			t.Fatalf("newest sale %v, %v; want %s", newest, err, sale.ID)
		}
		if err := sale.Reconciled(t.Context()); err != nil {
			t.Fatal(err)
		}
		sales = append(sales, sale)
	}
	for _, sale := range sales {
		if orders, events, err := sale.Committed(t.Context()); err != nil || orders != 1 || events != 1 {
			t.Errorf("sale %s: %d orders, %d events, %v; want 1 and 1", sale.ID, orders, events, err)
		}
		if rows, err := sale.Rows(t.Context()); err != nil || rows["PENDING"] != 1 {
			t.Errorf("sale %s: rows %v, %v", sale.ID, rows, err)
		}
	}
}

func TestReadEvent(t *testing.T) {
	written := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	good := reconcile.Event{UID: "u", Key: reconcile.Key{Order: "s-1", Version: 2}, WrittenAt: written}
	tests := []struct {
		name, uid, body string
		want            reconcile.Event
		err             string
	}{
		{"as MySQL prints JSON", "u", `{"sale": "s", "order": "s-1", "version": 2, "written_at": "2026-01-02T03:04:05Z"}`, good, ""},
		{"no uid", "", `{"sale": "s", "order": "s-1", "version": 2}`, reconcile.Event{}, "outbox_uid"},
		{"no order", "u", `{"sale": "s"}`, reconcile.Event{}, "order"},
		{"no JSON", "u", `x`, reconcile.Event{}, "invalid character"},
		{"empty", "u", ``, reconcile.Event{}, "unexpected end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got, err := ReadEvent(tt.uid, []byte(tt.body))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func FuzzReadEvent(f *testing.F) {
	f.Add("u", []byte(`{"sale":"s","order":"s-1","version":1,"written_at":"2026-01-02T03:04:05Z"}`))
	f.Add("", []byte(`null`))
	f.Fuzz(func(t *testing.T, uid string, body []byte) {
		sale, e, err := ReadEvent(uid, body)
		if err == nil && (sale == "" || e.UID == "" || e.Order == "") {
			t.Errorf("accepted without sale, uid or order: %q %+v", sale, e)
		}
	})
}

func TestOpenRefusesNoSchema(t *testing.T) {
	for _, dsn := range []string{"", "root@tcp(127.0.0.1:1)/", "not a dsn"} {
		if db, err := Open(dsn); err == nil {
			t.Errorf("%q was accepted", dsn)
			db.Close()
		}
	}
}
