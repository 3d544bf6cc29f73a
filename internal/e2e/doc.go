// Package e2e holds the tests of the whole program: they build the real binary,
// run it as a child process against real MySQL, MariaDB and RocketMQ, and hold
// what the broker stores and what the table says against what rowferry promises.
//
// The children are built with the race detector, and a race that one of them
// reports fails its test; where memory is measured, a build without it is used.
// No child outlives the test process.
package e2e
