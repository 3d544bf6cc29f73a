// Package router turns an outbox event into the message that a sink sends:
// topic, tag, ordering key, message keys and properties.
//
// It promises that routing is a pure function of the event and the
// configuration, so that the binlog path and the sweep publish the same message
// for the same row, and that every event comes out as a message the broker can
// store without changing a byte of it, as [ErrDropped], or as a refusal that
// says why the row can never go. Nothing is repaired silently, but for the
// characters that template values may not put into a topic or a tag.
//
// A [Router] is immutable and may be used by any number of goroutines.
package router
