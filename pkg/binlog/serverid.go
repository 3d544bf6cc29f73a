package binlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// MariaDB ends the stream of a client when another one comes with the same server
// id. Two relays would throw each other off for ever. So the one that was ended
// connects again only when the server does not list the other any more: it is
// reported, and not fought (test: TestServerIDTaken). MySQL serves both, and tells
// replicas apart by a UUID, which the library makes anew for each connection.

// errTaken is what both the server's error and our own look at its list mean.
var errTaken = errors.New("another replica or relay uses our server id; set ROWFERRY_SERVER_ID to a number that no other uses")

func (r *Reader) taken() error {
	return &configError{fmt.Errorf("%w (it is %d)", errTaken, r.cfg.ServerID)}
}

// yield refuses to connect while the one that ended the last stream is there. An
// account that may not look tries, at the pace of what only an operator can mend.
func (r *Reader) yield(ctx context.Context, s *server) error {
	if !r.evicted {
		return nil
	}
	there, err := s.lists(ctx, r.cfg.ServerID)
	if isSQLError(err, errNoRight) {
		there, err = false, nil
	}
	if err != nil {
		return err
	}
	if there {
		return r.taken()
	}
	r.evicted = false
	return nil
}

// lists reports whether the server lists a replica of that id.
func (s *server) lists(ctx context.Context, id uint32) (bool, error) {
	query := "SHOW REPLICAS"
	if s.flavor == flavorMariaDB {
		query = "SHOW SLAVE HOSTS"
	}
	rows, err := s.maps(ctx, query)
	if isSQLError(err, errParse) { // before MySQL 8.0.22
		rows, err = s.maps(ctx, "SHOW SLAVE HOSTS")
	}
	if err != nil {
		return false, fmt.Errorf("asking for the server's replicas: %w", err)
	}
	for _, row := range rows {
		if row["server_id"] == strconv.FormatUint(uint64(id), 10) {
			return true, nil
		}
	}
	return false, nil
}
