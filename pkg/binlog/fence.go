package binlog

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/rowferry/rowferry/pkg/outbox"
)

// readColumns reads what the stream may not tell: where the columns of a table are.
// A table that is not there (yet) has none.
func readColumns(ctx context.Context, db *sql.DB, t outbox.Table) ([]outbox.Column, error) {
	rows, err := db.QueryContext(ctx, `SELECT column_name, ordinal_position - 1, LOWER(data_type), column_type,
  COALESCE(character_set_name, ''), COALESCE(character_maximum_length, 0)
FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`, t.Schema, t.Name)
	if err != nil {
		return nil, fmt.Errorf("reading the columns of %s: %w", t, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var columns []outbox.Column
	for rows.Next() {
		var c outbox.Column
		if err := rows.Scan(&c.Name, &c.Ordinal, &c.DataType, &c.FullType, &c.Charset, &c.LengthMax); err != nil {
			return nil, fmt.Errorf("reading the columns of %s: %w", t, err)
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

// fencePlan returns how to read the checkpoint table, nil if its columns are not
// known: then no fence is seen, which the caller's fences show by not returning.
func (s *stream) fencePlan(w *watched, body []byte) (*plan, error) {
	if p, ok := w.plans[string(body[6:])]; ok {
		return p, nil
	}
	m, err := parseTableMap(body, s.flavor)
	if err != nil {
		return nil, fmt.Errorf("description of table %s: %w", w.table, err)
	}
	p := newFencePlan(w, s.fenceColumns, m)
	if p == nil { // created or altered since the connection began
		if err := s.reloadFence(w.table); err != nil {
			return nil, err
		}
		p = newFencePlan(w, s.fenceColumns, m)
	}
	if p == nil {
		s.r.cfg.Logger.Warn().Stringer("table", w.table).
			Msg("the columns name and fence of the checkpoint table cannot be found in the binlog; fences are not seen (the account needs SELECT on the table)")
	}
	w.plans[string(body[6:])] = p
	return p, nil
}

func (s *stream) reloadFence(t outbox.Table) error {
	ctx, cancel := context.WithTimeout(s.ctx, sqlTimeout)
	defer cancel()
	srv, _, err := s.r.openServer(ctx)
	if err != nil {
		return err
	}
	defer srv.db.Close() //nolint:errcheck // nothing is written through it
	s.fenceColumns, err = readColumns(ctx, srv.db, t)
	return err
}

func newFencePlan(w *watched, columns []outbox.Column, m *tableMap) *plan {
	if m.names == nil && len(columns) != len(m.types) {
		return nil
	}
	p := blankPlan(w, nil, columns, m)
	for role, name := range map[outbox.Role]string{roleFenceName: "name", roleFenceValue: "fence"} {
		at := slices.IndexFunc(columns, func(c outbox.Column) bool { return c.Name == name })
		if at < 0 {
			return nil
		}
		i := locate(m, columns[at])
		if i < 0 || !fits(columns[at], m, i) {
			return nil
		}
		p.columns[i] = newColumnPlan(role, columns[at], m, i, nil)
	}
	return p
}
