package config

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/rowferry/rowferry/pkg/router"
)

// check holds the values against each other and returns every mistake.
func (c *Config) check(sourceOptional bool) []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c.checkDatabases(sourceOptional, add)
	c.checkTLS(add)
	c.checkModes(add)
	c.checkSink(add)
	c.checkRouting(add)
	c.checkServing(add)
	return errs
}

// adder notes one mistake.
type adder func(format string, args ...any)

func (c *Config) checkDatabases(sourceOptional bool, add adder) {
	if c.Source().IsZero() {
		if !sourceOptional {
			add("%sSOURCE_DSN is required: %s", Prefix, wantedDSN)
		}
		return
	}
	for name, list := range map[string]DSNs{"SOURCE_DSN": c.SourceDSN, "STORE_DSN": c.StoreDSN} {
		if slices.ContainsFunc(list, func(d DSN) bool { return d.Schema() != list[0].Schema() }) {
			add("%s%s names different schemas: its servers hold the same data, so name one schema", Prefix, name)
		}
	}
	if c.Source().Schema() == "" && c.OutboxTables.needSchema() {
		add("%sSOURCE_DSN names no schema, but %sOUTBOX_TABLES=%q needs one: end the DSN with /SCHEMA or write SCHEMA.TABLE", Prefix, Prefix, c.OutboxTables)
	}
	if c.Store().Schema() == "" && c.CheckpointStore.Kind == StoreMySQL {
		name := "SOURCE_DSN"
		if len(c.StoreDSN) > 0 {
			name = "STORE_DSN"
		}
		add("%s%s names no schema, but %sCHECKPOINT_STORE=mysql keeps its tables there: end the DSN with /SCHEMA", Prefix, name, Prefix)
	}
}

func (c *Config) checkTLS(add adder) {
	verifies := c.MySQLTLS == TLSVerifyCA || c.MySQLTLS == TLSVerifyIdentity
	if c.MySQLTLSCA != "" && !verifies {
		add("%sMYSQL_TLS_CA has no effect with %sMYSQL_TLS=%s: wanted verify-ca or verify-identity", Prefix, Prefix, c.MySQLTLS)
	}
	if c.MySQLTLSServerName != "" && c.MySQLTLS != TLSVerifyIdentity {
		add("%sMYSQL_TLS_SERVER_NAME has no effect with %sMYSQL_TLS=%s: wanted verify-identity", Prefix, Prefix, c.MySQLTLS)
	}
	if (c.MySQLTLSCert == "") != (c.MySQLTLSKey.Secret == "") {
		add("%sMYSQL_TLS_CERT and %sMYSQL_TLS_KEY go together: give both or neither", Prefix, Prefix)
	}
	if c.MySQLTLSCert != "" && c.MySQLTLS == TLSOff {
		add("%sMYSQL_TLS_CERT has no effect with %sMYSQL_TLS=off", Prefix, Prefix)
	}
	for _, d := range slices.Concat(c.SourceDSN, c.StoreDSN) {
		if d.parsed.TLSConfig != "" && c.given("MYSQL_TLS") {
			add("%sMYSQL_TLS=%s, but the DSN of %s says tls=%s itself: give one of them", Prefix, c.MySQLTLS, d.Addr(), d.parsed.TLSConfig)
		}
	}
	if _, err := c.tls(c.Source()); err != nil { // of the others only the server name differs
		add("%w", err)
	}
}

func (c *Config) checkModes(add adder) {
	if c.HA == HATrue && c.CheckpointStore.Kind != StoreMySQL {
		add("%sHA=true needs %sCHECKPOINT_STORE=mysql: with %s two relays cannot see each other's progress", Prefix, Prefix, c.CheckpointStore)
	}
	if c.OnDead == OnDeadBlock && (c.Ledger == LedgerNone || c.Mode == ModeTail) {
		add("%sON_DEAD=block cannot be had with %sLEDGER=none or %sMODE=tail: events that wait must stay PENDING in the table and be swept later", Prefix, Prefix, Prefix)
	}
	if c.OnDead == OnDeadBlock && c.Mode == ModePoll && c.HA != HATrue {
		add("%sON_DEAD=block with %sMODE=poll needs %sHA=true: of several pollers each would have to know what the others have given up", Prefix, Prefix, Prefix)
	}
	if c.OnGap == OnGapSweep && c.Mode != ModePoll && (c.Mode == ModeTail || c.Ledger == LedgerNone) {
		add("%sON_GAP=sweep cannot be had with %sMODE=tail or %sLEDGER=none: nothing is swept there; wanted stop", Prefix, Prefix, Prefix)
	}
	if c.Mode == ModePoll && c.Ledger == LedgerNone {
		add("%sMODE=poll cannot be had with %sLEDGER=none: without a binlog only the table says what is still to be sent", Prefix, Prefix)
	}
	if c.OutboxRetention > 0 && (c.Ledger == LedgerNone || c.Ledger == LedgerDelete) {
		add("%sOUTBOX_RETENTION cannot be had with %sLEDGER=%s: there are no rows that are marked as sent", Prefix, Prefix, c.Ledger)
	}
	if c.OutboxLease <= c.SendTimeout {
		add("%sOUTBOX_LEASE=%s must be longer than %sSEND_TIMEOUT=%s, or a row is taken back while it is being sent", Prefix, c.OutboxLease, Prefix, c.SendTimeout)
	}
}

var (
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	groupForm = regexp.MustCompile(`^[%A-Za-z0-9_-]{1,120}$`)
)

func (c *Config) checkSink(add adder) {
	if !nameForm.MatchString(c.Name) {
		add("%sNAME=%q: wanted 1 to 64 letters, digits, underscores and hyphens", Prefix, c.Name)
	}
	if c.given("ROCKETMQ_GROUP") && !groupForm.MatchString(c.RocketMQGroup) {
		add("%sROCKETMQ_GROUP=%q: wanted 1 to 120 letters, digits, underscores, hyphens and percent signs", Prefix, c.RocketMQGroup)
	}
	if (c.RocketMQAccessKey == "") != (c.RocketMQSecretKey == "") {
		add("%sROCKETMQ_ACCESS_KEY and %sROCKETMQ_SECRET_KEY go together: give both or neither", Prefix, Prefix)
	}
}

// checkRouting has the router compile its part: it alone knows the grammar of
// templates and rules, and what the broker takes.
func (c *Config) checkRouting(add adder) {
	_, err := router.New(router.Config{Topic: c.RouteTopic, Tag: c.RouteTag, Key: c.RouteKey, Rules: c.RouteRules.String(), UIDPrefix: c.UIDPrefix})
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		add("%s", line)
	}
}

func (c *Config) checkServing(add adder) {
	if err := checkAddress(c.HTTPAddr, 0); err != nil {
		add("%sHTTP_ADDR: %w", Prefix, err)
	}
	// What cannot stand in an Authorization header can never be presented.
	if strings.ContainsFunc(c.HTTPToken.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		add("%sHTTP_TOKEN: wanted visible ASCII characters without blanks", Prefix)
	}
}

// HTTPLoopback reports whether HTTP_ADDR can be reached from this host only.
func (c *Config) HTTPLoopback() bool {
	host, _, err := net.SplitHostPort(c.HTTPAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
