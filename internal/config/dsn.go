package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// DSN is one connection string in the form of go-sql-driver/mysql. Its String
// hides the password. The zero DSN names nothing.
type DSN struct{ parsed *mysql.Config }

// IsZero reports whether the DSN names nothing.
func (d DSN) IsZero() bool { return d.parsed == nil }

// Schema returns the schema that the connection starts in; it may be empty.
func (d DSN) Schema() string {
	if d.IsZero() {
		return ""
	}
	return d.parsed.DBName
}

// Addr returns host:port, or the path of the socket.
func (d DSN) Addr() string {
	if d.IsZero() {
		return ""
	}
	return d.parsed.Addr
}

// String writes the DSN with its password hidden.
func (d DSN) String() string {
	if d.IsZero() {
		return ""
	}
	c := d.parsed.Clone()
	if c.Passwd != "" {
		c.Passwd = hidden
	}
	return c.FormatDSN()
}

// GoString hides the password from %#v.
func (d DSN) GoString() string { return d.String() }

// MarshalText hides the password from JSON.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// DSNs is a list of connection strings, separated by blanks.
type DSNs []DSN

const wantedDSN = "user:password@tcp(host:3306)/schema?parameters (a password must not hold a blank: blanks separate several)"

// UnmarshalText implements encoding.TextUnmarshaler. The errors of the driver
// are not passed on, because they quote pieces of the string that can belong to
// the password (TestSecretsNeverShow).
func (ds *DSNs) UnmarshalText(text []byte) error {
	*ds = nil
	for s := range strings.FieldsSeq(string(text)) {
		c, err := mysql.ParseDSN(s)
		if err != nil || !plausible(c) {
			return errors.New("not of the form " + wantedDSN + parameterHint(err))
		}
		*ds = append(*ds, DSN{c})
	}
	return nil
}

// plausible refuses what the driver takes but nobody means: a slash forgotten or
// in the wrong place makes the password a part of the network or the schema.
func plausible(c *mysql.Config) bool {
	return (c.Net == "tcp" || c.Net == "unix") && c.User != "" && !strings.ContainsAny(c.DBName, "@()/ :")
}

// parameterHint keeps what is safe to repeat of the driver's complaints: their
// fixed beginnings.
func parameterHint(err error) string {
	if err == nil {
		return ""
	}
	for _, known := range []string{
		"invalid DSN: missing the slash separating the database name",
		"invalid DSN: network address not terminated",
		"invalid DSN: did you forget to escape a param value?",
		"invalid bool value",
		"invalid value / unknown config name", // tls=
		"invalid value / unknown server pub key name",
		"time: ",
	} {
		if strings.HasPrefix(err.Error(), known) {
			return "; the driver says: " + strings.TrimSuffix(known, ": ")
		}
	}
	return ""
}

// String writes the list with its passwords hidden.
func (ds DSNs) String() string {
	texts := make([]string, len(ds))
	for i, d := range ds {
		texts[i] = d.String()
	}
	return strings.Join(texts, " ")
}

// SourceConfigs returns how to connect to the servers whose binlog may be read, in
// order of preference. A list that came from a file is read again, so that rotated
// secrets are picked up by the next connection.
func (c *Config) SourceConfigs() ([]*mysql.Config, error) {
	return c.configs("SOURCE_DSN", c.SourceDSN)
}

// StoreConfigs is [Config.SourceConfigs] for the servers where the outbox table may
// be written: StoreDSN, or SourceDSN where it is unset.
func (c *Config) StoreConfigs() ([]*mysql.Config, error) {
	if len(c.StoreDSN) == 0 {
		return c.SourceConfigs()
	}
	return c.configs("STORE_DSN", c.StoreDSN)
}

func (c *Config) configs(name string, list DSNs) ([]*mysql.Config, error) {
	if path, ok := c.files[name]; ok {
		text, err := readSecret(path)
		if err == nil {
			err = list.UnmarshalText([]byte(text))
		}
		if err != nil {
			return nil, fmt.Errorf("%s%s%s=%q, read again: %w", Prefix, name, fileSuffix, path, err)
		}
	}
	configs := make([]*mysql.Config, len(list))
	for i, d := range list {
		var err error
		if configs[i], err = c.MySQLConfig(d); err != nil {
			return nil, err
		}
	}
	return configs, nil
}
