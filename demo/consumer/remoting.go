package consumer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// RocketMQ's wire protocol, as far as reading a topic needs it. See the package
// comment for why this is not the client library.

const (
	codePull  = 11
	codeRoute = 105

	answerOK           = 0
	answerTopicMissing = 17
	answerNothingNew   = 19 // nothing arrived while the broker held the pull
	answerRetry        = 20 // nothing for us up to the offset in the answer
	answerOffsetMoved  = 21 // the offset is not there (any more): the answer names the next that is
)

const (
	dialTimeout = 5 * time.Second
	// callTimeout is longer than the broker holds a pull.
	callTimeout = holdTime + 15*time.Second
	frameMax    = 64 << 20 // bytes; a broker answers with a few hundred KiB
)

type command struct {
	Code      int               `json:"code"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int               `json:"opaque"`
	Flag      int               `json:"flag"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

// connection carries one request at a time.
type connection struct{ net.Conn }

func dial(ctx context.Context, address string) (connection, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return connection{}, fmt.Errorf("connecting to RocketMQ: %w", err)
	}
	return connection{conn}, nil
}

// call sends a request and returns the answer. The end of ctx interrupts it and
// leaves the connection unusable.
func (c connection) call(ctx context.Context, code int, fields map[string]string) (command, []byte, error) {
	if err := c.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return command{}, nil, fmt.Errorf("asking RocketMQ: %w", err)
	}
	interrupt := context.AfterFunc(ctx, func() { c.Close() })
	defer interrupt()
	if err := c.send(command{Code: code, Language: "GO", Version: 500, Opaque: 1, ExtFields: fields}); err != nil {
		return command{}, nil, fmt.Errorf("sending request %d to %s: %w", code, c.RemoteAddr(), err)
	}
	answer, body, err := receive(c)
	if err != nil {
		return answer, nil, fmt.Errorf("reading the answer of %s to request %d: %w", c.RemoteAddr(), code, err)
	}
	return answer, body, nil
}

// send writes a frame without a body: its length, the header's length, the header.
func (c connection) send(request command) error {
	header, err := json.Marshal(request)
	if err != nil {
		return err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	_, err = c.Write(append(frame, header...))
	return err
}

// receive reads a frame.
func receive(r io.Reader) (answer command, body []byte, err error) {
	var lengths [8]byte
	if _, err := io.ReadFull(r, lengths[:]); err != nil {
		return answer, nil, err
	}
	total := binary.BigEndian.Uint32(lengths[:4])
	header := binary.BigEndian.Uint32(lengths[4:])
	if coding := header >> 24; coding != 0 {
		return answer, nil, fmt.Errorf("the header is coded as %d, not as JSON", coding)
	}
	if total < 4 || total > frameMax || header > total-4 {
		return answer, nil, fmt.Errorf("a frame of %d bytes with a header of %d is not possible", total, header)
	}
	rest := make([]byte, total-4)
	if _, err := io.ReadFull(r, rest); err != nil {
		return answer, nil, err
	}
	if err := json.Unmarshal(rest[:header], &answer); err != nil {
		return answer, nil, fmt.Errorf("reading the header: %w", err)
	}
	return answer, rest[header:], nil
}
