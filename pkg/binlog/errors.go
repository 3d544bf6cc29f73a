package binlog

import (
	"errors"
	"fmt"
	"io"
	"strings"

	gomysql "github.com/go-mysql-org/go-mysql/mysql"
	sqldriver "github.com/go-sql-driver/mysql"
)

// configError is something that only the operator can mend. It is retried, but
// slowly.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// fatalError ends Run: trying again would meet the same bytes.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// Error numbers of the server.
const (
	errIDTaken          = 4052
	errNoSchema         = 1049
	errNoTableRight     = 1142
	errNoColumnRight    = 1143
	errNoTable          = 1146
	errParse            = 1064
	errNoRight          = 1227
	errMasterFatal      = 1236 // the dump cannot be served; the text says why
	errMalformedGTIDSet = 1773
	errDuplicateDomain  = 1943
)

// isConfigNumber lists what no retry mends: rights, accounts, a replica id that
// is taken, a host name that is refused.
func isConfigNumber(n uint16) bool {
	switch n {
	case 1044, 1045, 1105, 1142, 1227, 1370, 1698, 3118, 3955, 4151:
		return true
	}
	return false
}

// gapTexts are the stable parts of the 1236 texts of MySQL 5.7 to 9.7 and of
// MariaDB that mean the position cannot be served. 1236 alone proves nothing.
var gapTexts = []string{
	"could not find first log file name",
	"position > file size",
	"impossible position",
	"bogus data in log event",
	"purged",
	"more gtids than the",
	"not in the master's binlog",
	"is missing the gtid", // strict mode of MariaDB
	"has probably diverged",
	"probably means that the slave has diverged",
	"could not find gtid state requested",
	"exceeded max_allowed_packet", // an event that the server can never send
}

// configTexts are the 1236 texts that tell of the server's settings.
var configTexts = []string{"misconfigured master", "misconfigured source", "binary log is not open"}

// gap wraps a reason for people in ErrGap.
func gap(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrGap, fmt.Sprintf(format, args...))
}

func isSQLError(err error, number uint16) bool { return errorNumber(err) == number }

// errorNumber finds the server's error number in an error of either library; 0
// if there is none.
func errorNumber(err error) uint16 {
	var se *sqldriver.MySQLError
	if errors.As(err, &se) {
		return se.Number
	}
	var me *gomysql.MyError
	if errors.As(err, &me) {
		return me.Code
	}
	return 0
}

// classify turns what ended a stream into what it means for the caller: ErrGap,
// a configError, a fatalError, or something transient.
func classify(err error) error {
	if errors.Is(err, ErrGap) {
		return err
	}
	switch n := errorNumber(err); {
	case n == errMasterFatal && containsAny(err.Error(), gapTexts):
		return gap("%s", brief(err))
	case n == errIDTaken || n == errMasterFatal && strings.Contains(err.Error(), "same server_"):
		return &configError{errTaken}
	case n == errMasterFatal && containsAny(err.Error(), configTexts):
		return &configError{errors.New(brief(err))}
	case n == errMalformedGTIDSet || n == errDuplicateDomain:
		return gap("%s", brief(err))
	case isConfigNumber(n):
		return &configError{errors.New(brief(err))}
	}
	return err
}

// isDoubtful reports errors that the network can cause once, but that mean an
// unreadable log when they come back at the same place (test: TestDamagedEvents).
func isDoubtful(err error) bool {
	var me *gomysql.MyError
	if errors.As(err, &me) {
		return me.Code == errMasterFatal
	}
	return errors.Is(err, errMalformed)
}

func containsAny(s string, parts []string) bool {
	s = strings.ToLower(s)
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// brief is the text of an error for logs and people, without the stack that the
// library adds.
func brief(err error) string {
	if err == nil {
		return ""
	}
	s, _, _ := strings.Cut(err.Error(), "\nstack:")
	return cut(s)
}

func cut(s string) string {
	const lengthMax = 300
	if len(s) > lengthMax {
		return s[:lengthMax] + "..."
	}
	return s
}

// errMalformed says that bytes of the stream are not what the format demands.
var errMalformed = errors.New("malformed binlog event")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// errShort is the commonest of them.
var errShort = fmt.Errorf("%w: %w", errMalformed, io.ErrUnexpectedEOF)
