package rocketmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"

	mqerrors "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// The library reports a broker's refusal as text.
var (
	codeText      = regexp.MustCompile(`^CODE: (-?\d+), +DESC: (?s:(.*))$`)
	javaException = regexp.MustCompile(`\b(?:java|javax|org|com|io)\.[\w.$]+(?:Exception|Error)\b`)
)

// poisonTexts stand in the code 1 that a broker answers to a message it cannot
// take, however often it is sent.
var poisonTexts = []string{"size exceeded", "newPosition < 0", "ArrayIndexOutOfBounds", "NullPointerException", "IllegalArgumentException"}

// classify says what a failed send of n messages means. It is the only place
// that looks into the library's errors.
func classify(err error, n int) *outbox.SendError {
	var op *net.OpError
	var record tls.RecordHeaderError
	text := err.Error()
	switch match := codeText.FindStringSubmatch(text); {
	case match != nil:
		code, _ := strconv.Atoi(match[1]) //nolint:errcheck // digits by the pattern; too many: 0, unknown below
		return classifyCode(code, match[2], n)
	case errors.Is(err, mqerrors.ErrRequestTimeout):
		return transient("send_timeout", err, "the broker may have stored the batch; it is sent again")
	case errors.Is(err, mqerrors.ErrNotRunning), errors.Is(err, mqerrors.ErrService):
		return transient("sink_closed", err, "")
	case strings.Contains(text, "route info not found"):
		return transient("broker_unreachable", err, "the name servers give no address for the broker of this queue")
	case errors.As(err, &record):
		return &outbox.SendError{Class: outbox.Configuration, Reason: "tls_mismatch", Err: err,
			Hint: "ROWFERRY_ROCKETMQ_TLS is on, and the other side does not speak TLS"}
	case errors.As(err, &op) && op.Op == "dial":
		return transient("broker_unreachable", err, "the name servers give this address for the broker; it must be reachable from here (brokerIP1, listenPort)")
	case errors.As(err, &op), broken(err):
		return transient("connection_lost", err, "the broker may have stored the batch; it is sent again")
	}
	return &outbox.SendError{Class: outbox.Unknown, Reason: "unknown", Err: err}
}

// broken recognises the ends of a connection that come bare, as those within a TLS
// handshake do.
func broken(err error) bool {
	var network net.Error // a deadline is one, too
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

func transient(reason string, err error, hint string) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Transient, Reason: reason, Err: err, Hint: hint}
}

// classifyCode judges the code and the text of a broker or a name server.
func classifyCode(code int, text string, n int) *outbox.SendError {
	e := &outbox.SendError{Err: fmt.Errorf("code %d: %s", code, text)}
	switch code {
	case 1: // SYSTEM_ERROR
		classifySystemError(e, text, n)
	case 2, 215: // SYSTEM_BUSY, FLOW_CONTROL
		e.Class, e.Reason = outbox.Transient, "broker_busy"
	case 3: // REQUEST_CODE_NOT_SUPPORTED
		e.Class, e.Reason = outbox.Configuration, "broker_unsupported"
		e.Hint = "the server does not know batches; is it a RocketMQ broker of version 4 or 5, and not a proxy?"
	case 13: // MESSAGE_ILLEGAL
		e.Class, e.Reason = poison(n), "message_illegal"
	case 14: // SERVICE_NOT_AVAILABLE
		e.Class, e.Reason = outbox.Transient, "disk_full"
		e.Hint = "the broker's store takes no messages: its disk is full, or it is a replica or shutting down"
	case 16: // NO_PERMISSION
		e.Class, e.Reason = outbox.Configuration, "no_permission"
		e.Hint = "ROWFERRY_ROCKETMQ_ACCESS_KEY needs the Pub action on the topic, and the topic the permission to write"
	case codeTopicAbsent:
		e.Class, e.Reason = outbox.Configuration, "topic_missing"
		e.Hint = "create the topic on this broker"
	case 29: // INVALID_PARAMETER
		classifyInvalid(e, text, n)
	default:
		e.Class, e.Reason = outbox.Unknown, "broker_code_"+strconv.Itoa(code)
	}
	return e
}

// classifySystemError takes code 1 apart: a refusal by an old ACL, a message
// that the broker cannot read, or its own trouble.
func classifySystemError(e *outbox.SendError, text string, n int) {
	switch {
	case strings.Contains(text, "AclException"):
		e.Class, e.Reason = outbox.Configuration, "no_permission"
	case !javaException.MatchString(text):
		e.Class, e.Reason = outbox.Transient, "broker_error"
	case containsAny(text, poisonTexts):
		e.Class, e.Reason = poison(n), "message_illegal"
		if strings.Contains(text, "size exceeded") {
			e.Reason = "too_large"
			e.Hint = "maxMessageSize of the broker is below ROWFERRY_MESSAGE_BYTES_MAX"
		}
	default:
		e.Class, e.Reason = outbox.Unknown, "broker_exception"
	}
}

// classifyInvalid tells a queue that is gone from a topic that no broker takes.
func classifyInvalid(e *outbox.SendError, text string, n int) {
	if strings.Contains(text, "queueId") {
		e.Class, e.Reason, e.Hint = outbox.Configuration, "queue_vanished", refreezeHint
		return
	}
	e.Class, e.Reason = poison(n), "topic_illegal"
}

const refreezeHint = "give the topic its queues back, or accept that keys move: rowferry topics refreeze"

// poison is Refused for a message that stands alone. In a batch the broker does
// not say which message it means: Unknown, so that the batch is taken apart.
func poison(n int) outbox.Class {
	if n == 1 {
		return outbox.Refused
	}
	return outbox.Unknown
}

// noMessage is for answers to questions about a topic: no message was part of them,
// so none may be refused or lose an attempt for them.
func noMessage(e *outbox.SendError) *outbox.SendError {
	if e.Class == outbox.Refused || e.Class == outbox.Unknown {
		e.Class = outbox.Transient
	}
	return e
}

func containsAny(s string, texts []string) bool {
	for _, t := range texts {
		if strings.Contains(s, t) {
			return true
		}
	}
	return false
}

// notStoredSafely is the error for an answer that is neither failure nor success.
func notStoredSafely(status primitive.SendStatus) *outbox.SendError {
	reason := map[primitive.SendStatus]string{
		primitive.SendFlushDiskTimeout:  "the disk flush timed out",
		primitive.SendFlushSlaveTimeout: "the replica did not confirm in time",
		primitive.SendSlaveNotAvailable: "no replica is available",
	}[status]
	if reason == "" {
		reason = fmt.Sprintf("status %d", status)
	}
	return &outbox.SendError{Class: outbox.Transient, Reason: "not_stored_safely", Err: errors.New(reason),
		Hint: "the broker has stored the batch once more with every attempt; ROWFERRY_ROCKETMQ_NON_OK=accept takes this answer for success"}
}
