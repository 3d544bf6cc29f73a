package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// ErrPartition says that a table is not partitioned in a way that can be looked after,
// or that a partition must stay as it is, and why.
var ErrPartition = errors.New("nothing was changed")

// Partition is one partition of a table that is partitioned by ranges.
type Partition struct {
	Name  string
	Below string                  // its rows are less than this; MAXVALUE: the last one takes the rest
	Rows  map[outbox.Status]int64 // by status, Other for what the layout does not know; 10,001 stands for more than 10,000
}

// unit is what the boundaries of a table's partitions are.
type unit uint8

const (
	ids     unit = iota + 1 // ids
	days                    // TO_DAYS(column)
	seconds                 // UNIX_TIMESTAMP(column)
	dates                   // the column itself
)

const maxValue = "MAXVALUE"

// partitioning is how a table is partitioned.
type partitioning struct {
	*table
	unit  unit
	parts []Partition // in the order of their ranges, without rows
}

// Partitions lists the partitions of a table, with their rows by status. It reads no
// more than an index. ErrPartition: the table has none, or not by ranges of its id or of
// a date.
func (l *Ledger) Partitions(ctx context.Context, table outbox.Table) ([]Partition, error) {
	p, err := l.partitioning(ctx, table)
	if err != nil {
		return nil, err
	}
	for i := range p.parts {
		part := &p.parts[i]
		if part.Rows, err = p.countRows(ctx, l.db, part.Name); err != nil {
			return nil, fmt.Errorf("counting the rows of partition %s of %s: %w", part.Name, table, err)
		}
	}
	return p.parts, nil
}

func (l *Ledger) partitioning(ctx context.Context, name outbox.Table) (*partitioning, error) {
	t, err := l.table(name)
	if err != nil {
		return nil, err
	}
	p := &partitioning{table: t}
	method, expression := "", ""
	query := `SELECT COALESCE(partition_name, ''), COALESCE(partition_method, ''), COALESCE(partition_expression, ''), COALESCE(partition_description, ''), subpartition_name IS NOT NULL
FROM information_schema.partitions WHERE table_schema = ? AND table_name = ? ORDER BY partition_ordinal_position`
	err = each(ctx, l.db, query, []any{name.Schema, name.Name}, func(rows *sql.Rows) error {
		var part Partition
		var sub bool
		if err := rows.Scan(&part.Name, &method, &expression, &part.Below, &sub); err != nil {
			return err
		}
		if sub {
			method += " with subpartitions"
		}
		if part.Name != "" {
			p.parts = append(p.parts, part)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the partitions of %s: %w", name, err)
	}
	if p.unit = t.unitOf(method, expression); p.unit == 0 {
		what := "is not partitioned"
		if method != "" {
			what = "is partitioned by " + method + " (" + expression + ")"
		}
		return nil, fmt.Errorf("%w: table %s %s; wanted RANGE or RANGE COLUMNS over its id, or over a date, itself or in TO_DAYS or UNIX_TIMESTAMP", ErrPartition, name, what)
	}
	return p, nil
}

// unitOf reads what the server says of a partitioning; 0: none of those that are known.
func (t *table) unitOf(method, expression string) unit {
	column := strings.ToLower(strings.NewReplacer("`", "", " ", "").Replace(expression))
	function, inner, _ := strings.Cut(strings.TrimSuffix(column, ")"), "(")
	id, _ := t.Column(outbox.RoleID)
	switch {
	case method != "RANGE" && method != "RANGE COLUMNS":
		return 0
	case strings.EqualFold(column, id.Name) && strings.HasSuffix(id.DataType, "int"):
		return ids
	case method == "RANGE COLUMNS" && t.isDate(column):
		return dates
	case method == "RANGE" && function == "to_days" && t.isDate(inner):
		return days
	case method == "RANGE" && function == "unix_timestamp" && t.isDate(inner):
		return seconds
	}
	return 0
}

func (t *table) isDate(column string) bool {
	for _, r := range []outbox.Role{outbox.RoleCreatedAt, outbox.RoleSentAt, outbox.RoleUpdatedAt} {
		if c, ok := t.Column(r); ok && strings.EqualFold(c.Name, column) {
			return t.temporal(r)
		}
	}
	return false
}

// countRows counts a partition by status, by the index on it, and no further than 10,001.
func (t *table) countRows(ctx context.Context, db querier, partition string) (map[outbox.Status]int64, error) {
	counts := map[outbox.Status]int64{}
	conditions := map[outbox.Status]clause{}
	if !t.Has(outbox.RoleStatus) {
		conditions[outbox.Other] = clause{text: "1 = 1"}
	} else {
		conditions[outbox.Other] = t.isOther()
		for _, s := range t.known() {
			conditions[s] = t.is(s)
		}
	}
	for s, where := range conditions {
		query := "SELECT COUNT(*) FROM (SELECT 1 FROM " + t.name + " PARTITION (" + quote(partition) + ") WHERE " + where.text + " LIMIT ?) x"
		err := each(ctx, db, query, append(where.args, countedMax), func(rows *sql.Rows) error {
			var n int64
			err := rows.Scan(&n)
			counts[s] = n
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// known are the states that the table has a word for.
func (t *table) known() []outbox.Status {
	var known []outbox.Status
	for s := outbox.Pending; s <= outbox.Failed; s++ {
		if t.StatusText(s) != "" {
			known = append(known, s)
		}
	}
	return known
}

// isOther is the condition that a row is in no state that the layout knows: in ranges,
// because <> would read all of an index.
func (t *table) isOther() clause {
	column, known := t.col(outbox.RoleStatus), t.known()
	c := clause{text: "(" + column + " IS NULL OR ("}
	for i, s := range known {
		if i > 0 {
			c.text += " AND "
		}
		c.add("("+column+" < ? OR "+column+" > ?)", t.state(s), t.state(s))
	}
	c.text += "))"
	return c
}

// EnsureOptions say which partitions are wanted.
type EnsureOptions struct {
	Ahead int   // this many behind the one that rows go to now
	Days  int   // that each takes, where they go by date
	Rows  int64 // that each takes, where they go by id
}

// PlanPartitions returns the names of the partitions that are missing, and the statement
// that makes them; none: all are there. ErrPartition: the last partition takes all the
// rest and holds rows already, which would have to be copied.
func (l *Ledger) PlanPartitions(ctx context.Context, table outbox.Table, o EnsureOptions) (names []string, statement string, err error) {
	p, err := l.partitioning(ctx, table)
	if err != nil {
		return nil, "", err
	}
	wanted, err := l.missing(ctx, p, o)
	if err != nil || len(wanted) == 0 {
		return nil, "", err
	}
	var parts []string
	for _, w := range wanted {
		names = append(names, w.name)
		parts = append(parts, "PARTITION "+quote(w.name)+" VALUES LESS THAN ("+w.below+")")
	}
	last := p.parts[len(p.parts)-1]
	if last.Below != maxValue {
		return names, "ALTER TABLE " + p.name + " ADD PARTITION (" + strings.Join(parts, ", ") + ")", nil
	}
	rows, err := p.countRows(ctx, l.db, last.Name)
	if err != nil {
		return nil, "", fmt.Errorf("counting the rows of partition %s of %s: %w", last.Name, table, err)
	}
	for _, n := range rows {
		if n > 0 {
			return nil, "", fmt.Errorf("%w: partition %s of %s, which takes the rest, holds rows already; splitting it copies them while everybody waits: do that by hand in a quiet hour", ErrPartition, last.Name, table)
		}
	}
	parts = append(parts, "PARTITION "+quote(last.Name)+" VALUES LESS THAN ("+maxValue+")")
	return names, "ALTER TABLE " + p.name + " REORGANIZE PARTITION " + quote(last.Name) + " INTO (" + strings.Join(parts, ", ") + ")", nil
}

// wantedPartition is one that is to be made.
type wantedPartition struct{ name, below string }

// missing returns what lies between the last boundary and the last one wanted.
func (l *Ledger) missing(ctx context.Context, p *partitioning, o EnsureOptions) ([]wantedPartition, error) {
	bounds := p.parts
	if n := len(bounds); bounds[n-1].Below == maxValue {
		bounds = bounds[:n-1]
	}
	if p.unit == ids {
		return l.missingIDs(ctx, p, bounds, o)
	}
	return l.missingDays(ctx, p, bounds, o)
}

func (l *Ledger) missingIDs(ctx context.Context, p *partitioning, bounds []Partition, o EnsureOptions) ([]wantedPartition, error) {
	var newest sql.NullInt64
	if err := l.db.QueryRowContext(ctx, "SELECT MAX("+p.id+") FROM "+p.name).Scan(&newest); err != nil {
		return nil, fmt.Errorf("asking %s for its newest id: %w", p.Table, err)
	}
	present, last, ahead := newest.Int64+1, int64(0), -1 // rows go to the partition of present now
	for _, b := range bounds {
		var err error
		if last, err = strconv.ParseInt(b.Below, 10, 64); err != nil {
			return nil, fmt.Errorf("partition %s of %s: its boundary %q is no number: %w", b.Name, p.Table, b.Below, err)
		}
		if last > present {
			ahead++
		}
	}
	var wanted []wantedPartition
	for ; ahead < o.Ahead; ahead++ {
		last = max(last, present) + o.Rows
		text := strconv.FormatInt(last, 10)
		wanted = append(wanted, wantedPartition{"p" + text, text})
	}
	return wanted, nil
}

func (l *Ledger) missingDays(ctx context.Context, p *partitioning, bounds []Partition, o EnsureOptions) ([]wantedPartition, error) {
	var today string
	if err := l.db.QueryRowContext(ctx, "SELECT DATE(NOW())").Scan(&today); err != nil {
		return nil, fmt.Errorf("asking the database for the day: %w", err)
	}
	present, err := time.ParseInLocation(time.DateOnly, today, p.Zone)
	if err != nil {
		return nil, fmt.Errorf("reading the day: %w", err)
	}
	var last time.Time
	ahead := -1
	for _, b := range bounds {
		if last, err = p.boundary(b.Below); err != nil {
			return nil, fmt.Errorf("partition %s of %s: %w", b.Name, p.Table, err)
		}
		if last.After(present) {
			ahead++
		}
	}
	var wanted []wantedPartition
	for ; ahead < o.Ahead; ahead++ {
		if last.Before(present) {
			last = present
		}
		last = last.AddDate(0, 0, o.Days)
		wanted = append(wanted, wantedPartition{"p" + last.AddDate(0, 0, -1).Format("20060102"), p.boundaryText(last)})
	}
	return wanted, nil
}

// dayZero is the day 0 of TO_DAYS, counted from 1970.
const dayZero = -719528

// boundary is the moment that the server's text of a boundary stands for.
func (p *partitioning) boundary(text string) (time.Time, error) {
	if p.unit == dates {
		text = strings.Trim(text, "'")
		at, err := time.ParseInLocation(time.DateTime, text, p.Zone)
		if err != nil {
			at, err = time.ParseInLocation(time.DateOnly, text, p.Zone)
		}
		if err != nil {
			return at, fmt.Errorf("its boundary %q is no date: %w", text, err)
		}
		return at, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("its boundary %q is no number: %w", text, err)
	}
	if p.unit == seconds {
		return time.Unix(n, 0).In(p.Zone), nil
	}
	return time.Date(1970, 1, 1+int(n)+dayZero, 0, 0, 0, 0, p.Zone), nil
}

// boundaryText is how a boundary stands in a statement.
func (p *partitioning) boundaryText(at time.Time) string {
	switch p.unit {
	case dates:
		return "'" + at.Format(time.DateTime) + "'"
	case seconds:
		return strconv.FormatInt(at.Unix(), 10)
	default:
		return "TO_DAYS('" + at.Format(time.DateOnly) + "')"
	}
}
