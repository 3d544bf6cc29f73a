// Command chaos tries to break rowferry. Writers commit rows that are known one by one,
// into tables of several layouts, while faults that a seed has chosen befall everything:
// two relays of one name, the database, the broker, the name server, and the ways between
// them. In the end everything is healed, and once it is quiet, what the tables say and what
// the broker holds are compared with what was committed.
//
// It promises that
//
//   - a run is told by its seed: faults, their order and their lengths, and what is
//     committed follow from it, though the interleaving is the machine's;
//   - whatever is wrong ends it with exit code 1, and leaves the seed, the rows that are
//     wrong, and the logs of everything in a folder;
//   - `chaos mutants` shows that it finds what it is there for: it builds relays with known
//     bugs and runs until each of them is caught.
package main
