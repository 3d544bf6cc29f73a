package binlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// scan reads the GTIDs of one file of MySQL up to an offset, as SHOW BINLOG
// EVENTS tells them. It is used when an operator gives FILE:POS, or when GTIDs
// were switched on since the position was saved.
func (s *server) scan(ctx context.Context, file string, end uint64) (*mysqlSet, error) {
	const page = 10_000
	sc := scanner{set: newMySQLSet()}
	for from := uint64(4); from < end; {
		rows, err := s.maps(ctx, fmt.Sprintf("SHOW BINLOG EVENTS IN %s FROM %d LIMIT %d", quote(file), from, page))
		if err != nil {
			return nil, fmt.Errorf("reading the events of %s: %w", file, err)
		}
		if len(rows) == 0 {
			break
		}
		for _, row := range rows {
			next, err := strconv.ParseUint(row["end_log_pos"], 10, 64)
			if row["pos"] == row["end_log_pos"] {
				continue // inside the compressed transaction in front of it
			}
			if err != nil || next <= from || from < end && end < next {
				return nil, fmt.Errorf("%s:%d is not the end of an event", file, end)
			}
			if from >= end {
				break
			}
			from = next
			if err := sc.event(row["event_type"], row["info"]); err != nil {
				return nil, fmt.Errorf("reading the events of %s: %w", file, err)
			}
		}
	}
	if sc.open != nil {
		return nil, fmt.Errorf("%s:%d is inside a transaction", file, end)
	}
	if !sc.seenHead {
		return nil, fmt.Errorf("%s:%d lies inside the head of the file; give the end of a transaction, or earliest", file, end)
	}
	return sc.set, nil
}

// scanner collects the transactions that a list of events completes.
type scanner struct {
	set      *mysqlSet
	open     *mysqlSet // the transaction whose GTID was read and whose end was not
	explicit bool      // it began with BEGIN or XA START
	seenHead bool
}

func (sc *scanner) event(eventType, info string) error {
	switch strings.ToLower(eventType) {
	case "previous_gtids":
		sc.seenHead = true
		set, err := parseMySQLSet(info)
		if err != nil {
			return err
		}
		sc.set.merge(set)
	case "gtid", "gtid_tagged", "gtid_tagged_log_event":
		return sc.begin(info)
	case "xid", "xa_prepare", "transaction_payload":
		sc.end()
	case "query":
		sc.query(info)
	}
	return nil
}

// begin reads SET @@SESSION.GTID_NEXT= 'uuid:tag:5'.
func (sc *scanner) begin(info string) error {
	_, rest, ok := strings.Cut(info, "'")
	text, _, _ := strings.Cut(rest, "'")
	if !ok {
		return errors.New("SHOW BINLOG EVENTS shows a GTID in an unknown form")
	}
	set, err := parseMySQLSet(text)
	if err != nil {
		return err
	}
	sc.open, sc.explicit = set, false
	return nil
}

func (sc *scanner) query(info string) {
	switch q := classifyQuery([]byte(withoutUse(info))); {
	case q.kind == queryBegin || q.kind == queryXAStart:
		sc.explicit = true
	case !sc.explicit || q.kind == queryCommit || q.kind == queryRollback:
		sc.end()
	}
}

// withoutUse strips the "use `schema`; " that SHOW BINLOG EVENTS puts in front.
func withoutUse(info string) string {
	if strings.HasPrefix(info, "use `") {
		if _, rest, ok := strings.Cut(info, "`; "); ok {
			return rest
		}
	}
	return info
}

func (sc *scanner) end() {
	if sc.open != nil {
		sc.set.merge(sc.open)
	}
	sc.open = nil
}

// merge adds every transaction of o.
func (s *mysqlSet) merge(o *mysqlSet) {
	for src, list := range o.sources {
		for _, v := range list {
			s.addInterval(src, v)
		}
	}
}

func quote(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
}
