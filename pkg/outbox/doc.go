// Package outbox is the vocabulary of rowferry: what an outbox row is, how it is
// named on its way, and which column of a table plays which role.
//
// It promises two things. An [Event] built by [Layout.Event] is the same value
// whether its columns came from the binlog or from a SELECT, so that both paths
// publish the same bytes. And nothing in here does I/O, except [ReadTable],
// which asks information_schema once. The package imports the standard library
// only; every other package of the project may import it.
package outbox
