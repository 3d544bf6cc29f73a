package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zone names must mean the same on an image without zone files

	"github.com/rowferry/rowferry/pkg/outbox"
)

// hidden stands in print for a secret that is set.
const hidden = "***"

// Secret is text that is never printed: String hides it.
type Secret string

// String hides the secret; empty stays empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// List is a comma list of anything.
type List []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *List) UnmarshalText(text []byte) error {
	*l = splitList(string(text))
	return nil
}

// String writes the list as it is configured.
func (l List) String() string { return strings.Join(l, ",") }

// Patterns is a list of table or schema.table, * standing for any run of
// characters.
type Patterns []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Patterns) UnmarshalText(text []byte) error {
	*p = nil
	for _, s := range splitList(string(text)) {
		schema, name, dotted := strings.Cut(s, ".")
		if schema == "" || dotted && name == "" || strings.ContainsAny(name, ".") || strings.ContainsAny(s, " `'\"") {
			return fmt.Errorf("%q is not of the form table or schema.table, without quotes", s)
		}
		*p = append(*p, s)
	}
	if len(*p) == 0 {
		return errors.New("no table is named")
	}
	return nil
}

// String writes the list as it is configured.
func (p Patterns) String() string { return strings.Join(p, ",") }

// needSchema reports whether some pattern leaves the schema to the connection.
func (p Patterns) needSchema() bool {
	return slices.ContainsFunc(p, func(s string) bool { return !strings.Contains(s, ".") })
}

// Columns are the overrides of column roles.
type Columns map[outbox.Role]string

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Columns) UnmarshalText(text []byte) error {
	m, err := outbox.ParseColumns(string(text))
	*c = m
	return err
}

// String writes the overrides in the order of the roles.
func (c Columns) String() string {
	var pairs []string
	for _, r := range slices.Sorted(maps.Keys(c)) {
		pairs = append(pairs, r.String()+"="+c[r])
	}
	return strings.Join(pairs, ",")
}

// StatusValues say how a table spells its states.
type StatusValues map[outbox.Status]string

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *StatusValues) UnmarshalText(text []byte) error {
	m, err := outbox.ParseStatusValues(string(text))
	*v = m
	return err
}

// String writes the values in the order of the states.
func (v StatusValues) String() string {
	var pairs []string
	for _, s := range slices.Sorted(maps.Keys(v)) {
		pairs = append(pairs, strings.ToLower(s.String())+"="+v[s])
	}
	return strings.Join(pairs, ",")
}

// TimeZone is a zone or, where Auto is true, the order to find it out.
type TimeZone struct{ location *time.Location }

// Auto reports whether the zone is to be found out from the table.
func (z TimeZone) Auto() bool { return z.location == nil }

// Location returns the zone; nil where Auto is true.
func (z TimeZone) Location() *time.Location { return z.location }

// UnmarshalText implements encoding.TextUnmarshaler.
func (z *TimeZone) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "auto" {
		*z = TimeZone{}
		return nil
	}
	if t, err := time.Parse("-07:00", s); err == nil {
		_, seconds := t.Zone()
		*z = TimeZone{time.FixedZone(s, seconds)}
		return nil
	}
	// LoadLocation takes "" and "Local" as well: they would depend on the host.
	location, err := time.LoadLocation(s)
	if err != nil || s == "Local" {
		return errors.New("wanted auto, a zone name such as Europe/Berlin, or an offset such as +02:00")
	}
	*z = TimeZone{location}
	return nil
}

// String writes the zone as it is configured.
func (z TimeZone) String() string {
	if z.Auto() {
		return "auto"
	}
	return z.location.String()
}

// StartAt is where to begin without a checkpoint: now, earliest, a GTID set or
// FILE:POS. Only its form is checked; whether the server has the place is for
// the reader to say.
type StartAt string

var startForms = regexp.MustCompile(`^(now|earliest|` +
	`[^\s:,/]+\.\d+:\d+|` + // mysql-bin.000003:157
	`\d+-\d+-\d+(,\d+-\d+-\d+)*|` + // MariaDB: 0-1-4711
	uuidSet + `(,\s*` + uuidSet + `)*)$`)

// uuidSet is one source of a MySQL GTID set, tags included.
const uuidSet = `[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(:[a-z_][a-z0-9_]{0,31}|:\d+(-\d+)?)+`

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *StartAt) UnmarshalText(text []byte) error {
	if !startForms.Match(text) {
		return errors.New("wanted now, earliest, a GTID set or FILE:POS such as mysql-bin.000003:157")
	}
	*s = StartAt(text)
	return nil
}

// Addresses is a list of host:port.
type Addresses []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Addresses) UnmarshalText(text []byte) error {
	*a = nil
	for _, s := range splitList(string(text)) {
		if err := checkAddress(s, 1); err != nil {
			return err
		}
		*a = append(*a, s)
	}
	if len(*a) == 0 {
		return errors.New("no address is named")
	}
	return nil
}

// String writes the list as it is configured.
func (a Addresses) String() string { return strings.Join(a, ",") }

// checkAddress checks host:port; a host is required where a port of 0 is not
// allowed, because there is nothing to connect to without one.
func checkAddress(s string, portMin uint64) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /@") || portMin > 0 && host == "" {
		return fmt.Errorf("%q is not of the form host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n < portMin {
		return fmt.Errorf("%q has no port from %d to 65535", s, portMin)
	}
	return nil
}

// Kinds of checkpoint store.
const (
	StoreMySQL  = "mysql"
	StoreFile   = "file"
	StoreMemory = "memory"
)

// CheckpointStore says where positions are kept.
type CheckpointStore struct {
	Kind string // StoreMySQL, StoreFile or StoreMemory
	Path string // of the file; empty for the other kinds
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *CheckpointStore) UnmarshalText(text []byte) error {
	kind, path, _ := strings.Cut(string(text), ":")
	switch {
	case kind == StoreFile && path != "":
	case (kind == StoreMySQL || kind == StoreMemory) && kind == string(text):
	default:
		return errors.New("wanted mysql, file:PATH or memory")
	}
	*s = CheckpointStore{Kind: kind, Path: path}
	return nil
}

// String writes the store as it is configured.
func (s CheckpointStore) String() string {
	if s.Kind == StoreFile {
		return s.Kind + ":" + s.Path
	}
	return s.Kind
}

// splitList splits a comma list, dropping blanks and empty items.
func splitList(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
