// Package binlog reads the replication stream of MySQL or MariaDB and hands on
// the rows that were inserted into outbox tables, one whole committed
// transaction after the other.
//
// It promises:
//
//   - nothing is emitted that did not commit: a transaction is held until its end
//     is read, and forgotten when the stream breaks off, rolls back or turns out torn;
//   - nothing that committed is left out without a word: what cannot be read for
//     certain is emitted as an event whose Unread says why, and what the stream no
//     longer holds ends [Reader.Run] with [ErrGap];
//   - a position stands only behind a whole transaction, and the text that
//     [Reader.Encode] makes of it is enough to go on there after a restart;
//   - other tables cost little: their rows are skipped by table id, undecoded.
//
// Column values are rendered exactly as a SELECT would print them (see
// outbox.Values), so that the binlog path and the sweep publish the same bytes.
package binlog
