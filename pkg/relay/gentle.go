package relay

import (
	"context"
	"time"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// Bounds of a catch-up beside applications that insert rows on the same server.
const (
	gentleRows  = 100                    // of one transaction of the ledger
	restMost    = 5.0                    // times as long as a transaction took
	restLongest = 150 * time.Millisecond // so that some hundreds of rows are marked each second
	judgeEvery  = time.Second
	lookLeast   = 100 * time.Millisecond // in which nobody inserts to be called alone
	aloneBelow  = 5                      // rows a second that others insert: nobody to be gentle with
	sendsLeast  = 1000                   // events a second that may be sent meanwhile at least
	headway     = 2                      // times as fast as the backlog grows it must be caught up with
)

// gentle keeps applications first while a backlog is marked. What costs them is not
// locks, there are none to wait for, but the log that all transactions share and the
// CPU. So beside others who insert, transactions of the ledger are small and each is
// followed by a rest several times as long as it took; that is less work by itself when
// the server is busy. What is sent keeps to about the rate at which it is marked: the
// budget alone would let thousands through at once, each time it has room again. There is a catch-up while a whole transaction of the ledger is waiting, or the
// sweep takes as many rows each second.
//
// What must hold: the backlog shrinks. The rests become shorter, down to none, as long as
// the backlog is gone through less than twice as fast as it was written, and fewer rows
// are marked than twice those that others insert. Otherwise a busy application is never
// caught up with. Shown by TestGentleCatchUpMakesHeadway.
//
// It belongs to the marker's goroutine.
type gentle struct {
	e        *Engine
	inserted func(context.Context) (uint64, error) // by all sessions since the server's start; nil: never gentle

	on    bool    // there is a catch-up
	alone bool    // nobody else inserts
	rest  float64 // times as long as a transaction took; 0: none
	told  bool    // that this catch-up is slowed down

	count   uint64 // of inserted at the last look
	countAt time.Time
	known   bool

	window
	before   window // the last one; without a beginning in the first of a catch-up
	sweeping bool   // the sweep alone is a catch-up
}

// window is what was marked within about a second.
type window struct {
	began time.Time
	rows  int
	swept int     // of those, by the sweep
	since float64 // sum of the seconds from then to the commits of the others, which are negative
}

// committed is when the rows that the tail brought were committed, on average: in a
// backlog they come to be marked in nearly the order of the stream.
func (w window) committed() (at time.Time, ok bool) {
	n := w.rows - w.swept
	if n == 0 || w.began.IsZero() {
		return time.Time{}, false
	}
	return w.began.Add(time.Duration(w.since / float64(n) * float64(time.Second))), true
}

func newGentle(e *Engine) *gentle { return &gentle{e: e, inserted: e.cfg.Inserted} }

// look begins to count what others insert, so that a catch-up knows of them at once.
func (g *gentle) look(ctx context.Context) {
	if g.inserted != nil {
		g.others(ctx)
	}
}

// waiting is told how many outcomes are to be recorded now.
func (g *gentle) waiting(ctx context.Context, n int) {
	switch {
	case g.inserted == nil:
	case !g.on && (n >= markMax || g.sweeping):
		g.on = true
		others, known := g.others(ctx)
		g.before, g.window = window{}, window{began: time.Now()}
		if g.alone = known && others < aloneBelow; !g.alone {
			g.setRest(restMost)
		}
	case g.on && n < gentleRows && !g.sweeping:
		g.on = false
		g.setRest(0)
		if g.told {
			g.told = false
			g.e.log.Info().Msg("caught up")
		}
	}
}

// rowsMax bounds the next transaction of the ledger.
func (g *gentle) rowsMax() int {
	if g.rest > 0 && !isClosed(g.e.drainStarted) {
		return gentleRows
	}
	return markMax
}

// recorded is told what a transaction has recorded, and returns how long to rest.
func (g *gentle) recorded(ctx context.Context, batch []settlement, took time.Duration) time.Duration {
	if g.inserted == nil {
		return 0
	}
	for _, s := range batch {
		if s.item.origin == outbox.FromSweep {
			g.swept++
		} else {
			g.since += s.item.committed.Sub(g.began).Seconds()
		}
	}
	g.rows += len(batch)
	if now := time.Now(); now.Sub(g.began) >= judgeEvery {
		g.judge(ctx, now.Sub(g.began).Seconds())
		g.before, g.window = g.window, window{began: now}
	}
	return min(restLongest, time.Duration(g.rest*float64(took)))
}

// judge decides at the end of a window how to go on.
func (g *gentle) judge(ctx context.Context, seconds float64) {
	switch swept := float64(g.swept) / seconds; {
	case swept >= markMax:
		g.sweeping = true
	case swept < gentleRows:
		g.sweeping = false
	}
	if !g.on {
		return
	}
	others, known := g.others(ctx)
	switch {
	case known && others < aloneBelow:
		g.alone = true
		g.setRest(0)
	case g.alone:
		g.alone = false
		g.setRest(restMost)
	case g.before.began.IsZero(): // too early to say
	case g.passed() >= headway*seconds, known && float64(g.rows)/seconds >= headway*others:
		g.setRest(min(restMost, g.rest+1))
	case g.rest >= 2:
		g.setRest(g.rest / 2)
	default:
		g.setRest(0)
	}
	if g.rest > 0 && !g.told {
		g.told = true
		g.e.log.Info().Float64("others_rows_per_second", others).
			Msg("catching up at a reduced rate, because others write to the same server")
	}
}

// passed is how many seconds of the source's time were gone through from the last window
// to this one.
func (g *gentle) passed() float64 {
	from, ok := g.before.committed()
	to, ok2 := g.committed()
	if !ok || !ok2 {
		return 0
	}
	return to.Sub(from).Seconds()
}

// others returns how many rows all sessions of the store's server have inserted per
// second since the last look; ours insert next to nothing. Unknown at the first look,
// right after another, after a restart of the server, and when it does not say.
func (g *gentle) others(ctx context.Context) (perSecond float64, known bool) {
	ctx, cancel := context.WithTimeout(ctx, judgeEvery)
	defer cancel()
	n, err := g.inserted(ctx)
	if err != nil {
		g.e.log.Debug().Err(err).Msg("asking who else writes failed")
	}
	now := time.Now()
	known = err == nil && g.known && n >= g.count && now.Sub(g.countAt) >= lookLeast
	if known { // less than a second would make one row look like many
		perSecond = float64(n-g.count) / max(1, now.Sub(g.countAt).Seconds())
	}
	g.count, g.countAt, g.known = n, now, err == nil
	return perSecond, known
}

func (g *gentle) setRest(times float64) {
	g.rest = times
	g.e.mu.Lock()
	g.e.resting = times
	g.e.mu.Unlock()
	if times == 0 {
		g.e.pacer.slow.Store(0)
		return
	}
	marked := float64(g.rows) / max(1, time.Since(g.began).Seconds())
	g.e.pacer.slow.Store(int64(max(sendsLeast, marked*3/2)))
}
