package testservers

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// RocketMQ's wire protocol, as far as tests need it. The client library is left out on
// purpose: its readers long-poll, cache, retry in the background and leak goroutines, and
// a test that reads with the library under test would share its faults.

// Request codes of RocketMQ 5.
const (
	codeSend         = 10
	codePull         = 11
	codeUpdateTopic  = 17
	codeUpdateConfig = 25
	codeRuntimeInfo  = 28
	codeMaxOffset    = 30
	codeMinOffset    = 31
	codeRoute        = 105
	codeSendV2       = 310
	codeSendBatch    = 320
	codeTopicConfig  = 351
)

// Response codes.
const (
	responseOK            = 0
	responseBusy          = 2
	responseTopicMissing  = 17
	responsePullNotFound  = 19
	responsePullRetry     = 20
	responsePullOffsetOff = 21
)

// callTimeout bounds one request, so that a frozen server fails a test instead of
// hanging it.
const callTimeout = 15 * time.Second

// maxFrame is far above what a test broker sends; more is a broken length.
const maxFrame = 256 << 20

// clientVersion is V5_4_0 in the protocol's numbering or close to it; servers only ask
// whether it is at least 4.9.4, to answer in standard JSON.
const clientVersion = 500

type command struct {
	Code      int               `json:"code"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int               `json:"opaque"`
	Flag      int               `json:"flag"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

// remoteError is an answer other than success.
type remoteError struct {
	code   int
	remark string
}

func (e remoteError) Error() string { return fmt.Sprintf("answer code %d: %s", e.code, e.remark) }

// isCode tells whether err is the server's answer with that code.
func isCode(err error, code int) bool {
	var remote remoteError
	return errors.As(err, &remote) && remote.code == code
}

// remote is one connection to a broker or name server.
type remote struct{ conn net.Conn }

func dialRemote(addr string) (remote, error) {
	conn, err := net.DialTimeout("tcp", addr, callTimeout)
	if err != nil {
		return remote{}, fmt.Errorf("connecting to RocketMQ: %w", err)
	}
	return remote{conn}, nil
}

func (r remote) close() { r.conn.Close() }

// callOnce is one request on a connection of its own.
func callOnce(addr string, code int, fields map[string]string, body []byte) ([]byte, error) {
	r, err := dialRemote(addr)
	if err != nil {
		return nil, err
	}
	defer r.close()
	_, answer, err := r.call(code, fields, body)
	return answer, err
}

// call sends a request and returns the fields and the body of its answer.
func (r remote) call(code int, fields map[string]string, body []byte) (map[string]string, []byte, error) {
	if err := r.conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, nil, err
	}
	if err := r.send(command{Code: code, Language: "GO", Version: clientVersion, Opaque: 1, ExtFields: fields}, body); err != nil {
		return nil, nil, fmt.Errorf("sending request %d to %v: %w", code, r.conn.RemoteAddr(), err)
	}
	answer, answerBody, err := r.receive()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the answer to request %d of %v: %w", code, r.conn.RemoteAddr(), err)
	}
	if answer.Code != responseOK {
		err = fmt.Errorf("request %d to %v: %w", code, r.conn.RemoteAddr(), remoteError{answer.Code, answer.Remark})
	}
	return answer.ExtFields, answerBody, err
}

func (r remote) send(c command, body []byte) error {
	header, err := json.Marshal(c)
	if err != nil {
		return err
	}
	_, err = r.conn.Write(frame{0, header, body}.bytes())
	return err
}

func (r remote) receive() (command, []byte, error) {
	var c command
	f, err := readFrame(r.conn)
	if err != nil {
		return c, nil, err
	}
	if err := json.Unmarshal(f.header, &c); err != nil {
		return c, nil, fmt.Errorf("header: %w", err)
	}
	return c, f.body, nil
}

// frame is a request or an answer as it is on the wire.
type frame struct {
	coding byte // of the header; 0: JSON
	header []byte
	body   []byte
}

func readFrame(r io.Reader) (frame, error) {
	var lengths [8]byte
	if _, err := io.ReadFull(r, lengths[:]); err != nil {
		return frame{}, err
	}
	total := int(binary.BigEndian.Uint32(lengths[:4]))
	header := int(binary.BigEndian.Uint32(lengths[4:]) & 0xffffff)
	if total > maxFrame || header > total-4 {
		return frame{}, fmt.Errorf("impossible frame: %d bytes with a header of %d", total, header)
	}
	rest := make([]byte, total-4)
	if _, err := io.ReadFull(r, rest); err != nil {
		return frame{}, err
	}
	return frame{lengths[4], rest[:header], rest[header:]}, nil
}

// bytes are the frame's length, the header's length, the header and the body.
func (f frame) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(f.header)+len(f.body)))
	b = binary.BigEndian.AppendUint32(b, uint32(f.coding)<<24|uint32(len(f.header)))
	return append(append(b, f.header...), f.body...)
}
