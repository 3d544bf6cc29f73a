package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Error numbers of the server that decide something here.
const (
	errSyntax    = 1064 // SKIP LOCKED on a server that is too old for it
	errChanged   = 1020 // MariaDB: the row changed since the snapshot
	errNoTable   = 1146
	errLockWait  = 1205
	errDeadlock  = 1213
	errNoWait    = 3572
	triesMax     = 4
	pauseMin     = 5 * time.Millisecond
	pauseSpread  = 45 * time.Millisecond
	countedMax   = 10001
	lookUpsMax   = 5    // locking reads of an absent row before its lock is called lasting
	lastErrorMax = 2000 // characters
)

func isNumber(err error, numbers ...uint16) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains(numbers, e.Number)
}

// transient reports whether the same transaction may succeed when it is run again.
func transient(err error) bool { return isNumber(err, errLockWait, errDeadlock, errChanged) }

// pause waits a little, by chance a different while for each of those who
// collided; it returns early with the error of a context that ends.
func pause(ctx context.Context) error {
	timer := time.NewTimer(pauseMin + rand.N(pauseSpread))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
