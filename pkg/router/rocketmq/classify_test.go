package rocketmq

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	mqerrors "github.com/apache/rocketmq-client-go/v2/errors"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// TestClassify holds texts of real brokers (5.4.0, some of 4.9) and of the library.
func TestClassify(t *testing.T) {
	code := func(n int, text string) error { return fmt.Errorf("CODE: %d, DESC: %s", n, text) }
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	write := &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
	const size = "java.lang.RuntimeException: message body size exceeded, org.apache.rocketmq.store.MessageExtEncoder.encode(MessageExtEncoder.java:290)"
	cases := []struct {
		err    error
		n      int
		class  outbox.Class
		reason string
	}{
		{code(1, size), 1, outbox.Refused, "too_large"},
		{code(1, size), 2, outbox.Unknown, "too_large"},
		{code(1, "java.lang.IllegalArgumentException: newPosition < 0: (-32667 < 0), java.base/java.nio.Buffer.createPositionException(Buffer.java:352)"), 1, outbox.Refused, "message_illegal"},
		{code(1, "java.lang.ArrayIndexOutOfBoundsException, java.base/java.util.zip.CRC32.update(CRC32.java:76)"), 5, outbox.Unknown, "message_illegal"},
		{code(1, `java.lang.NullPointerException: Cannot read the array length because the return value of "org.apache.rocketmq.remoting.protocol.RemotingCommand.getBody()" is null`), 1, outbox.Refused, "message_illegal"},
		{code(1, "java.lang.IllegalStateException: something new"), 1, outbox.Unknown, "broker_exception"},
		{code(1, "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=relay, org.apache.rocketmq.acl.plain.PlainPermissionManager.validate"), 3, outbox.Configuration, "no_permission"},
		{code(1, "create mapped file failed, server is busy or broken."), 3, outbox.Transient, "broker_error"},
		{code(1, "in-sync replicas not enough"), 1, outbox.Transient, "broker_error"},
		{code(2, "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 235ms, size of queue: 3"), 3, outbox.Transient, "broker_busy"},
		{code(2, "[OVERLOAD]system busy, start flow control for a while"), 1, outbox.Transient, "broker_busy"},
		{code(215, "flow control"), 1, outbox.Transient, "broker_busy"},
		{code(3, " request type 320 not supported"), 1, outbox.Configuration, "broker_unsupported"},
		{code(13, "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg properties length limit 32KB."), 1, outbox.Refused, "message_illegal"},
		{code(13, "the message is illegal"), 9, outbox.Unknown, "message_illegal"},
		{code(14, "service not available now. It may be caused by one of the following reasons: the broker's disk is full [CL:  0.56 CQ:  0.56 INDEX:  0.56], messages are put to the slave, message store has been shut down, etc."), 1, outbox.Transient, "disk_full"},
		{code(16, "User:relay has no permission to access Topic:TB from 127.0.0.1, no matched policies."), 3, outbox.Configuration, "no_permission"},
		{code(17, "topic[T] not exist, apply first please!\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."), 3, outbox.Configuration, "topic_missing"},
		{code(29, "request queueId[8] is illegal, TopicConfig [topicName=T] Producer: /127.0.0.1:5000"), 3, outbox.Configuration, "queue_vanished"},
		{code(29, "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"), 1, outbox.Refused, "topic_illegal"},
		{code(-7, ""), 1, outbox.Unknown, "broker_code_-7"},
		{mqerrors.ErrRequestTimeout, 1, outbox.Transient, "send_timeout"},
		{mqerrors.ErrNotRunning, 1, outbox.Transient, "sink_closed"},
		{mqerrors.ErrService, 1, outbox.Transient, "sink_closed"},
		{errors.New("the topic=T route info not found"), 1, outbox.Transient, "broker_unreachable"},
		{fmt.Errorf("looking up topic T: %w", dial), 1, outbox.Transient, "broker_unreachable"},
		{write, 1, outbox.Transient, "connection_lost"},
		{tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, 1, outbox.Configuration, "tls_mismatch"},
		{errors.New("something else"), 1, outbox.Unknown, "unknown"},
	}
	for _, c := range cases {
		got := classify(c.err, c.n)
		if got.Class != c.class || got.Reason != c.reason {
			t.Errorf("%.60v of %d: %s %s, want %s %s", c.err, c.n, got.Class, got.Reason, c.class, c.reason)
		}
		if got.Err == nil {
			t.Errorf("%.60v: the cause is lost", c.err)
		}
	}
}

func TestNotStoredSafelyNamesTheCause(t *testing.T) {
	for status, want := range map[primitive.SendStatus]string{
		primitive.SendFlushDiskTimeout: "disk flush", primitive.SendFlushSlaveTimeout: "replica", primitive.SendSlaveNotAvailable: "no replica", 99: "status 99",
	} {
		err := notStoredSafely(status)
		if err.Class != outbox.Transient || !strings.Contains(err.Error(), want) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}
