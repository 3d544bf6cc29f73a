package config

import (
	"time"
)

// Prefix stands before every variable of rowferry.
const Prefix = "ROWFERRY_"

// Values of Config.Mode.
const (
	ModeAuto = "auto"
	ModePoll = "poll"
	ModeTail = "tail"
)

// Values of Config.Ledger; empty means status, or none where the table has no
// status column.
const (
	LedgerStatus = "status"
	LedgerDelete = "delete"
	LedgerNone   = "none"
)

// Values of Config.OnGap, Config.OnDead, Config.HA, Config.CatchUp, Config.Sink and
// Config.RocketMQNonOK that code decides by.
const (
	OnGapSweep    = "sweep"
	OnGapStop     = "stop"
	OnDeadSkip    = "skip"
	OnDeadBlock   = "block"
	HAAuto        = "auto"
	HATrue        = "true"
	HAFalse       = "false"
	CatchUpGentle = "gentle"
	CatchUpFast   = "fast"
	SinkRocketMQ  = "rocketmq"
	SinkStdout    = "stdout"
	NonOKRetry    = "retry"
	NonOKAccept   = "accept"
)

// Config is the whole configuration, with defaults applied. The tags carry what
// the reference page says: env the name without [Prefix], envDefault the
// default, shown how the default reads where it is computed, oneof, min and max
// what is accepted, group the heading that starts with the field, desc the
// meaning. A field whose type is [Secret], [DSNs] or [PrivateKey] may also come
// from the file named by NAME_FILE.
type Config struct {
	SourceDSN          DSNs          `env:"SOURCE_DSN" shown:"required" group:"MySQL and MariaDB" desc:"Where the binlog is read, as user:password@tcp(host:3306)/schema?tls=...; several are separated by blanks, the next being tried after 30 s."`
	StoreDSN           DSNs          `env:"STORE_DSN" shown:"the first SOURCE_DSN that is neither read-only nor a replica" desc:"Where the outbox table is written: the primary, when the source is a replica."`
	MySQLTLS           string        `env:"MYSQL_TLS" envDefault:"preferred" oneof:"off,preferred,verify-ca,verify-identity" desc:"TLS of every MySQL connection, the binlog one too. preferred encrypts where the server can and verifies nothing. A tls= in a DSN does the same for one connection; give one or the other."`
	MySQLTLSCA         string        `env:"MYSQL_TLS_CA" desc:"CA certificates, as the path of a PEM file or the PEM text; without it the system's are used."`
	MySQLTLSCert       string        `env:"MYSQL_TLS_CERT" desc:"Client certificate, as the path of a PEM file or the PEM text."`
	MySQLTLSKey        PrivateKey    `env:"MYSQL_TLS_KEY" desc:"Private key of the client certificate, as PEM text or the path of a PEM file."`
	MySQLTLSServerName string        `env:"MYSQL_TLS_SERVER_NAME" shown:"the host of the DSN" desc:"Name that the server certificate must carry, for verify-identity."`
	Name               string        `env:"NAME" envDefault:"rowferry" desc:"Identity of this relay: its checkpoint row, its lock, its RocketMQ group. Up to 64 letters, digits, underscores and hyphens."`
	ServerID           uint32        `env:"SERVER_ID" min:"1" max:"4294967295" shown:"from NAME and the host name" desc:"Replication client id; a collision is reported, not fought."`
	Mode               string        `env:"MODE" envDefault:"auto" oneof:"auto,poll,tail" desc:"auto: binlog and sweep. poll: sweep only, where no binlog may be read. tail: binlog only; a gap stops, and lanes wait instead of parking."`
	StartAt            StartAt       `env:"START_AT" envDefault:"now" desc:"Where to begin when there is no checkpoint: now, earliest, a GTID set, or FILE:POS."`
	SourceLagMax       time.Duration `env:"SOURCE_LAG_MAX" envDefault:"10m" min:"1s" desc:"A fence not back within this: the tail counts as down, and the sweep stops waiting for it."`
	OnGap              string        `env:"ON_GAP" envDefault:"sweep" oneof:"sweep,stop" shown:"sweep (stop with MODE=tail or LEDGER=none)" desc:"What to do when the saved position is no longer served: go on from the present and sweep the rest, or stop."`

	OutboxTables       Patterns      `env:"OUTBOX_TABLES" envDefault:"outbox" group:"Outbox table" desc:"Comma list of table or schema.table; * stands for any run of characters."`
	OutboxColumns      Columns       `env:"OUTBOX_COLUMNS" shown:"recognised" desc:"Columns that are not recognised by name, as role=column,role=column: payload=body,event_type=kind."`
	OutboxStatusValues StatusValues  `env:"OUTBOX_STATUS_VALUES" shown:"recognised" desc:"How the status column spells its states: pending=0,sent=1,failed=2[,processing=3]."`
	OutboxTimeZone     TimeZone      `env:"OUTBOX_TIME_ZONE" envDefault:"auto" desc:"Zone in which the application writes DATETIME columns: auto, a name such as Europe/Berlin, or an offset such as +02:00."`
	OutboxPollInterval time.Duration `env:"OUTBOX_POLL_INTERVAL" envDefault:"5m" min:"10ms" shown:"5m (1s with MODE=poll)" desc:"Timer of the sweep; other triggers sweep at once."`
	OutboxGrace        time.Duration `env:"OUTBOX_GRACE" envDefault:"30s" min:"0s" shown:"30s (0s with MODE=poll)" desc:"Age before a PENDING row may be swept."`
	OutboxBatchSize    int           `env:"OUTBOX_BATCH_SIZE" envDefault:"200" min:"1" max:"10000" desc:"Rows that a sweep takes at a time."`
	OutboxMaxAttempts  int           `env:"OUTBOX_MAX_ATTEMPTS" envDefault:"10" min:"1" max:"1000000" desc:"Attempts of a row before it is FAILED. Only an error that is not understood, of this row alone, counts as one."`
	OutboxLease        time.Duration `env:"OUTBOX_LEASE" envDefault:"1m" min:"1s" desc:"Age of a claim after which a PROCESSING row is taken back; longer than SEND_TIMEOUT."`
	OutboxRetention    time.Duration `env:"OUTBOX_RETENTION" envDefault:"0s" min:"0s" shown:"0 (keep)" desc:"Age after which SENT rows are deleted by the running relay, in small batches, never any other rows. Counted from sent_at, or updated_at, or created_at."`
	Ledger             string        `env:"LEDGER" oneof:"status,delete,none" shown:"status, or none where the table has no status column" desc:"How the outcome of a row is recorded: by its status, by deleting what was sent, or not at all."`
	OnDead             string        `env:"ON_DEAD" envDefault:"skip" oneof:"skip,block" desc:"After a dead letter, later events of its key go on (skip) or wait until it is requeued or discarded (block)."`
	MarkRowImage       string        `env:"MARK_ROW_IMAGE" envDefault:"auto" oneof:"auto,minimal,full" desc:"binlog_row_image of the sessions that mark rows. auto: minimal where the rights allow it."`

	RouteTopic    string        `env:"ROUTE_TOPIC" shown:"the column topic, else {aggregate_type}, else outbox" group:"Routing" desc:"Template of the topic, over {table} {schema} {aggregate_type} {event_type} {header:NAME}."`
	RouteTag      string        `env:"ROUTE_TAG" envDefault:"{event_type}" desc:"Template of the tag, over the same names."`
	RouteRules    List          `env:"ROUTE_RULES" shown:"none" desc:"Comma list of PATTERN=TOPIC[:TAG] on the event type, the first match wins; PATTERN=- drops the event (counted, marked SENT)."`
	RouteKey      string        `env:"ROUTE_KEY" envDefault:"{aggregate_id}" desc:"Template of the ordering key, over the same names, {aggregate_id} and {id}: events of one key stay in order."`
	UIDPrefix     string        `env:"UID_PREFIX" shown:"none" desc:"Put before every outbox_uid, to tell shards apart."`
	LaneParkAfter time.Duration `env:"LANE_PARK_AFTER" envDefault:"30s" min:"1s" desc:"Events that cannot be sent for this long (a tenth of it while they fill a quarter of what may be in flight), because their topic is missing or refused, or while others can be sent, are left PENDING and swept later, in order. With LEDGER=none or MODE=tail they wait."`
	SendRateMax   int           `env:"SEND_RATE_MAX" envDefault:"0" min:"0" max:"10000000" shown:"0 (no limit)" desc:"Events a second that are sent, of both paths together. While a relay that is told to end sends what it holds, there is no limit."`
	CatchUp       string        `env:"CATCH_UP" envDefault:"gentle" oneof:"gentle,fast" desc:"How a backlog is marked. gentle: while others insert rows on the same server, with rests between small transactions, so that applications hardly feel it, but always faster than the backlog grows. fast: at full speed. No difference with LEDGER=none."`

	Sink                string        `env:"SINK" envDefault:"rocketmq" oneof:"rocketmq,stdout" group:"Publishing" desc:"Where events go; stdout prints one JSON line each."`
	RocketMQNameServers Addresses     `env:"ROCKETMQ_NAMESRV" envDefault:"127.0.0.1:9876" desc:"Comma list of name servers as host:port; host names are allowed."`
	RocketMQGroup       string        `env:"ROCKETMQ_GROUP" shown:"NAME" desc:"Producer group. Up to 120 letters, digits, underscores, hyphens and percent signs."`
	RocketMQAccessKey   Secret        `env:"ROCKETMQ_ACCESS_KEY" shown:"none" desc:"Access key for a broker with ACL."`
	RocketMQSecretKey   Secret        `env:"ROCKETMQ_SECRET_KEY" shown:"none" desc:"Secret key for a broker with ACL."`
	RocketMQTLS         bool          `env:"ROCKETMQ_TLS" envDefault:"false" desc:"Encrypts the connections to RocketMQ. The client cannot verify who the broker is."`
	RocketMQCreate      bool          `env:"ROCKETMQ_CREATE_TOPICS" envDefault:"false" desc:"Creates a missing topic, for demos and tests. Otherwise a missing topic is a configuration error that names it."`
	RocketMQTopicQueues int           `env:"ROCKETMQ_TOPIC_QUEUES" envDefault:"8" min:"1" max:"1024" desc:"Queues of a topic that is created."`
	RocketMQNonOK       string        `env:"ROCKETMQ_NON_OK" envDefault:"retry" oneof:"retry,accept" desc:"What an answer that says stored but not safe (flush or replica timeout) means."`
	SendTimeout         time.Duration `env:"SEND_TIMEOUT" envDefault:"8s" min:"10ms" desc:"Limit of one send."`
	SendBatchMax        int           `env:"SEND_BATCH_MAX" envDefault:"256" min:"1" max:"100000" desc:"Events in one batch."`
	SendBatchBytesMax   Bytes         `env:"SEND_BATCH_BYTES_MAX" envDefault:"1MiB" min:"1KiB" desc:"Bytes in one batch; a larger event goes alone."`
	MessageBytesMax     Bytes         `env:"MESSAGE_BYTES_MAX" envDefault:"4MiB" min:"1KiB" desc:"Larger rows are refused before sending."`
	InflightMax         int           `env:"INFLIGHT_MAX" envDefault:"20000" min:"1" max:"100000000" desc:"Events read but not finished; reading waits at the limit."`
	InflightBytesMax    Bytes         `env:"INFLIGHT_BYTES_MAX" envDefault:"64MiB" min:"64KiB" desc:"Bytes read but not finished; one larger event is admitted alone."`

	CheckpointStore    CheckpointStore `env:"CHECKPOINT_STORE" envDefault:"mysql" group:"Progress and operation" desc:"Where the position is kept: mysql (table rowferry_checkpoint in the store), file:PATH, or memory."`
	CheckpointInterval time.Duration   `env:"CHECKPOINT_INTERVAL" envDefault:"1s" min:"10ms" desc:"Time between two saves of the position."`
	HA                 string          `env:"HA" envDefault:"auto" oneof:"auto,true,false" desc:"Leader lock. auto: on with the mysql checkpoint store; off with file and memory, and in MODE=poll with claim columns."`
	HTTPAddr           string          `env:"HTTP_ADDR" envDefault:"127.0.0.1:8390" shown:"127.0.0.1:8390 (the image: 0.0.0.0:8390)" desc:"Address of health, metrics and API, as host:port."`
	HTTPToken          Secret          `env:"HTTP_TOKEN" shown:"none" desc:"Bearer token; without one, actions are refused on anything but loopback."`
	DrainTimeout       time.Duration   `env:"DRAIN_TIMEOUT" envDefault:"15s" min:"0s" desc:"Time for what is in flight to finish after SIGTERM or SIGINT."`
	LogLevel           string          `env:"LOG_LEVEL" envDefault:"info" oneof:"trace,debug,info,warn,error" desc:"Least severe level that is logged."`
	LogFormat          string          `env:"LOG_FORMAT" envDefault:"auto" oneof:"auto,json,console" desc:"auto: JSON unless on a terminal."`

	origins map[string]Origin // by name without prefix; missing: default
	files   map[string]string // paths of the secrets that came from files, by name without prefix
}

// Origin says where a value came from.
type Origin string

// The origins.
const (
	FromDefault     Origin = "default"
	FromEnvironment Origin = "environment"
	FromFile        Origin = "file"
)

// Origin returns where the value of a variable came from; name is without the
// prefix.
func (c *Config) Origin(name string) Origin {
	if o, ok := c.origins[name]; ok {
		return o
	}
	return FromDefault
}

// given reports whether the operator chose the value.
func (c *Config) given(name string) bool { return c.Origin(name) != FromDefault }

// Store returns where the outbox table is written, if it is a list the first of it:
// StoreDSN, or SourceDSN where it is unset.
func (c *Config) Store() DSN {
	if len(c.StoreDSN) > 0 {
		return c.StoreDSN[0]
	}
	return c.Source()
}

// Source returns where the binlog is read, if it is a list the first of it; the zero
// DSN where none is configured, which only [SourceOptional] allows.
func (c *Config) Source() DSN {
	if len(c.SourceDSN) == 0 {
		return DSN{}
	}
	return c.SourceDSN[0]
}
