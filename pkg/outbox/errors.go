package outbox

import (
	"errors"
	"fmt"
)

// Class says what can be done about a failed send. Each sink decides it in one
// place; everything that retries looks at nothing else.
type Class uint8

// The classes. Only Unknown costs a row an attempt, and only when it stands
// alone in its batch.
const (
	Unknown       Class = iota // not understood: retried, attempts counted, FAILED at the maximum
	Refused                    // this message can never go: FAILED at once
	Transient                  // busy, timed out, away: retried for ever
	Configuration              // no such topic, no permission: loud, retried slowly
)

// String returns the label used in metrics and logs.
func (c Class) String() string {
	return [...]string{"unknown", "refused", "transient", "configuration"}[c]
}

// SendError is a failed send with its class.
type SendError struct {
	Class  Class
	Reason string // short, stable, without ids or payload: a metric label and the start of last_error
	Hint   string // what the operator can do; may be empty
	Err    error  // the cause; may be nil
}

// Error implements error.
func (e *SendError) Error() string {
	s := e.Reason
	if e.Err != nil {
		s = fmt.Sprintf("%s: %v", s, e.Err)
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *SendError) Unwrap() error { return e.Err }

// ClassOf returns the class of err: Unknown for anything that is no SendError.
func ClassOf(err error) Class {
	var se *SendError
	if errors.As(err, &se) {
		return se.Class
	}
	return Unknown
}

// ReasonOf returns the short reason of err, "unknown" for anything that is no
// SendError.
func ReasonOf(err error) string {
	var se *SendError
	if errors.As(err, &se) {
		return se.Reason
	}
	return "unknown"
}

// ErrDropped is returned by a router for an event that a rule of the operator
// drops: it is not sent, counted, and marked SENT.
var ErrDropped = errors.New("dropped by a routing rule")

// ErrFenced is returned by a checkpoint store when another relay has taken over
// this name: the position was not saved and must not be. Marks made in the same
// transaction stay, because that a row was published is a fact.
var ErrFenced = errors.New("another relay has taken over this name")

// ErrTailDown says that the tail cannot prove what it has passed: a sweep that
// asked for a fence goes on without one.
var ErrTailDown = errors.New("the tail is down")
