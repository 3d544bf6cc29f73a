package binlog

import (
	"context"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// sight is what the outbox tables of a server looked like, and where in its log. What
// must hold of it stands in known.go.
type sight struct {
	before  logPlace // the columns show the effect of every statement up to here
	end     logPlace // and of none behind here
	columns map[outbox.Table]string
	files   []string // of the log, oldest first
	sizes   map[string]uint64
	cfg     *mysql.Config // the server
	scanned bool          // what lies before end has been looked through, or cannot be
}

// look looks at the tables of the server that a stream reads from.
func (r *Reader) look(ctx context.Context, server string, tables []outbox.Table) (*sight, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	srv, cfg, err := r.openServer(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.db.Close() //nolint:errcheck // nothing is written through it
	if srv.id != server {
		return nil, fmt.Errorf("server %s has answered, the stream is of %s", srv.id, server)
	}
	v := &sight{cfg: cfg, columns: map[outbox.Table]string{}}
	if v.before, err = srv.endPlace(ctx); err != nil {
		return nil, err
	}
	for _, t := range tables {
		columns, err := srv.columns(ctx, t)
		if err != nil {
			return nil, err
		}
		v.columns[t] = columnsText(columns)
	}
	if v.end, err = srv.endPlace(ctx); err != nil {
		return nil, err
	}
	v.files, v.sizes, err = srv.logs(ctx)
	return v, err
}

func (s *server) endPlace(ctx context.Context) (logPlace, error) {
	e, err := s.end(ctx)
	return logPlace{e.file, e.offset}, err
}

// stretchBytes is how much of the log lies between a place and the end.
func (v *sight) stretchBytes(from logPlace) uint64 {
	var sum uint64
	for _, name := range v.files {
		at := logPlace{file: name}
		if name != from.file && at.reaches(from) && v.end.reaches(at) && name != v.end.file {
			sum += v.sizes[name]
		}
	}
	if from.file == v.end.file {
		return v.end.offset - min(from.offset, v.end.offset)
	}
	return sum + v.sizes[from.file] - min(from.offset, v.sizes[from.file]) + v.end.offset
}
