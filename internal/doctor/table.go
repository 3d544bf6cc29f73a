package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rowferry/rowferry/internal/config"
	"github.com/rowferry/rowferry/pkg/outbox"
)

func layoutCheck(t outbox.Table) string { return t.String() + " layout" }

// tableTasks are the checks of one outbox table.
func (e *exam) tableTasks(t outbox.Table) []task {
	var l *outbox.Layout
	needs := []string{checkStore, layoutCheck(t)}
	on := func(look func(context.Context, *outbox.Layout) Check) func(context.Context) Check {
		return func(ctx context.Context) Check { return look(ctx, l) }
	}
	return []task{
		{layoutCheck(t), []string{checkStore}, func(ctx context.Context) Check {
			var err error
			if l, err = e.app.ReadLayout(ctx, t); err != nil {
				return e.explainTable(ctx, t, err)
			}
			e.app.Layouts = append(e.app.Layouts, l)
			return ok(describe(l))
		}},
		{t.String() + " rights", needs, on(e.checkRights)},
		{t.String() + " text", needs, on(e.checkText)},
		{t.String() + " status values", needs, on(e.checkStatusValues)},
		{t.String() + " index", needs, on(e.checkIndex)},
	}
}

// describe says which column plays which role.
func describe(l *outbox.Layout) string {
	var parts []string
	for r := range outbox.NumRoles {
		c, has := l.Column(r)
		if !has {
			continue
		}
		text := r.String()
		if !strings.EqualFold(c.Name, text) {
			text += "=" + c.Name
		}
		if r == outbox.RoleStatus {
			text += " (" + strings.Join(statusTexts(l), " ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ") + "; key " + l.KeyIndex
}

// statusTexts are the values that the ledger may write or look for.
func statusTexts(l *outbox.Layout) []string {
	states := []outbox.Status{outbox.Pending, outbox.Sent, outbox.Failed}
	if l.Claims() {
		states = append(states, outbox.Processing)
	}
	var texts []string
	for _, s := range states {
		texts = append(texts, l.StatusText(s))
	}
	return texts
}

func tableName(t outbox.Table) string { return quote(t.Schema) + "." + quote(t.Name) }

// explainTable says why a table cannot be used. To an account without any right
// on it the server does not say whether it exists.
func (e *exam) explainTable(ctx context.Context, t outbox.Table, err error) Check {
	if !errors.Is(err, outbox.ErrNoTable) {
		return e.explainLayout(ctx, t, err)
	}
	name := quote(t.Schema) + "." + quote(t.Name)
	_, err = e.store.maps(ctx, "SELECT 1 FROM "+name+" LIMIT 0")
	if isNumber(err, errNoRightTable, errNoRightBase) {
		return fail(t.String()+": "+clean(err), "the table and the right to read it",
			fmt.Sprintf("GRANT SELECT, UPDATE ON %s TO %s; -- if the table does not exist, create it first: `rowferry migrate up --outbox` makes one", name, e.store.account))
	}
	fix := "create it, or name another with ROWFERRY_OUTBOX_TABLES"
	if t == (outbox.Table{Schema: e.app.Schema, Name: "outbox"}) {
		fix = "rowferry migrate up --outbox"
	}
	return fail("table "+t.String()+" does not exist", "an outbox table", fix)
}

// explainLayout says why a table is not recognised, and tries what could mend it.
func (e *exam) explainLayout(ctx context.Context, t outbox.Table, err error) Check {
	fix := "name the columns: ROWFERRY_OUTBOX_COLUMNS=id=COLUMN,payload=COLUMN; a table needs an id that is a primary or unique key by itself, and a payload"
	rows, listErr := e.store.db.QueryContext(ctx, `SELECT column_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ?
AND data_type IN ('json','text','mediumtext','longtext','blob','mediumblob','longblob')`, t.Schema, t.Name)
	if listErr != nil {
		return noAnswer("the columns of "+t.String(), listErr)
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var candidates []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return noAnswer("the columns of "+t.String(), err)
		}
		candidates = append(candidates, name)
	}
	if listErr := rows.Err(); listErr != nil {
		return noAnswer("the columns of "+t.String(), listErr)
	}
	for _, column := range candidates {
		if e.fitsWithPayload(ctx, t, column) {
			fix = "ROWFERRY_OUTBOX_COLUMNS=" + e.withPayload(column).String()
			break
		}
	}
	return fail(clean(err), "an outbox table", fix)
}

// withPayload are the overrides in force and one more.
func (e *exam) withPayload(column string) config.Columns {
	columns := config.Columns{outbox.RolePayload: column}
	for role, name := range e.cfg.OutboxColumns {
		if role != outbox.RolePayload {
			columns[role] = name
		}
	}
	return columns
}

func (e *exam) fitsWithPayload(ctx context.Context, t outbox.Table, column string) bool {
	_, err := outbox.ReadTable(ctx, e.store.db, t, outbox.Options{Columns: e.withPayload(column), Status: e.cfg.OutboxStatusValues})
	return err == nil
}

// writtenRoles are the columns that the ledger changes.
var writtenRoles = []outbox.Role{
	outbox.RoleStatus, outbox.RoleSentAt, outbox.RoleAttempts, outbox.RoleLastError,
	outbox.RoleClaimToken, outbox.RoleClaimedAt, outbox.RoleNextAttemptAt,
}

// columns are the quoted names of those that play the roles.
func columns(l *outbox.Layout, roles []outbox.Role) []string {
	var names []string
	for _, r := range roles {
		if c, has := l.Column(r); has {
			names = append(names, quote(c.Name))
		}
	}
	return names
}

// checkRights tries each right on the columns it is needed for. EXPLAIN asks for
// the rights of a statement and does nothing.
func (e *exam) checkRights(ctx context.Context, l *outbox.Layout) Check {
	name := tableName(l.Table)
	id := columns(l, []outbox.Role{outbox.RoleID})[0]
	var all []outbox.Role
	for r := range outbox.NumRoles {
		all = append(all, r)
	}
	rights := "SELECT"
	queries := []string{"SELECT " + strings.Join(columns(l, all), ", ") + " FROM " + name + " LIMIT 0"}
	kind := e.ledgerOf(l)
	if written := columns(l, writtenRoles); kind != config.LedgerNone && l.Has(outbox.RoleStatus) {
		rights += ", UPDATE (" + strings.Join(written, ", ") + ")"
		var set []string
		for _, c := range written {
			set = append(set, c+" = "+c)
		}
		queries = append(queries, "EXPLAIN UPDATE "+name+" SET "+strings.Join(set, ", ")+" WHERE "+id+" IS NULL")
	}
	if kind == config.LedgerDelete {
		rights += ", DELETE"
		queries = append(queries, "EXPLAIN DELETE FROM "+name+" WHERE "+id+" IS NULL")
	}
	for _, q := range queries {
		_, err := e.store.maps(ctx, q)
		switch {
		case err == nil, isNumber(err, errReadOnly, errStatement): // these have checks of their own
		case isNumber(err, errNoRightTable, errNoRightCol):
			return fail(clean(err), strings.ReplaceAll(rights, "`", ""), fmt.Sprintf("GRANT %s ON %s TO %s;", rights, name, e.store.account))
		default:
			return noAnswer("EXPLAIN", err)
		}
	}
	return ok(strings.ReplaceAll(rights, "`", ""))
}

// publishedRoles are the columns that an event is made of.
var publishedRoles = []outbox.Role{
	outbox.RolePayload, outbox.RoleID, outbox.RoleAggregateType, outbox.RoleAggregateID, outbox.RoleEventType,
	outbox.RoleHeaders, outbox.RoleTopic, outbox.RoleTag,
}

// checkText looks for text that the binlog path cannot hand on as it is.
func (e *exam) checkText(_ context.Context, l *outbox.Layout) Check {
	var foreign []string
	for _, r := range publishedRoles {
		c, has := l.Column(r)
		if has && !isUTF8(c.Charset) {
			foreign = append(foreign, c.Name+" "+c.FullType+" "+c.Charset)
		}
	}
	payload, _ := l.Column(outbox.RolePayload)
	found := strings.TrimSpace("payload " + payload.FullType + " " + payload.Charset)
	if len(foreign) > 0 {
		return warn(strings.Join(foreign, ", "), "utf8mb4: rows with other than ASCII characters are read by key, a query for each batch of them",
			"ALTER TABLE "+tableName(l.Table)+" CONVERT TO CHARACTER SET utf8mb4; -- rewrites the table")
	}
	if payload.DataType == "json" {
		found += " (MySQL normalises JSON: published as it prints it)"
	}
	return ok(found)
}

func isUTF8(charset string) bool {
	return charset == "" || charset == "binary" || charset == "utf8" || charset == "utf8mb3" || charset == "utf8mb4"
}

// checkStatusValues asks whether the status column can hold what the ledger
// writes into it.
func (e *exam) checkStatusValues(ctx context.Context, l *outbox.Layout) Check {
	c, has := l.Column(outbox.RoleStatus)
	if !has {
		return skipped("no status column")
	}
	missing := unfit(c, statusTexts(l))
	if len(missing) == 0 {
		return ok(c.FullType)
	}
	wanted := "room for " + strings.Join(statusTexts(l), ", ")
	found := c.FullType + " cannot hold " + strings.Join(missing, ", ")
	if c.DataType != "enum" && c.DataType != "varchar" && c.DataType != "char" {
		return fail(found, wanted, "ROWFERRY_OUTBOX_STATUS_VALUES=pending=0,sent=1,failed=2 with values that the column can hold")
	}
	fix, err := e.widen(ctx, l.Table, c, missing)
	if err != nil {
		return noAnswer("the definition of "+c.Name, err)
	}
	return fail(found, wanted, fix)
}

// unfit returns the values that a column cannot hold.
func unfit(c outbox.Column, values []string) []string {
	var missing []string
	for _, v := range values {
		_, err := strconv.ParseInt(v, 10, 64)
		switch {
		case c.DataType == "enum":
			if !slices.ContainsFunc(labels(c.FullType), func(l string) bool { return strings.EqualFold(l, v) }) {
				missing = append(missing, v)
			}
		case c.LengthMax > 0 && int64(len(v)) > c.LengthMax,
			c.LengthMax == 0 && err != nil: // a number
			missing = append(missing, v)
		}
	}
	return missing
}

// labels reads enum('a','b').
func labels(fullType string) []string {
	_, inside, _ := strings.Cut(fullType, "('")
	inside, _ = strings.CutSuffix(inside, "')")
	all := strings.Split(inside, "','")
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], "''", "'")
	}
	return all
}

// widen is the ALTER TABLE that makes room for more values and leaves the rest
// of the column as it is.
func (e *exam) widen(ctx context.Context, t outbox.Table, c outbox.Column, missing []string) (string, error) {
	rows, err := e.store.db.QueryContext(ctx, "SELECT column_default, character_set_name, collation_name FROM information_schema.columns WHERE table_schema = ? AND table_name = ? AND column_name = ?", t.Schema, t.Name, c.Name)
	if err != nil {
		return "", err
	}
	defer rows.Close() //nolint:errcheck // rows.Err below reports what matters
	var def, charset, collation *string
	for rows.Next() {
		if err := rows.Scan(&def, &charset, &collation); err != nil {
			return "", err
		}
	}
	if err := rows.Err(); err != nil {
		return "", err
	}
	definition := c.DataType + "(20)"
	if c.DataType == "enum" {
		definition = strings.TrimSuffix(c.FullType, ")")
		for _, v := range missing {
			definition += "," + quoteText(v)
		}
		definition += ")"
	}
	if charset != nil && collation != nil {
		definition += " CHARACTER SET " + *charset + " COLLATE " + *collation
	}
	if !c.Nullable {
		definition += " NOT NULL"
	}
	if def != nil && !strings.EqualFold(*def, "NULL") {
		text := *def
		if !strings.HasPrefix(text, "'") { // MariaDB quotes it already
			text = quoteText(text)
		}
		definition += " DEFAULT " + text
	}
	return fmt.Sprintf("ALTER TABLE %s MODIFY %s %s;", tableName(t), quote(c.Name), definition), nil
}

// checkIndex looks for the index that finds PENDING rows, oldest first. Without
// it every sweep and every count reads the whole table.
func (e *exam) checkIndex(ctx context.Context, l *outbox.Layout) Check {
	status, has := l.Column(outbox.RoleStatus)
	if !has || e.ledgerOf(l) == config.LedgerNone {
		return skipped("nothing is looked for by status")
	}
	want := []string{status.Name}
	if created, dated := l.Column(outbox.RoleCreatedAt); dated {
		want = append(want, created.Name)
	}
	rows, err := e.store.maps(ctx, "SHOW INDEX FROM "+tableName(l.Table))
	if err != nil {
		return noAnswer("SHOW INDEX", err)
	}
	name, depth := bestIndex(rows, want)
	wanted := "an index that begins with (" + strings.Join(want, ", ") + ")"
	fix := fmt.Sprintf("CREATE INDEX %s ON %s (%s);", quote(freeName(rows, "idx_status_created")), tableName(l.Table), quotedList(want))
	switch {
	case depth == len(want):
		return ok(name)
	case depth > 0:
		return warn(name+" begins with "+status.Name+" only, so each sweep sorts all PENDING rows", wanted, fix)
	}
	return fail("none begins with "+status.Name+", so each sweep reads the whole table", wanted, fix)
}

// bestIndex returns the usable index that shares the longest beginning with
// want, out of the rows of SHOW INDEX.
func bestIndex(rows []map[string]string, want []string) (name string, depth int) {
	byName := map[string][]string{}
	var names []string
	for _, r := range rows {
		if strings.EqualFold(r["visible"], "NO") || strings.EqualFold(r["ignored"], "YES") || r["index_type"] != "BTREE" {
			continue
		}
		n := r["key_name"]
		if byName[n] == nil {
			names = append(names, n)
		}
		byName[n] = append(byName[n], r["column_name"]) // rows come in the order of the columns
	}
	for _, n := range names {
		d := 0
		for d < min(len(want), len(byName[n])) && strings.EqualFold(byName[n][d], want[d]) {
			d++
		}
		if d > depth {
			name, depth = n, d
		}
	}
	return name, depth
}

func freeName(rows []map[string]string, name string) string {
	for slices.ContainsFunc(rows, func(r map[string]string) bool { return strings.EqualFold(r["key_name"], name) }) {
		name += "_2"
	}
	return name
}

func quotedList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quote(n)
	}
	return strings.Join(quoted, ", ")
}
