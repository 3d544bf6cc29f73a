package outbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Role is the part a column plays in an outbox table.
type Role uint8

// The roles. Only RoleID and RolePayload are required of every table.
const (
	RoleID Role = iota
	RoleAggregateType
	RoleAggregateID
	RoleEventType
	RolePayload
	RoleStatus
	RoleCreatedAt
	RoleSentAt
	RoleUpdatedAt
	RoleAttempts
	RoleHeaders
	RoleTopic
	RoleTag
	RoleLastError
	RoleClaimToken
	RoleClaimedAt
	RoleNextAttemptAt
	NumRoles // not a role
)

// roleNames lists, per role, the name used in OUTBOX_COLUMNS and then the column
// names by which the role is recognised, the first being the name itself.
var roleNames = [NumRoles][]string{
	RoleID:            {"id", "event_id"},
	RoleAggregateType: {"aggregate_type", "aggregatetype"},
	RoleAggregateID:   {"aggregate_id", "aggregateid"},
	RoleEventType:     {"event_type", "type"},
	RolePayload:       {"payload"},
	RoleStatus:        {"status"},
	RoleCreatedAt:     {"created_at"},
	RoleSentAt:        {"sent_at"},
	RoleUpdatedAt:     {"updated_at"},
	RoleAttempts:      {"attempts", "retry_count"},
	RoleHeaders:       {"headers"},
	RoleTopic:         {"topic"},
	RoleTag:           {"tag"},
	RoleLastError:     {"last_error"},
	RoleClaimToken:    {"claim_token"},
	RoleClaimedAt:     {"claimed_at"},
	RoleNextAttemptAt: {"next_attempt_at"},
}

// String returns the name of the role in OUTBOX_COLUMNS.
func (r Role) String() string { return roleNames[r][0] }

// ParseRole is the inverse of String.
func ParseRole(s string) (Role, error) {
	for r := range roleNames {
		if roleNames[r][0] == s {
			return Role(r), nil
		}
	}
	return 0, fmt.Errorf("no role is called %q; the roles are %s", s, strings.Join(allRoles(), ", "))
}

func allRoles() []string {
	names := make([]string, NumRoles)
	for r := range roleNames {
		names[r] = roleNames[r][0]
	}
	return names
}

// Column is one column of a table as information_schema describes it.
type Column struct {
	Name      string
	Ordinal   int    // from 0, the place in a full row image
	DataType  string // lower case, without length: varchar, bigint, json
	FullType  string // with length and attributes: bigint unsigned, enum('a','b')
	Nullable  bool
	Charset   string // empty for anything that is not text
	LengthMax int64  // characters, or bytes for binary strings; 0 for other types
}

// Unsigned reports whether a numeric column is UNSIGNED.
func (c Column) Unsigned() bool { return strings.Contains(c.FullType, "unsigned") }

// Binary reports whether the column holds bytes rather than text.
func (c Column) Binary() bool {
	return c.DataType == "binary" || c.DataType == "varbinary" || strings.HasSuffix(c.DataType, "blob")
}

// numeric reports whether the column holds a number.
func (c Column) numeric() bool {
	return strings.HasSuffix(c.DataType, "int") || c.DataType == "decimal" || c.DataType == "bit"
}

// Layout says which column of a table plays which role and how the table spells
// its states. It is immutable.
type Layout struct {
	Table    Table
	Columns  []Column // all of them, in order
	KeyIndex string   // the unique index on the id column, for FORCE INDEX
	Zone     *time.Location

	roles  [NumRoles]int // index into Columns, -1 where the table lacks the role
	status map[Status]string
}

// Options override what Recognise finds by itself.
type Options struct {
	Columns map[Role]string   // OUTBOX_COLUMNS
	Status  map[Status]string // OUTBOX_STATUS_VALUES; nil: recognised
	Zone    *time.Location    // zone in which the application writes DATETIME; nil: UTC
}

// Recognise builds the layout of a table from its columns. key maps the name of
// each column that is a unique key by itself to the name of that index. Its
// errors name what is missing and how to say where it is.
func Recognise(table Table, columns []Column, key map[string]string, o Options) (*Layout, error) {
	l := &Layout{Table: table, Columns: columns, Zone: o.Zone}
	if l.Zone == nil {
		l.Zone = time.UTC
	}
	if err := l.assignRoles(o.Columns); err != nil {
		return nil, fmt.Errorf("table %s: %w", table, err)
	}
	id := columns[l.roles[RoleID]]
	if l.KeyIndex = key[id.Name]; l.KeyIndex == "" {
		return nil, fmt.Errorf("table %s: column %s is not a primary or unique key by itself, so rows cannot be marked by it; composite keys are not supported, unless they are primary and begin with it as AUTO_INCREMENT", table, id.Name)
	}
	switch id.DataType {
	case "float", "double", "timestamp", "year":
		return nil, fmt.Errorf("table %s: column %s is %s, whose text does not find the row again; the id must be of another type", table, id.Name, id.FullType)
	}
	l.status = o.Status
	if l.status == nil {
		l.status = l.guessStatus()
	}
	return l, nil
}

func (l *Layout) assignRoles(overrides map[Role]string) error {
	for r := range l.roles {
		names := roleNames[r]
		name, overridden := overrides[Role(r)]
		if overridden {
			names = []string{name}
		}
		l.roles[r] = l.find(names)
		if overridden && l.roles[r] < 0 {
			return fmt.Errorf("ROWFERRY_OUTBOX_COLUMNS gives role %s to column %q, which the table does not have", Role(r), name)
		}
	}
	for _, r := range []Role{RoleID, RolePayload} {
		if l.roles[r] < 0 {
			return fmt.Errorf("no column plays the role %s (looked for %s; columns are %s); name it with ROWFERRY_OUTBOX_COLUMNS=%s=COLUMN",
				r, strings.Join(roleNames[r], ", "), strings.Join(l.columnNames(), ", "), r)
		}
	}
	return nil
}

func (l *Layout) find(names []string) int {
	for _, name := range names {
		i := slices.IndexFunc(l.Columns, func(c Column) bool { return strings.EqualFold(c.Name, name) })
		if i >= 0 {
			return i
		}
	}
	return -1
}

func (l *Layout) columnNames() []string {
	names := make([]string, len(l.Columns))
	for i, c := range l.Columns {
		names[i] = c.Name
	}
	return names
}

// guessStatus follows the two conventions of the literature: names in text
// columns, 0/1/2 (and 3 for PROCESSING, where rows can be claimed) in numeric ones.
func (l *Layout) guessStatus() map[Status]string {
	c, ok := l.Column(RoleStatus)
	if !ok {
		return nil
	}
	if !c.numeric() {
		return map[Status]string{Pending: "PENDING", Processing: "PROCESSING", Sent: "SENT", Failed: "FAILED"}
	}
	m := map[Status]string{Pending: "0", Sent: "1", Failed: "2"}
	if l.Has(RoleClaimToken) {
		m[Processing] = "3"
	}
	return m
}

// Column returns the column that plays the role, if the table has one.
func (l *Layout) Column(r Role) (Column, bool) {
	i := l.roles[r]
	if i < 0 {
		return Column{}, false
	}
	return l.Columns[i], true
}

// Has reports whether some column plays the role.
func (l *Layout) Has(r Role) bool { return l.roles[r] >= 0 }

// Claims reports whether rows of the table can be claimed: it has a token, a
// time of the claim and a word for PROCESSING.
func (l *Layout) Claims() bool {
	return l.Has(RoleClaimToken) && l.Has(RoleClaimedAt) && l.status[Processing] != ""
}

// StatusText returns how the table spells s, empty if it has no word for it.
func (l *Layout) StatusText(s Status) string { return l.status[s] }

// StatusOf returns the state that the text of a status column means. A table
// without a status column holds pending rows only.
func (l *Layout) StatusOf(text []byte) Status {
	if !l.Has(RoleStatus) {
		return Pending
	}
	for s, t := range l.status {
		if strings.EqualFold(t, string(text)) {
			return s
		}
	}
	return Other
}

// ParseStatusValues reads OUTBOX_STATUS_VALUES: pending=0,sent=1,failed=2[,processing=3].
func ParseStatusValues(s string) (map[Status]string, error) {
	m := map[Status]string{}
	for _, pair := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		i := slices.Index(statusNames[:], strings.ToUpper(name))
		if !ok || value == "" || i < int(Pending) || i > int(Failed) {
			return nil, fmt.Errorf("%q is not of the form pending=0,sent=1,failed=2[,processing=3]", pair)
		}
		m[Status(i)] = value
	}
	for _, s := range []Status{Pending, Sent, Failed} {
		if m[s] == "" {
			return nil, fmt.Errorf("no value for %s", strings.ToLower(s.String()))
		}
	}
	return m, nil
}

// ParseColumns reads OUTBOX_COLUMNS: role=column[,role=column].
func ParseColumns(s string) (map[Role]string, error) {
	m := map[Role]string{}
	for _, pair := range strings.Split(s, ",") {
		name, column, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || column == "" {
			return nil, fmt.Errorf("%q is not of the form role=column", pair)
		}
		r, err := ParseRole(name)
		if err != nil {
			return nil, err
		}
		m[r] = column
	}
	return m, nil
}

func parseInt(b []byte) int {
	n, err := strconv.Atoi(string(b))
	if err != nil {
		return 0 // NULL, or a counter column of a type that counts nothing
	}
	return n
}
