package config

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/caarlos0/env/v10"
)

// Option changes what Load insists on.
type Option func(*loader)

// SourceOptional lets SOURCE_DSN be missing, for the commands that only talk to
// a running relay.
func SourceOptional() Option { return func(l *loader) { l.sourceOptional = true } }

// Load reads environ, in the form of os.Environ, and checks it. Its error joins
// every mistake, one line each, each naming the variable, the value unless it is
// a secret, and what is accepted. An empty value means the default, as compose
// files pass it on.
func Load(environ []string, options ...Option) (*Config, error) {
	l := &loader{values: map[string]string{}, origins: map[string]Origin{}, files: map[string]string{}, failed: map[string]bool{}}
	for _, o := range options {
		o(l)
	}
	l.collect(environ)
	l.readSecretFiles()

	c := &Config{origins: l.origins, files: l.files}
	l.parse(c)
	c.derive()
	for _, err := range c.check(l.sourceOptional) {
		if !l.mentionsFailed(err) {
			l.mistakes = append(l.mistakes, err)
		}
	}
	if len(l.mistakes) > 0 {
		return nil, errors.Join(l.mistakes...)
	}
	return c, nil
}

// loader gathers values and mistakes. Keys are names without the prefix.
type loader struct {
	values         map[string]string
	origins        map[string]Origin
	files          map[string]string // paths
	failed         map[string]bool   // already reported
	mistakes       []error
	sourceOptional bool
}

// fail reports a mistake about one variable.
func (l *loader) fail(name string, err error) {
	l.failed[name] = true
	l.mistakes = append(l.mistakes, err)
}

var variable = regexp.MustCompile(Prefix + `([A-Z_]+)`)

// mentionsFailed reports whether a mistake found by holding values against each
// other involves one that is wrong by itself, and so is a guess.
func (l *loader) mentionsFailed(err error) bool {
	for _, m := range variable.FindAllStringSubmatch(err.Error(), -1) {
		if l.failed[m[1]] {
			return true
		}
	}
	return false
}

// collect keeps our variables and reports those that do not exist.
func (l *loader) collect(environ []string) {
	for _, pair := range environ {
		full, value, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(full, Prefix)
		if !ours {
			continue
		}
		if !known(name) {
			l.mistakes = append(l.mistakes, unknown(name))
			continue
		}
		if value != "" {
			l.values[name] = value
			l.origins[name] = FromEnvironment
		}
	}
}

// readSecretFiles puts what NAME_FILE names in the place of NAME.
func (l *loader) readSecretFiles() {
	for _, s := range settings {
		path, ok := l.values[s.name+fileSuffix]
		if !ok || !s.secret {
			continue
		}
		delete(l.values, s.name+fileSuffix)
		delete(l.origins, s.name+fileSuffix)
		if _, both := l.values[s.name]; both {
			l.fail(s.name, fmt.Errorf("%s%s and %s%s%s are both set: give one of them", Prefix, s.name, Prefix, s.name, fileSuffix))
			continue
		}
		text, err := readSecret(path)
		if err != nil {
			l.fail(s.name, fmt.Errorf("%s%s%s=%q: %w", Prefix, s.name, fileSuffix, path, err))
			continue
		}
		l.values[s.name] = text
		l.origins[s.name] = FromFile
		l.files[s.name] = path
	}
}

// readSecret reads a file without the line end that editors leave behind.
func readSecret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", errors.Unwrap(err) // the path is already in the message
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" {
		return "", errors.New("the file is empty")
	}
	return text, nil
}

// parse fills the struct and checks each value by itself.
func (l *loader) parse(c *Config) {
	environment := make(map[string]string, len(l.values))
	for name, value := range l.values {
		environment[Prefix+name] = value
	}
	err := env.ParseWithOptions(c, env.Options{Environment: environment, Prefix: Prefix})
	for _, pe := range parseErrors(err) {
		s := byField[pe.Name]
		l.fail(s.name, s.mistake(l.values[s.name], s.wanted(pe.Err)))
	}
	for _, s := range settings {
		if value, given := l.values[s.name]; given && !l.failed[s.name] {
			if wrong := s.outside(c); wrong != "" {
				l.fail(s.name, s.mistake(value, wrong))
			}
		}
	}
}

// parseErrors takes apart what the parser returns. Anything but values that do
// not parse means that the struct is wrong.
func parseErrors(err error) []env.ParseError {
	if err == nil {
		return nil
	}
	var all env.AggregateError
	if !errors.As(err, &all) {
		panic(fmt.Sprintf("config: %v", err))
	}
	found := make([]env.ParseError, len(all.Errors))
	for i, e := range all.Errors {
		if !errors.As(e, &found[i]) {
			panic(fmt.Sprintf("config: %v", e))
		}
	}
	return found
}

// derive fills the defaults that depend on other values.
func (c *Config) derive() {
	if c.Mode == ModePoll {
		setDefault(c, "OUTBOX_POLL_INTERVAL", &c.OutboxPollInterval, time.Second)
		setDefault(c, "OUTBOX_GRACE", &c.OutboxGrace, 0)
	}
	if c.Mode == ModeTail || c.Ledger == LedgerNone {
		setDefault(c, "ON_GAP", &c.OnGap, OnGapStop)
	}
	setDefault(c, "ROCKETMQ_GROUP", &c.RocketMQGroup, c.Name)
	if !c.given("SERVER_ID") {
		c.ServerID = serverID(c.Name)
	}
}

func setDefault[T any](c *Config, name string, field *T, value T) {
	if !c.given(name) {
		*field = value
	}
}

// serverID derives a replication client id that stays the same over restarts on
// one host and differs between hosts, since two clients with one id throw each
// other off the server. It keeps clear of the small numbers that people give to
// their servers.
func serverID(name string) uint32 {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	h := fnv.New32a()
	h.Write([]byte(name + "\x00" + host))
	return h.Sum32() | 1<<30
}
