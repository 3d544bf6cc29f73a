package binlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Resolve turns where to begin into the text of a position that the server can
// serve now. from is "now" (the present end), "earliest" (all that the server
// still has), a GTID set (what is already done), FILE:POS, or the text of a saved
// position. A position that the server can no longer serve gives ErrGap with the
// reason; any other error is worth another try, which may go to another server.
func (r *Reader) Resolve(ctx context.Context, from string) (string, error) {
	for {
		text, err := r.resolve(ctx, from)
		if err == nil || ctx.Err() != nil {
			return text, err
		}
		verdict, moved := r.cfg.Sources.failed(err, isFile(from))
		if !moved {
			return "", verdict
		}
		r.cfg.Logger.Warn().Str("reason", brief(err)).Msg("the next source is tried")
		if !errors.Is(err, ErrGap) {
			return "", err
		}
	}
}

// isFile reports whether from is a place in a file, which only one server has.
func isFile(from string) bool {
	if p, err := parsePosition(from); err == nil {
		return p.gtids == nil
	}
	from = strings.TrimSpace(from)
	set, err := parseMySQLSet(from)
	return from != "now" && from != "earliest" && !mariadbSetPattern.MatchString(from) && (err != nil || set.IsEmpty())
}

func (r *Reader) resolve(ctx context.Context, from string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	s, _, err := r.openServer(ctx)
	if err != nil {
		return "", err
	}
	defer s.db.Close() //nolint:errcheck // nothing is written through it
	var p *position
	if strings.TrimSpace(from) == "now" {
		p, err = r.resolveNow(ctx, s)
	} else {
		p, err = s.resolve(ctx, from)
	}
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

var mariadbSetPattern = regexp.MustCompile(`^\d+-\d+-\d+(\s*,\s*\d+-\d+-\d+)*$`)

func (s *server) resolve(ctx context.Context, from string) (*position, error) {
	from = strings.TrimSpace(from)
	if strings.HasPrefix(from, "{") {
		p, err := parsePosition(from)
		if err != nil {
			return nil, err
		}
		return s.adopt(ctx, p)
	}
	p, err := s.begin(ctx, from)
	if err == nil && p.file != "" {
		p.fileHead, err = s.head(ctx, p.file)
	}
	return p, err
}

// begin is a place that was never read up to.
func (s *server) begin(ctx context.Context, from string) (*position, error) {
	switch from {
	case "now":
		return s.now(ctx)
	case "earliest":
		return s.earliest(ctx)
	}
	p, err := s.parseFrom(from)
	if err != nil {
		return nil, err
	}
	return s.adopt(ctx, p)
}

// parseFrom reads what an operator types: a GTID set or FILE:POS.
func (s *server) parseFrom(from string) (*position, error) {
	p := &position{flavor: s.flavor, server: s.id}
	if mariadbSetPattern.MatchString(from) {
		if s.flavor != flavorMariaDB {
			return nil, fmt.Errorf("%.80q is a GTID position of MariaDB, but the source is MySQL", from)
		}
		var err error
		p.gtids, err = parseMariaDBSet(from)
		return p, err
	}
	if set, err := parseMySQLSet(from); err == nil && !set.IsEmpty() {
		if !s.gtid || s.flavor != flavorMySQL {
			return nil, fmt.Errorf("%.80q is a GTID set of MySQL, but the source does not use them", from)
		}
		p.gtids = set
		return p, nil
	}
	file, offset, ok := cutLast(from, ":")
	n, err := strconv.ParseUint(offset, 10, 32)
	if !ok || file == "" || err != nil {
		return nil, fmt.Errorf("%.80q is none of now, earliest, a GTID set, FILE:POS or a saved position", from)
	}
	p.file, p.offset = file, max(n, 4)
	return p, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// now is the present end of the log.
func (s *server) now(ctx context.Context) (*position, error) {
	e, err := s.end(ctx)
	if err != nil {
		return nil, err
	}
	p := &position{flavor: s.flavor, file: e.file, offset: e.offset, server: s.id}
	if !s.gtid {
		return p, nil
	}
	text := e.gtids
	if s.flavor == flavorMariaDB {
		// Not gtid_current_pos: that may name transactions which are not in this
		// server's log.
		if text, err = s.text(ctx, "SELECT @@global.gtid_binlog_pos"); err != nil {
			return nil, fmt.Errorf("asking for gtid_binlog_pos: %w", err)
		}
	}
	p.gtids, err = parseSet(s.flavor, text)
	return p, err
}

// earliest is the start of the oldest file.
func (s *server) earliest(ctx context.Context) (*position, error) {
	names, _, err := s.logs(ctx)
	if err != nil {
		return nil, err
	}
	p := &position{flavor: s.flavor, file: names[0], offset: 4, server: s.id}
	if !s.gtid {
		return p, nil
	}
	p.gtids, err = s.oldest(ctx, names[0])
	return p, err
}

// oldest is the set of transactions that the server no longer has.
func (s *server) oldest(ctx context.Context, firstFile string) (gtidSet, error) {
	query, args := "SELECT @@global.gtid_purged", []any(nil)
	if s.flavor == flavorMariaDB {
		query, args = "SELECT BINLOG_GTID_POS(?, 4)", []any{firstFile}
	}
	text, err := s.text(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("asking what has been purged: %w", err)
	}
	return parseSet(s.flavor, text)
}

// adopt checks that the server can serve p and returns it in the server's mode:
// a file position becomes a GTID set where the server has them, and a GTID set a
// file position where it no longer does.
func (s *server) adopt(ctx context.Context, p *position) (*position, error) {
	if err := s.sameFlavor(p); err != nil {
		return nil, err
	}
	if p.gtids != nil && !s.gtid {
		q := *p
		q.gtids = nil
		if err := q.check(); err != nil {
			return nil, gap("the server has gtid_mode off, and %v", err)
		}
		p = &q
	}
	if err := s.serves(ctx, p); err != nil {
		return nil, err
	}
	if p.gtids == nil && s.gtid {
		return s.upgrade(ctx, p)
	}
	return p, nil
}

// continues checks that a stream in p's own mode can be started. Unlike adopt it
// leaves the mode alone: what was read and is not yet done is counted in it.
func (s *server) continues(ctx context.Context, p *position) error {
	if err := s.sameFlavor(p); err != nil {
		return err
	}
	if p.gtids != nil && !s.gtid {
		return gap("gtid_mode was switched off")
	}
	return s.serves(ctx, p)
}

func (s *server) sameFlavor(p *position) error {
	if p.flavor != s.flavor {
		return gap("the position was saved from %s, the source is now %s", p.flavor, s.flavor)
	}
	return nil
}

// serves returns ErrGap if the server cannot go on behind p.
func (s *server) serves(ctx context.Context, p *position) error {
	intact, err := s.servesFile(ctx, p)
	if err != nil {
		return err
	}
	switch set := p.gtids.(type) {
	case *mysqlSet:
		return s.servesMySQL(ctx, set, intact)
	case *mariadbSet:
		return s.servesMariaDB(ctx, set, intact)
	}
	return nil
}

// servesFile compares file and offset with the server's list, and the file with the
// one that was read. In file mode they are the position; with a GTID set they only
// show that the log was reset, and only to the server they came from: GTIDs are given
// again after a reset, and the server would go on behind their namesakes. intact says
// that the server still has the very bytes up to p, whose head is then complete.
func (s *server) servesFile(ctx context.Context, p *position) (intact bool, err error) {
	if p.server != s.id {
		if p.gtids != nil {
			return false, nil
		}
		return false, gap("the position %s:%d is of server %q, the source is now server %q, whose file of that name is another", p.file, p.offset, p.server, s.id)
	}
	if p.file == "" {
		return false, nil
	}
	names, sizes, err := s.logs(ctx)
	if err != nil {
		return false, err
	}
	size, found := sizes[p.file]
	switch {
	case !found && p.gtids == nil:
		return false, gap("the server no longer has %s", p.file)
	case !found && laterFile(p.file, names[len(names)-1]):
		return false, gap("%s was read, and the server is only at %s: its log was reset, or a backup restored", p.file, names[len(names)-1])
	case found && size < p.offset && p.offset <= math.MaxUint32:
		return false, gap("%s has %d bytes on the server, but has been read up to %d: it was cut or reset", p.file, size, p.offset)
	case !found || p.fde == 0:
		return false, nil
	}
	head, err := s.head(ctx, p.file)
	if err == nil && p.differs(head) {
		err = reborn(p.file, p.fileHead, head)
	}
	if err != nil {
		return false, err
	}
	p.first = head.first // it may have been written since
	return true, nil
}

// laterFile reports whether a comes after b in the numbering of one log.
func laterFile(a, b string) bool {
	baseA, numberA, okA := cutLast(a, ".")
	baseB, numberB, okB := cutLast(b, ".")
	x, errA := strconv.ParseUint(numberA, 10, 64)
	y, errB := strconv.ParseUint(numberB, 10, 64)
	return okA && okB && errA == nil && errB == nil && baseA == baseB && x > y
}

// servesMySQL lets the server do the arithmetic: it knows every form of tag.
func (s *server) servesMySQL(ctx context.Context, set *mysqlSet, intact bool) error {
	text := set.String()
	missing, err := s.text(ctx, "SELECT GTID_SUBTRACT(@@global.gtid_purged, ?)", text)
	if err != nil {
		return fmt.Errorf("comparing GTID sets: %w", err)
	}
	if missing != "" {
		return gap("the server has purged transactions that were not read: %s", cut(missing))
	}
	ahead, err := s.text(ctx, "SELECT GTID_SUBTRACT(?, @@global.gtid_executed)", text)
	if err != nil {
		return fmt.Errorf("comparing GTID sets: %w", err)
	}
	return s.judgeAhead(ahead, intact)
}

// judgeAhead decides about transactions that were read and that the server lacks: a
// replica will have them by and by, and so may a server that nobody can write to; a
// primary has lost them.
//
// The binlog runs ahead of gtid_executed, with semi-synchronous replication by as
// long as the replica takes to answer. So the very server from which they were read
// has lost nothing as long as its file is the same and as long
// (test: TestSemiSyncDelayIsNoGap).
func (s *server) judgeAhead(ahead string, intact bool) error {
	switch {
	case ahead == "":
		return nil
	case s.replica != nil:
		return fmt.Errorf("the source is a %s, and does not yet have transactions already read: %s", s.replica, cut(ahead))
	case s.readOnly:
		return fmt.Errorf("the source is read-only, and lacks transactions already read: %s (once it can be written to, they count as lost)", cut(ahead))
	case intact:
		return fmt.Errorf("the source has written transactions to its binlog that it has not committed yet, as while it waits for a semi-synchronous replica: %s", cut(ahead))
	}
	return gap("the server does not know transactions that were read: %s (its log was reset, a backup restored, or it was promoted without them)", cut(ahead))
}

func (s *server) servesMariaDB(ctx context.Context, set *mariadbSet, intact bool) error {
	names, _, err := s.logs(ctx)
	if err != nil {
		return err
	}
	oldest, err := s.oldest(ctx, names[0])
	if err != nil {
		return err
	}
	if d, behind := set.lacks(oldest.(*mariadbSet)); behind {
		return gap("the server has purged transactions of domain %d that were not read (its log begins at %q)", d, oldest)
	}
	text, err := s.text(ctx, "SELECT @@global.gtid_binlog_pos")
	if err != nil {
		return fmt.Errorf("asking for gtid_binlog_pos: %w", err)
	}
	newest, err := parseMariaDBSet(text)
	if err != nil {
		return err
	}
	if d, behind := newest.lacks(set); behind {
		return s.judgeAhead(fmt.Sprintf("domain %d beyond %q", d, text), intact)
	}
	return nil
}

// upgrade finds the GTID set that belongs to a file position.
func (s *server) upgrade(ctx context.Context, p *position) (*position, error) {
	q := *p
	if s.flavor == flavorMariaDB {
		text, err := s.text(ctx, "SELECT BINLOG_GTID_POS(?, ?)", p.file, p.offset)
		if err != nil {
			return nil, fmt.Errorf("asking for the GTID position of %s:%d: %w", p.file, p.offset, err)
		}
		q.gtids, err = parseMariaDBSet(text)
		return &q, err
	}
	set, err := s.scan(ctx, p.file, p.offset)
	q.gtids = set
	return &q, err
}
