// Package fallback is the sweep: it takes PENDING rows that the binlog path has
// not carried and brings them to SENT or FAILED.
//
// What it promises:
//
//   - A row is taken only when the tail cannot have it any more: it is selected
//     first, then a fence is written, and when the tail has read that fence, what
//     is still PENDING and not in flight was missed (see [Sweeper.Pass]). No clock
//     decides; created_at only filters beforehand.
//   - While the tail is down there is no fence to wait for: the pass goes without
//     one, and the engine afterwards looks up what it sends until a new fence is
//     back.
//   - Candidates are read without locks, claimed by primary key where the table
//     has claim columns, and sent through the same lanes as the tail's events.
//   - Parked lanes reopen with a pass that takes rows of any age, and with what the
//     engine asks for behind it (see [Engine]).
//   - A pass pages by age and ends at a short page; a page that cannot be sent
//     does not hide the rows behind it.
package fallback
