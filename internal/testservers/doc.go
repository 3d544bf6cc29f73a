// Package testservers gives tests and the demo real servers: MySQL, MariaDB and RocketMQ.
//
// It promises that
//
//   - a plain `go test` works: the servers are fetched by scripts/provision on first use;
//   - every server listens on 127.0.0.1 at a free port, has a data folder of its own
//     below .servers/run, and answers before the function that starts it returns;
//   - no server outlives the test process, even one that is killed, and folders left by
//     a killed process are removed by the next one;
//   - a server that does not start fails the test with the end of that server's log.
//
// MySQL, MySQLNoGTID, MariaDB, MariaDB1011 and RocketMQ start a server for one test, which
// that test may stop, kill or freeze. The Shared functions start one server for all tests of the
// package, whose TestMain must be Main; tests stay apart by DB.Schema and Broker.Topic.
//
// Three environment variables replace shared servers by running ones:
// FERRYTEST_MYSQL_DSN and FERRYTEST_MARIADB_DSN (in go-sql-driver form, an account that
// may do everything) and FERRYTEST_ROCKETMQ_NAMESRV (ip:port, RocketMQ 5).
// FERRYTEST_SERVERS_DIR moves the folder that the servers are fetched into. FERRYTEST_JVM
// replaces the JVM options that make RocketMQ start fast and peak low:
// FERRYTEST_JVM=-XX:TieredStopAtLevel=4 suits benchmarks.
package testservers
