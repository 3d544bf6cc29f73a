package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowferry/rowferry/internal/mysqlconn"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func TestMain(m *testing.M) { testservers.Main(m) }

// store is what all three stores do.
type store interface {
	Begin(ctx context.Context, owner string) (Checkpoint, error)
	Load(ctx context.Context) (Checkpoint, bool, error)
	Save(ctx context.Context, position string) error
	WriteFence(ctx context.Context, fence uint64) error
	SetPaused(ctx context.Context, paused bool) error
	LoadTopic(ctx context.Context, topic string) ([]string, error)
	SaveTopic(ctx context.Context, topic string, queues []string) error
	Topics(ctx context.Context) ([]Topic, error)
	ReplaceTopic(ctx context.Context, topic string, version int, queues []string) error
}

var (
	_ store = (*MySQL)(nil)
	_ store = (*File)(nil)
	_ store = (*Memory)(nil)
)

// place is somewhere checkpoints are kept. open returns a store for one name, as
// another process would; release makes it give way, as the end of that process
// would.
type place struct {
	open    func(name string) store
	release func(store)
	fences  bool
	shared  bool // what one store saves another one sees
}

func mysqlPlace(t *testing.T, s *testservers.DB) place {
	schema := s.Schema(t)
	db, err := mysqlconn.Open(s.DSN(schema), mysqlconn.Options{Zone: time.FixedZone("", 8*3600)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := migrations.Up(t.Context(), db, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	return place{open: func(name string) store { return NewMySQL(db, schema, name) }, release: func(store) {}, fences: true, shared: true}
}

func filePlace(t *testing.T) place {
	dir := t.TempDir()
	release := func(s store) {
		if err := s.(*File).Close(); err != nil {
			t.Error(err)
		}
	}
	open := func(name string) store {
		s := NewFile(filepath.Join(dir, name), name)
		t.Cleanup(func() { release(s) })
		return s
	}
	return place{open: open, release: release, shared: true}
}

func memoryPlace(*testing.T) place {
	return place{open: func(string) store { return NewMemory() }, release: func(store) {}}
}

// TestStores is the conformance suite.
func TestStores(t *testing.T) {
	places := map[string]func(*testing.T) place{
		"mysql":   func(t *testing.T) place { return mysqlPlace(t, testservers.SharedMySQL(t)) },
		"mariadb": func(t *testing.T) place { return mysqlPlace(t, testservers.SharedMariaDB(t)) },
		"file":    filePlace,
		"memory":  memoryPlace,
	}
	tests := map[string]func(*testing.T, place){
		"begin and save":              testBeginAndSave,
		"save before begin":           testSaveBeforeBegin,
		"fencing":                     testFencing,
		"pause":                       testPause,
		"fence":                       testFence,
		"topics":                      testTopics,
		"topics are listed":           testTopicsAreListed,
		"topic is replaced":           testTopicIsReplaced,
		"replaced by the leader only": testReplacedByTheLeaderOnly,
		"names are apart":             testNamesAreApart,
		"long positions":              testLongPositions,
	}
	for where, open := range places {
		t.Run(where, func(t *testing.T) {
			p := open(t)
			for name, test := range tests {
				t.Run(name, func(t *testing.T) { test(t, p) })
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func begin(t *testing.T, s store, owner string) Checkpoint {
	t.Helper()
	c, err := s.Begin(t.Context(), owner)
	must(t, err)
	return c
}

func load(t *testing.T, s store) Checkpoint {
	t.Helper()
	c, found, err := s.Load(t.Context())
	must(t, err)
	if !found {
		t.Fatal("nothing is saved")
	}
	return c
}

func testBeginAndSave(t *testing.T, p place) {
	s := p.open("begin")
	if c, found, err := s.Load(t.Context()); err != nil || found || c != (Checkpoint{}) {
		t.Fatalf("before anything: %+v, %v, %v", c, found, err)
	}
	if c := begin(t, s, "me"); c != (Checkpoint{Epoch: 1, Owner: "me"}) {
		t.Fatalf("first leadership: %+v", c)
	}
	before := time.Now().Add(-time.Minute)
	must(t, s.Save(t.Context(), "pos 1"))
	must(t, s.Save(t.Context(), "pos 1")) // the same again is no lost leadership
	c := load(t, s)
	if c.Position != "pos 1" || c.Epoch != 1 || c.Owner != "me" || c.UpdatedAt.Before(before) || c.UpdatedAt.After(time.Now().Add(time.Minute)) {
		t.Fatalf("saved %+v", c)
	}
	if c := begin(t, s, "me"); c.Epoch != 2 || c.Position != "pos 1" || c.UpdatedAt.IsZero() {
		t.Fatalf("second leadership: %+v", c)
	}
	must(t, s.Save(t.Context(), ""))
	if c := load(t, s); c.Position != "" {
		t.Fatalf("after a reset: %+v", c)
	}
}

func testSaveBeforeBegin(t *testing.T, p place) {
	s := p.open("unbegun")
	must(t, s.SetPaused(t.Context(), true)) // makes the row, with epoch 0
	if err := s.Save(t.Context(), "pos"); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("%v, want ErrFenced", err)
	}
	if c := load(t, s); c.Position != "" || !c.Paused {
		t.Fatalf("saved %+v", c)
	}
}

func testFencing(t *testing.T, p place) {
	if !p.shared {
		return // nobody else can take over
	}
	old, heir := p.open("fencing"), p.open("fencing")
	begin(t, old, "old")
	must(t, old.Save(t.Context(), "pos 1"))
	p.release(old)
	if c := begin(t, heir, "heir"); c.Epoch != 2 || c.Position != "pos 1" {
		t.Fatalf("the heir finds %+v", c)
	}
	must(t, heir.Save(t.Context(), "pos 2"))
	if err := old.Save(t.Context(), "pos 1b"); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("the old leader saves: %v", err)
	}
	if c := load(t, old); c.Position != "pos 2" || c.Owner != "heir" {
		t.Fatalf("saved %+v", c)
	}
	p.release(heir)
	if c := begin(t, old, "old"); c.Epoch != 3 {
		t.Fatalf("led again: %+v", c)
	}
	must(t, old.Save(t.Context(), "pos 3"))
}

func testPause(t *testing.T, p place) {
	s := p.open("pause")
	must(t, s.SetPaused(t.Context(), true))
	if c := begin(t, s, "me"); !c.Paused {
		t.Fatal("the pause did not survive a new leader")
	}
	must(t, s.Save(t.Context(), "pos"))
	for _, want := range []bool{true, true, false} {
		must(t, s.SetPaused(t.Context(), want))
		if c := load(t, s); c.Paused != want || c.Position != "pos" || c.Epoch != 1 {
			t.Fatalf("want paused %v: %+v", want, c)
		}
	}
}

func testFence(t *testing.T, p place) {
	s := p.open("fence")
	begin(t, s, "me")
	must(t, s.Save(t.Context(), "pos"))
	saved := load(t, s)
	err := s.WriteFence(t.Context(), 1<<63+1)
	if !p.fences {
		if !errors.Is(err, ErrNoFence) {
			t.Fatalf("%v, want ErrNoFence", err)
		}
		return
	}
	must(t, err)
	saved.Fence = 1<<63 + 1
	if c := load(t, s); c != saved {
		t.Fatalf("after the fence %+v, want %+v", c, saved)
	}
	begin(t, p.open("fence"), "heir")
	if err := s.WriteFence(t.Context(), 1<<63+2); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("the old leader writes a fence: %v", err)
	}
}

func testTopics(t *testing.T, p place) {
	s := p.open("topics")
	if queues, err := s.LoadTopic(t.Context(), "t1"); err != nil || queues != nil {
		t.Fatalf("%v, %v; want nothing", queues, err)
	}
	first := []string{"broker-a:0", "broker-a:1", `odd "name",:2`}
	must(t, s.SaveTopic(t.Context(), "t1", first))
	must(t, s.SaveTopic(t.Context(), "t1", []string{"broker-b:0"})) // the first writer wins
	must(t, s.SaveTopic(t.Context(), "t2", []string{"broker-b:0"}))
	if queues, err := s.LoadTopic(t.Context(), "t1"); err != nil || !slices.Equal(queues, first) {
		t.Fatalf("%v, %v; want %v", queues, err, first)
	}
	if !p.shared {
		return
	}
	if queues, err := p.open("topics").LoadTopic(t.Context(), "t1"); err != nil || !slices.Equal(queues, first) {
		t.Fatalf("another process sees %v, %v", queues, err)
	}
}

func testNamesAreApart(t *testing.T, p place) {
	a, b := p.open("Name"), p.open("name")
	begin(t, a, "me")
	must(t, a.Save(t.Context(), "pos"))
	must(t, a.SaveTopic(t.Context(), "t", []string{"q"}))
	if c := begin(t, b, "me"); c.Position != "" || c.Epoch != 1 {
		t.Fatalf("another name has %+v", c)
	}
	if queues, err := b.LoadTopic(t.Context(), "t"); err != nil || queues != nil {
		t.Fatalf("another name has queues %v, %v", queues, err)
	}
}

func testLongPositions(t *testing.T, p place) {
	s := p.open("long")
	begin(t, s, "me")
	long := strings.Repeat("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77777,\n", 5000) // beyond TEXT
	must(t, s.Save(t.Context(), long))
	if c := load(t, s); c.Position != long {
		t.Fatalf("%d bytes of %d came back", len(c.Position), len(long))
	}
}

func TestSaveTxIsOfItsTransaction(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) {
			p := mysqlPlace(t, server(t))
			s, rival := p.open("tx").(*MySQL), p.open("tx").(*MySQL)
			begin(t, s, "me")
			in := func(commit bool, position string) error {
				tx, err := s.db.BeginTx(t.Context(), nil)
				must(t, err)
				saved := s.SaveTx(t.Context(), tx, position)
				if commit {
					must(t, tx.Commit())
				} else {
					must(t, tx.Rollback())
				}
				return saved
			}
			must(t, in(true, "pos 1"))
			must(t, in(false, "pos 2"))
			if c := load(t, s); c.Position != "pos 1" {
				t.Fatalf("saved %q", c.Position)
			}
			begin(t, rival, "rival")
			if err := in(true, "pos 3"); !errors.Is(err, outbox.ErrFenced) {
				t.Fatalf("%v, want ErrFenced", err)
			}
			if c := load(t, s); c.Position != "pos 1" {
				t.Fatalf("saved %q", c.Position)
			}
		})
	}
}

func TestManyBeginAtOnce(t *testing.T) {
	p := mysqlPlace(t, testservers.SharedMySQL(t))
	const relays = 6
	epochs := make(chan int64, relays)
	for i := range relays {
		go func() {
			c, err := p.open("crowd").Begin(t.Context(), fmt.Sprint(i))
			if err != nil && !errors.Is(err, outbox.ErrFenced) {
				t.Error(err)
			}
			epochs <- c.Epoch // 0 where another came between
		}()
	}
	seen := map[int64]bool{}
	for range relays {
		e := <-epochs
		if e != 0 && seen[e] {
			t.Errorf("epoch %d was given twice", e)
		}
		seen[e] = true
	}
	if c := load(t, p.open("crowd")); c.Epoch != relays {
		t.Errorf("epoch %d after %d leaders", c.Epoch, relays)
	}
}

func TestMissingTables(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) {
			db := server(t).Open(t, server(t).Schema(t))
			s := NewMySQL(db, "", "x")
			ctx := t.Context()
			for what, call := range map[string]func() error{
				"Begin":     func() error { _, err := s.Begin(ctx, "me"); return err },
				"Load":      func() error { _, _, err := s.Load(ctx); return err },
				"SetPaused": func() error { return s.SetPaused(ctx, true) },
				"LoadTopic": func() error { _, err := s.LoadTopic(ctx, "t"); return err },
				"SaveTopic": func() error { return s.SaveTopic(ctx, "t", []string{"q"}) },
				"Topics":    func() error { _, err := s.Topics(ctx); return err },
			} {
				if err := call(); !errors.Is(err, ErrNoTables) {
					t.Errorf("%s: %v, want ErrNoTables", what, err)
				}
			}
		})
	}
}

// TestEnoughRights runs everything under the grants that the documentation names.
func TestEnoughRights(t *testing.T) {
	for name, server := range map[string]func(testing.TB) *testservers.DB{"mysql": testservers.SharedMySQL, "mariadb": testservers.SharedMariaDB} {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			p := mysqlPlace(t, s)
			admin := p.open("rights").(*MySQL)
			schema := strings.Split(strings.Trim(admin.checkpoint, "`"), "`.`")[0]
			const user = "checkpoint_least"
			s.Exec(t, "", "DROP USER IF EXISTS "+user)
			s.Exec(t, "", "CREATE USER "+user+" IDENTIFIED BY 'x'")
			t.Cleanup(func() { s.Exec(t, "", "DROP USER "+user) })
			s.Exec(t, "", "GRANT SELECT ON "+admin.topic+" TO "+user)
			db, err := mysqlconn.Open(s.UserDSN(user, "x", schema), mysqlconn.Options{})
			must(t, err)
			t.Cleanup(func() { db.Close() })
			least := NewMySQL(db, schema, "rights")
			if _, err := least.Begin(t.Context(), "me"); err == nil || errors.Is(err, ErrNoTables) || !strings.Contains(err.Error(), "grant SELECT, INSERT, UPDATE") {
				t.Fatalf("without rights: %v", err)
			}
			for _, table := range []string{admin.checkpoint, admin.topic} {
				s.Exec(t, "", "GRANT SELECT, INSERT, UPDATE ON "+table+" TO "+user)
			}
			begin(t, least, "me")
			must(t, least.Save(t.Context(), "pos"))
			must(t, least.WriteFence(t.Context(), 1))
			must(t, least.SetPaused(t.Context(), false))
			must(t, least.SaveTopic(t.Context(), "t", []string{"q"}))
			must(t, least.ReplaceTopic(t.Context(), "t", 1, []string{"p"}))
			expectTopics(t, least, Topic{"t", []string{"p"}, 2})
		})
	}
}

func TestFileIsForOneProcess(t *testing.T) {
	p := filePlace(t)
	first, second := p.open("one"), p.open("one")
	begin(t, first, "first")
	if _, err := second.Begin(t.Context(), "second"); !errors.Is(err, ErrInUse) {
		t.Fatalf("%v, want ErrInUse", err)
	}
	if err := second.SetPaused(t.Context(), true); !errors.Is(err, ErrInUse) {
		t.Fatalf("%v, want ErrInUse", err)
	}
	if c := load(t, second); c.Owner != "first" {
		t.Fatalf("reading needs no lock: %+v", c)
	}
}

func TestFileKeepsDeadLettersBesideIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "checkpoint")
	f := NewFile(path, "shop")
	defer f.Close()
	key := func(id string) outbox.Key {
		return outbox.Key{Table: outbox.Table{Schema: "shop", Name: "outbox"}, ID: id}
	}
	letters := []outbox.Outcome{
		{Key: key("1"), Kind: outbox.OutcomeSent},
		{Key: key("2"), Kind: outbox.OutcomeFailed, Reason: "refused: too_large", OrderKey: "cart"},
	}
	if _, err := f.Record(t.Context(), letters, nil); !errors.Is(err, outbox.ErrFenced) {
		t.Fatalf("before Begin: got %v", err)
	}
	if _, err := f.Begin(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := f.Record(t.Context(), letters, nil); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path + ".dead")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	want := `{"table":"shop.outbox","id":"2","order_key":"cart","reason":"refused: too_large","at":"`
	if len(lines) != 2 || !strings.HasPrefix(lines[0], want) || !strings.HasPrefix(lines[1], want) {
		t.Errorf("%s.dead holds\n%s", path, text)
	}
}

func TestFileOfAnotherNameIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	a := NewFile(path, "a")
	begin(t, a, "me")
	must(t, a.Close())
	b := NewFile(path, "b")
	if _, err := b.Begin(t.Context(), "me"); err == nil || !strings.Contains(err.Error(), `belongs to "a"`) {
		t.Fatalf("%v", err)
	}
	begin(t, a, "me") // b has let go of the lock
	must(t, a.Close())
}

func TestFileSurvivesACrashWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	s := NewFile(path, "x")
	begin(t, s, "me")
	must(t, s.Save(t.Context(), "pos"))
	must(t, s.Close())
	must(t, os.WriteFile(path+".new", []byte(`{"position": "ha`), 0o600)) // what a crash leaves
	if c := begin(t, s, "me"); c.Position != "pos" || c.Epoch != 2 {
		t.Fatalf("%+v", c)
	}
	must(t, s.Close())
}

func TestDamagedFileIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if _, _, err := NewFile(path, "x").Load(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("%v", err)
	}
	must(t, os.WriteFile(path+".topics", []byte("["), 0o600))
	if _, err := NewFile(path, "x").LoadTopic(t.Context(), "t"); err == nil {
		t.Fatal("a damaged topics file was read")
	}
}

func TestFolderThatIsMissingIsAnError(t *testing.T) {
	s := NewFile(filepath.Join(t.TempDir(), "no", "f"), "x")
	if _, err := s.Begin(t.Context(), "me"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%v", err)
	}
}
