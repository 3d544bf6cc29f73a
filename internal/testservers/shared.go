package testservers

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
)

// shared is a server that all tests of the process use, started by the first of them.
type shared[T interface{ discard() }] struct {
	mu    sync.Mutex
	value T
	used  bool
	err   error
}

func (s *shared[T]) get(tb testing.TB, start func() (T, error)) T {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.used {
		s.used = true
		s.value, s.err = start()
	}
	if s.err != nil {
		tb.Fatal(s.err) // one attempt is enough: the next would fail as slowly
	}
	return s.value
}

func (s *shared[T]) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used && s.err == nil {
		s.value.discard()
	}
}

var (
	sharedMySQL       shared[*DB]
	sharedMySQLNoGTID shared[*DB]
	sharedMariaDB     shared[*DB]
	sharedMariaDB1011 shared[*DB]
	sharedRocketMQ    shared[*Broker]
)

// SharedMySQL is a MySQL with GTIDs for all tests of the package.
func SharedMySQL(tb testing.TB) *DB {
	tb.Helper()
	return sharedMySQL.get(tb, func() (*DB, error) {
		return givenOrOwn("FERRYTEST_MYSQL_DSN", FlavorMySQL, gtidFlags(true))
	})
}

// SharedMySQLNoGTID is a MySQL without GTIDs for all tests of the package.
func SharedMySQLNoGTID(tb testing.TB) *DB {
	tb.Helper()
	return sharedMySQLNoGTID.get(tb, func() (*DB, error) {
		return startDB(DBServer{Flavor: FlavorMySQL, Flags: gtidFlags(false)})
	})
}

// SharedMariaDB is a MariaDB for all tests of the package.
func SharedMariaDB(tb testing.TB) *DB {
	tb.Helper()
	return sharedMariaDB.get(tb, func() (*DB, error) {
		return givenOrOwn("FERRYTEST_MARIADB_DSN", FlavorMariaDB, nil)
	})
}

// SharedMariaDB1011 is a MariaDB 10.11 for all tests of the package.
func SharedMariaDB1011(tb testing.TB) *DB {
	tb.Helper()
	return sharedMariaDB1011.get(tb, func() (*DB, error) {
		return startDB(DBServer{Flavor: FlavorMariaDB, Release: release1011})
	})
}

// SharedRocketMQ is a RocketMQ for all tests of the package.
func SharedRocketMQ(tb testing.TB) *Broker {
	tb.Helper()
	return sharedRocketMQ.get(tb, func() (*Broker, error) {
		if given := os.Getenv("FERRYTEST_ROCKETMQ_NAMESRV"); given != "" {
			return givenRocketMQ(given)
		}
		return startRocketMQ(nil)
	})
}

func givenOrOwn(variable, flavor string, flags []string) (*DB, error) {
	given := os.Getenv(variable)
	if given == "" {
		return startDB(DBServer{Flavor: flavor, Flags: flags})
	}
	if _, err := mysql.ParseDSN(given); err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	if err := ping(given); err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return &DB{flavor: flavor, dsn: given}, nil
}

func givenRocketMQ(nameServer string) (*Broker, error) {
	brokers, err := brokerAddrs(nameServer, systemTopic)
	if err != nil {
		return nil, fmt.Errorf("FERRYTEST_ROCKETMQ_NAMESRV: %w", err)
	}
	return &Broker{nameServer: nameServer, brokers: brokers}, nil
}

// Main is a package's TestMain: it runs the tests, stops the shared servers, looks for
// leaked goroutines, and exits.
func Main(m *testing.M) {
	code := m.Run()
	for _, s := range []interface{ stop() }{&sharedMySQL, &sharedMySQLNoGTID, &sharedMariaDB, &sharedMariaDB1011, &sharedRocketMQ} {
		s.stop()
	}
	starter.close()
	removeRunDir()
	if code == 0 {
		// A request of the client's to a server now gone takes a few seconds to end.
		err := poll(10*time.Second, func() error { return goleak.Find(GoleakOptions()...) })
		if err != nil {
			fmt.Fprintf(os.Stderr, "FAIL: goroutines outlived the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// GoleakOptions are the goroutines that are no leak of the code under test.
func GoleakOptions() []goleak.Option {
	const client = "github.com/apache/rocketmq-client-go/v2/internal"
	return []goleak.Option{
		// Ours: shared servers live until the end of the process.
		goleak.IgnoreAnyFunction("github.com/rowferry/rowferry/internal/testservers.(*threadStarter).loop"),
		goleak.IgnoreAnyFunction("github.com/rowferry/rowferry/internal/testservers.(*Process).reap"),
		// Three of the client's five periodic tasks notice its shutdown only after a first
		// sleep of 1 or 10 s. The other two do at once, so a client without shutdown shows.
		goleak.IgnoreAnyFunction(client + ".(*rmqClient).Start.func1.1"),
		goleak.IgnoreAnyFunction(client + ".(*rmqClient).Start.func1.3"),
		goleak.IgnoreAnyFunction(client + ".(*rmqClient).Start.func1.4"),
		// The client does not close its connections to name servers.
		goleak.IgnoreAnyFunction(client + "/remote.(*remotingClient).receiveResponse"),
		// The client keeps one cache, with its cleaner, per process.
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	}
}
