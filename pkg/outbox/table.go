package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Querier is what the reads of this package need of a *sql.DB, *sql.Conn or *sql.Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// FindTables returns the tables that the patterns name, in the order of the
// patterns. A pattern is `table` or `schema.table`, `*` standing for any run of
// characters; without a schema it means defaultSchema. A pattern without a star
// is returned even if no such table is visible, so that the caller can wait for
// it; a starred pattern that matches nothing is simply empty.
func FindTables(ctx context.Context, db Querier, patterns []string, defaultSchema string) ([]Table, error) {
	var found []Table
	seen := map[Table]bool{}
	for _, p := range patterns {
		schema, name, ok := strings.Cut(p, ".")
		if !ok {
			schema, name = defaultSchema, p
		}
		tables := []Table{{schema, name}}
		if strings.Contains(p, "*") {
			var err error
			if tables, err = matchTables(ctx, db, schema, name); err != nil {
				return nil, err
			}
		}
		for _, t := range tables {
			if !seen[t] {
				seen[t] = true
				found = append(found, t)
			}
		}
	}
	return found, nil
}

func matchTables(ctx context.Context, db Querier, schema, name string) ([]Table, error) {
	rows, err := db.QueryContext(ctx, `SELECT table_schema, table_name FROM information_schema.tables
WHERE table_type = 'BASE TABLE' AND table_schema LIKE ? AND table_name LIKE ? ORDER BY 1, 2`, like(schema), like(name))
	if err != nil {
		return nil, fmt.Errorf("listing tables %s.%s: %w", schema, name, err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var found []Table
	for rows.Next() {
		var t Table
		if err := rows.Scan(&t.Schema, &t.Name); err != nil {
			return nil, fmt.Errorf("listing tables %s.%s: %w", schema, name, err)
		}
		found = append(found, t)
	}
	return found, rows.Err()
}

// like turns a pattern with stars into one for LIKE.
func like(pattern string) string {
	return strings.NewReplacer(`\`, `\\`, `_`, `\_`, `%`, `\%`, `*`, `%`).Replace(pattern)
}

// ErrNoTable is returned by ReadTable for a table that is not there, or that the
// account may not see: MySQL tells the two apart only for those who have rights.
var ErrNoTable = fmt.Errorf("no such table, or no right to read it")

// ReadTable reads a table's columns and unique keys and recognises its layout.
func ReadTable(ctx context.Context, db Querier, table Table, o Options) (*Layout, error) {
	columns, err := readColumns(ctx, db, table)
	if err != nil {
		return nil, fmt.Errorf("reading the columns of %s: %w", table, err)
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("table %s: %w", table, ErrNoTable)
	}
	key, err := readKeys(ctx, db, table)
	if err != nil {
		return nil, fmt.Errorf("reading the keys of %s: %w", table, err)
	}
	return Recognise(table, columns, key, o)
}

func readColumns(ctx context.Context, db Querier, t Table) ([]Column, error) {
	rows, err := db.QueryContext(ctx, `SELECT column_name, ordinal_position, data_type, column_type, is_nullable,
  COALESCE(character_set_name, ''), COALESCE(character_maximum_length, 0)
FROM information_schema.columns WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position`, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var columns []Column
	for rows.Next() {
		var c Column
		var nullable string
		if err := rows.Scan(&c.Name, &c.Ordinal, &c.DataType, &c.FullType, &nullable, &c.Charset, &c.LengthMax); err != nil {
			return nil, err
		}
		c.Ordinal--
		c.DataType = strings.ToLower(c.DataType)
		c.Nullable = nullable == "YES"
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

const primaryIndex = "PRIMARY"

// readKeys returns the columns that are a unique key by themselves, each with
// the name of the index; the primary key wins over others on the same column. The
// AUTO_INCREMENT column with which a longer primary key begins counts as one: the server
// gives each number once. Tables that are partitioned by date have such keys.
func readKeys(ctx context.Context, db Querier, t Table) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT s.index_name, MIN(s.column_name) FROM information_schema.statistics s
WHERE s.table_schema = ? AND s.table_name = ? AND s.non_unique = 0
GROUP BY s.index_name HAVING COUNT(*) = 1
UNION SELECT s.index_name, s.column_name FROM information_schema.statistics s JOIN information_schema.columns c
  ON c.table_schema = s.table_schema AND c.table_name = s.table_name AND c.column_name = s.column_name
WHERE s.table_schema = ? AND s.table_name = ? AND s.index_name = 'PRIMARY' AND s.seq_in_index = 1 AND c.extra LIKE '%auto_increment%'`, t.Schema, t.Name, t.Schema, t.Name)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	keys := map[string]string{}
	for rows.Next() {
		var index, column string
		if err := rows.Scan(&index, &column); err != nil {
			return nil, err
		}
		if keys[column] != primaryIndex {
			keys[column] = index
		}
	}
	return keys, rows.Err()
}
