package rocketmq

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the signature of RocketMQ's ACL is HMAC-SHA1
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"time"
)

// Request and response codes of the remoting protocol that are used here.
const (
	reqCreateTopic  = 17
	reqRoute        = 105
	reqClusterInfo  = 106
	codeSuccess     = 0
	codeTopicAbsent = 17
)

// callTimeout bounds one request to one server, dialing included.
const callTimeout = 3 * time.Second

// replyBytesMax bounds what a server may make us allocate; a route of thousands
// of queues has some hundred KiB.
const replyBytesMax = 16 << 20

// remoting asks single questions, each on a connection of its own. The library
// cannot: it hides the difference between "no" and "no answer".
type remoting struct {
	accessKey, secretKey string
	tls                  bool
}

// reply is the answer of a server that answered, whatever it said.
type reply struct {
	Code   int    `json:"code"`
	Remark string `json:"remark"`
	body   []byte
}

// call sends one request and waits for its answer. An error means that there is none.
func (r *remoting) call(ctx context.Context, addr string, code int, fields map[string]string) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := r.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // one question, already answered
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, fmt.Errorf("asking %s: %w", addr, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // only to wake the reader
	defer stop()
	if _, err := conn.Write(r.frame(code, fields)); err != nil {
		return nil, fmt.Errorf("asking %s: %w", addr, err)
	}
	answer, err := readReply(conn)
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", addr, err)
	}
	return answer, nil
}

func (r *remoting) dial(ctx context.Context, addr string) (net.Conn, error) {
	if !r.tls {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as the library does for the sends; New says so in the log
	return d.DialContext(ctx, "tcp", addr)
}

// frame encodes a request: length, length of the header, header as JSON.
func (r *remoting) frame(code int, fields map[string]string) []byte {
	if r.accessKey != "" {
		fields = r.sign(fields)
	}
	header, err := json.Marshal(map[string]any{
		"code": code, "language": "GO", "version": 317, "opaque": 1, "flag": 0, "extFields": fields,
	})
	if err != nil {
		panic(err) // maps of strings and numbers always encode
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(header)))
	return append(b, header...)
}

// sign adds the ACL's fields: an HMAC over the values in the order of the names.
func (r *remoting) sign(fields map[string]string) map[string]string {
	signed := maps.Clone(fields)
	if signed == nil {
		signed = map[string]string{}
	}
	signed["AccessKey"] = r.accessKey
	mac := hmac.New(sha1.New, []byte(r.secretKey))
	for _, name := range slices.Sorted(maps.Keys(signed)) {
		io.WriteString(mac, signed[name]) //nolint:errcheck // a hash never fails
	}
	signed["Signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return signed
}

func readReply(conn io.Reader) (*reply, error) {
	var lengths [8]byte
	if _, err := io.ReadFull(conn, lengths[:]); err != nil {
		return nil, err
	}
	frame := binary.BigEndian.Uint32(lengths[:])
	header := binary.BigEndian.Uint32(lengths[4:]) & 0xffffff // the high byte is the encoding: 0, JSON
	if lengths[4] != 0 || frame > replyBytesMax || frame < 4 || header > frame-4 {
		return nil, errors.New("not an answer of the RocketMQ remoting protocol")
	}
	data := make([]byte, frame-4)
	if _, err := io.ReadFull(conn, data); err != nil {
		return nil, err
	}
	answer := &reply{body: data[header:]}
	if err := json.Unmarshal(data[:header], answer); err != nil {
		return nil, fmt.Errorf("not an answer of the RocketMQ remoting protocol: %w", err)
	}
	return answer, nil
}

// quoteNames mends the JSON of servers that write {0:"10.0.0.1:10911"}: names
// outside of strings that are bare numbers get their quotes.
func quoteNames(b []byte) []byte {
	out := make([]byte, 0, len(b)+16)
	inString := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case inString && c == '\\' && i+1 < len(b):
			out = append(out, c)
			i++
			c = b[i]
		case c == '"':
			inString = !inString
		case !inString && (c == '{' || c == ','):
			end := i + 1
			for end < len(b) && '0' <= b[end] && b[end] <= '9' {
				end++
			}
			if end > i+1 && end < len(b) && b[end] == ':' {
				out = append(out, c, '"')
				out = append(out, b[i+1:end]...)
				c, i = '"', end-1
			}
		}
		out = append(out, c)
	}
	return out
}
