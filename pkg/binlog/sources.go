package binlog

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Sources is a list of servers that hold the same history, and which of them is
// read now. It outlives a Reader: the next one begins where the last one stood. It
// must not serve two readers at a time.
//
// The next server is tried when the present one has failed for a while, and at
// once when it cannot serve the position. The position counts as lost only when
// every server was tried since anything was last read, and one of them says so: a
// former primary that has come back is not taken for the end of the history while
// another server goes on with it (test: TestSourcesInTrouble).
type Sources struct {
	list       func() ([]*mysql.Config, error)
	after      time.Duration
	afterFiles time.Duration

	mu    sync.Mutex
	size  int       // of the list when it was last read
	at    int       // the one in use
	since time.Time // of its first failure in a row; zero: none
	tried map[int]bool
	lost  map[int]error // of those tried, what they say of the position
}

// NewSources makes a list that is asked for before every connection, so that
// rotated secrets are picked up. A server is left for the next when it has failed
// for the time after, or for afterFiles where the position is a file of that server
// and so is lost on any other.
func NewSources(list func() ([]*mysql.Config, error), after, afterFiles time.Duration) *Sources {
	return &Sources{list: list, after: after, afterFiles: afterFiles, tried: map[int]bool{}, lost: map[int]error{}}
}

func oneSource(cfg *mysql.Config) *Sources {
	return NewSources(func() ([]*mysql.Config, error) { return []*mysql.Config{cfg}, nil }, 0, 0)
}

// current is where to connect now.
func (s *Sources) current() (*mysql.Config, error) {
	list, err := s.list()
	if err == nil && len(list) == 0 {
		err = errors.New("no server is named")
	}
	if err != nil {
		return nil, fmt.Errorf("source address: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = len(list)
	s.at %= s.size
	return list[s.at], nil
}

// worked notes that something was read from the server in use.
func (s *Sources) worked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
	s.newRound()
}

func (s *Sources) newRound() {
	clear(s.tried)
	clear(s.lost)
}

// failed notes why the server in use could not be read, and decides what is tried
// next. files says that the position is a file and an offset. It returns what the
// failure means now, err itself or the ErrGap of another server, and whether another
// server is next, which makes even an ErrGap a failure like any other.
func (s *Sources) failed(err error, files bool) (verdict error, moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		s.since = time.Now()
	}
	isGap := errors.Is(err, ErrGap)
	if s.size < 2 || isGap && files {
		return err, false
	}
	if !isGap && s.left(files) > 0 {
		return err, false
	}
	s.tried[s.at] = true
	if isGap {
		s.lost[s.at] = err
	}
	if next, ok := s.untried(); ok {
		s.move(next)
		return err, true
	}
	for i := range s.size {
		if verdict, ok := s.lost[i]; ok {
			s.move(i)
			s.newRound()
			return verdict, false
		}
	}
	s.newRound()
	s.move((s.at + 1) % s.size)
	return err, true
}

func (s *Sources) untried() (next int, ok bool) {
	for i := 1; i < s.size; i++ {
		if next = (s.at + i) % s.size; !s.tried[next] {
			return next, true
		}
	}
	return 0, false
}

func (s *Sources) move(to int) { s.at, s.since = to, time.Time{} }

// left is for how long the server in use may fail until the next is tried.
func (s *Sources) left(files bool) time.Duration {
	limit := s.after
	if files {
		limit = s.afterFiles
	}
	return limit - time.Since(s.since)
}

// wait cuts a pause down to the moment at which the next server is due.
func (s *Sources) wait(d time.Duration, files bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size < 2 {
		return d
	}
	return min(d, max(s.left(files), 0))
}
