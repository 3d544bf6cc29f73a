// Package reconcile compares what the shop committed with what a consumer
// received, event by event.
//
// It promises that a sale passes only if every event of every committed order
// arrived, nothing else did, no event arrived twice (unless the caller allows
// it, as after a crash), the events of each order arrived in the order in which
// they were committed, and the shop's own books balance. It does no I/O: the
// shop reads the [Facts], the consumer fills the [Inbox].
package reconcile
