// Package relay is the engine that joins the rooms: it takes batches from the
// source and rows from the sweep, sends each event through its lane, has the
// ledger write down what became of it, and moves the position behind it.
//
// What it promises:
//
//   - The saved position covers only transactions whose every event is settled:
//     its outcome is committed to the ledger, or there is nothing to write (see
//     [watermark]).
//   - The events of one key enter one lane in commit order, and a lane has one
//     batch in flight, so retries keep that order (see [lane]).
//   - An event is in flight once, whichever path found it (see [registry]).
//   - A lane that cannot send while others can is parked: its events are left PENDING
//     and do not hold up the position or the others, and it reopens without a break in
//     the order of any key (see [parkState]).
//   - What is read but not settled is bounded in items and bytes (see [budget]);
//     the bound is felt by the source as back-pressure.
//
// The flow, in the order of the files: intake.go admits a batch; route.go looks
// rows up where it must and chooses topic and lane; lane.go sends; marker.go
// writes outcomes down and saves positions. engine.go starts and drains them. parking.go
// says how lanes are parked, reopen.go how they are opened again with the sweep's help.
package relay
