package rocketmq

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// uniqKeyBytes is the length of UNIQ_KEY, which consumers see as the message id.
const uniqKeyBytes = 32

// appendUniqKey appends the UNIQ_KEY of m: sixteen bytes in hex, of which bytes
// 10 to 13 are milliseconds since the start of the month, where RocketMQ's tools
// look for the time when they search a message by this key.
//
// The rest is a hash of outbox_uid and the time is created_at, so that every
// attempt to send a row, also after a restart or by the sweep, carries the same
// id. Where created_at is missing, in the future or so old that the month would
// be ambiguous, the time is now, and only those bytes differ between attempts.
func appendUniqKey(b []byte, m *outbox.Message, now time.Time) []byte {
	var uid, created string
	for i := range m.Properties {
		switch p := &m.Properties[i]; p.Name {
		case "outbox_uid":
			uid = p.Value
		case "created_at":
			created = p.Value
		}
	}
	var id [16]byte
	if uid == "" {
		id = anonymousID()
	} else {
		sum := sha256.Sum256([]byte(uid))
		copy(id[:], sum[:])
	}
	binary.BigEndian.PutUint32(id[10:], millisOfMonth(sentAround(created, now)))
	return appendHex(b, &id)
}

// sentAround returns the time that stands in the key.
func sentAround(created string, now time.Time) time.Time {
	const unambiguous = 27 * 24 * time.Hour // shorter than every month
	if created == "" {
		return now
	}
	t, err := time.Parse(time.RFC3339Nano, created)
	if err != nil || t.After(now) || now.Sub(t) > unambiguous {
		return now
	}
	return t
}

// millisOfMonth counts in local time, as the Java client and its tools do.
func millisOfMonth(t time.Time) uint32 {
	t = t.Local()
	start := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.Local)
	return uint32(t.Sub(start).Milliseconds())
}

var (
	processSalt    = newSalt()
	anonymousCount atomic.Uint64
)

func newSalt() (s [8]byte) {
	rand.Read(s[:]) //nolint:errcheck // never fails since Go 1.24
	return s
}

// anonymousID serves messages without outbox_uid, which rowferry does not make.
func anonymousID() (id [16]byte) {
	var seed [16]byte
	copy(seed[:], processSalt[:])
	binary.BigEndian.PutUint64(seed[8:], anonymousCount.Add(1))
	sum := sha256.Sum256(seed[:])
	copy(id[:], sum[:])
	return id
}

func appendHex(b []byte, id *[16]byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, c := range id {
		b = append(b, digits[c>>4], digits[c&15])
	}
	return b
}
