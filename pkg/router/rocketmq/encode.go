package rocketmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// A batch is the concatenation of its messages, each
//
//	total(4) magic(4)=0 crc(4)=0 flag(4)=0 bodyLen(4) body propLen(2) props
//
// with props as name \x01 value \x02. Nothing in it is escaped, and a propLen
// that does not fit makes the broker read the next message at the wrong place,
// so checkWire must have passed. TestEncodeIsWhatTheLibraryWrites compares the
// result with the library's own encoder.
const (
	messageOverheadBytes = 22
	// propertiesBytesMax is below what RocketMQ stores (32,767): the rest is for
	// what the broker adds.
	propertiesBytesMax = 32000
	// seqBytesMax is reserved for outbox_seq, which the engine adds after Check.
	seqBytesMax = 64
)

const (
	nameEnd  = '\x01'
	valueEnd = '\x02'
)

// appendMessage appends one message of a batch.
func appendMessage(b []byte, m *outbox.Message, now time.Time) []byte {
	start := len(b)
	b = append(b, zeros[:]...) // total, magic, crc, flag
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Body)))
	b = append(b, m.Body...)
	lengthAt := len(b)
	b = append(b, 0, 0)
	b = appendProperties(b, m, now)
	binary.BigEndian.PutUint16(b[lengthAt:], uint16(len(b)-lengthAt-2))
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

var zeros [16]byte

func appendProperties(b []byte, m *outbox.Message, now time.Time) []byte {
	if len(m.Keys) > 0 {
		b = append(b, "KEYS"...)
		b = append(b, nameEnd)
		for i, k := range m.Keys {
			if i > 0 {
				b = append(b, ' ')
			}
			b = append(b, k...)
		}
		b = append(b, valueEnd)
	}
	b = appendProperty(b, "TAGS", m.Tag)
	b = appendProperty(b, "SHARDING_KEY", m.Key)  // as this library's consumers read it
	b = appendProperty(b, "__SHARDINGKEY", m.Key) // as RocketMQ 5 reads it
	b = append(b, "UNIQ_KEY"...)
	b = append(b, nameEnd)
	b = appendUniqKey(b, m, now)
	b = append(b, valueEnd)
	for i := range m.Properties {
		b = appendProperty(b, m.Properties[i].Name, m.Properties[i].Value)
	}
	return b
}

// appendProperty leaves out what is empty: RocketMQ has no empty values.
func appendProperty(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, name...)
	b = append(b, nameEnd)
	b = append(b, value...)
	return append(b, valueEnd)
}

// propertiesBytes is an upper bound of what appendProperties writes, exact
// unless some value is empty.
func propertiesBytes(m *outbox.Message) int {
	const names = len("KEYS") + len("TAGS") + len("SHARDING_KEY") + len("__SHARDINGKEY") + len("UNIQ_KEY") + 5*2
	n := names + uniqKeyBytes + len(m.Tag) + 2*len(m.Key)
	for _, k := range m.Keys {
		n += len(k) + 1
	}
	for i := range m.Properties {
		n += len(m.Properties[i].Name) + len(m.Properties[i].Value) + 2
	}
	return n
}

// checkWire refuses a message that no batch can carry to a broker that takes
// bytesMax. spare is kept free for what will still be added.
func checkWire(m *outbox.Message, bytesMax int64, spare int) error {
	properties := propertiesBytes(m) + spare
	wire := int64(messageOverheadBytes + len(m.Body) + properties)
	switch {
	case len(m.Body) == 0:
		return refused("empty_payload", errors.New("RocketMQ does not carry a message without a body"))
	case properties > propertiesBytesMax:
		return refused("properties_too_large", fmt.Errorf("keys, tag and properties have %d bytes on the wire, the limit is %d", properties, propertiesBytesMax))
	case wire > bytesMax:
		return refused("too_large", fmt.Errorf("the message has %d bytes on the wire, brokers take %d (maxMessageSize, ROWFERRY_MESSAGE_BYTES_MAX)", wire, bytesMax))
	}
	return nil
}

// encodeBatch writes msgs into buf, which it may replace by a larger one.
func encodeBatch(buf []byte, msgs []*outbox.Message, bytesMax int64, now time.Time) ([]byte, error) {
	total := 0
	for _, m := range msgs {
		if err := checkWire(m, bytesMax, 0); err != nil {
			return buf, err
		}
		total += messageOverheadBytes + len(m.Body) + propertiesBytes(m)
	}
	if int64(total) > bytesMax {
		return buf, refused("too_large", fmt.Errorf("the batch has %d bytes on the wire, brokers take %d", total, bytesMax))
	}
	if cap(buf) < total {
		buf = make([]byte, 0, total)
	}
	buf = buf[:0]
	for _, m := range msgs {
		buf = appendMessage(buf, m, now)
	}
	return buf, nil
}

func refused(reason string, err error) *outbox.SendError {
	return &outbox.SendError{Class: outbox.Refused, Reason: reason, Err: err}
}
