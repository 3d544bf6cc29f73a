package outbox

import (
	"maps"
	"strings"
	"testing"
)

// columns makes columns out of "name type" pairs.
func columns(specs ...string) []Column {
	var cs []Column
	for i, spec := range specs {
		name, full, _ := strings.Cut(spec, " ")
		data, _, _ := strings.Cut(strings.Fields(full)[0], "(")
		cs = append(cs, Column{Name: name, Ordinal: i, DataType: data, FullType: full})
	}
	return cs
}

var (
	pragmatic = columns("id bigint unsigned", "aggregate_id varchar(64)", "event_type varchar(64)", "payload json",
		"status varchar(20)", "created_at datetime", "sent_at datetime", "attempts int")
	numeric = columns("id bigint", "aggregate_type varchar(64)", "aggregate_id varchar(64)", "event_type varchar(64)",
		"payload json", "status tinyint", "retry_count int", "created_at datetime", "updated_at timestamp")
	debezium = columns("id char(36)", "aggregatetype varchar(255)", "aggregateid varchar(255)", "type varchar(255)", "payload json")
	primary  = map[string]string{"id": "PRIMARY"}
	shop     = Table{"shop", "outbox"}
)

func recognise(t *testing.T, cs []Column, o Options) *Layout {
	t.Helper()
	l, err := Recognise(shop, cs, primary, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLayoutsOfTheLiteratureAreRecognised(t *testing.T) {
	for _, c := range []struct {
		name    string
		columns []Column
		roles   map[Role]string
		status  map[Status]string
		claims  bool
	}{
		{"pragmatic", pragmatic,
			map[Role]string{RoleID: "id", RoleAggregateID: "aggregate_id", RoleEventType: "event_type", RolePayload: "payload",
				RoleStatus: "status", RoleCreatedAt: "created_at", RoleSentAt: "sent_at", RoleAttempts: "attempts"},
			map[Status]string{Pending: "PENDING", Processing: "PROCESSING", Sent: "SENT", Failed: "FAILED"}, false},
		{"numeric", numeric,
			map[Role]string{RoleID: "id", RoleAggregateType: "aggregate_type", RoleAggregateID: "aggregate_id", RoleEventType: "event_type",
				RolePayload: "payload", RoleStatus: "status", RoleCreatedAt: "created_at", RoleUpdatedAt: "updated_at", RoleAttempts: "retry_count"},
			map[Status]string{Pending: "0", Sent: "1", Failed: "2"}, false},
		{"numeric with claims", append(columns(), append(numeric, columns("claim_token char(36)", "claimed_at datetime")...)...),
			map[Role]string{RoleClaimToken: "claim_token", RoleClaimedAt: "claimed_at"},
			map[Status]string{Pending: "0", Sent: "1", Failed: "2", Processing: "3"}, true},
		{"debezium", debezium,
			map[Role]string{RoleID: "id", RoleAggregateType: "aggregatetype", RoleAggregateID: "aggregateid", RoleEventType: "type", RolePayload: "payload"},
			nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := recognise(t, c.columns, Options{})
			for r, want := range c.roles {
				if got, ok := l.Column(r); !ok || got.Name != want {
					t.Errorf("role %s is played by %q, want %q", r, got.Name, want)
				}
			}
			for _, s := range []Status{Pending, Processing, Sent, Failed} {
				if got := l.StatusText(s); got != c.status[s] {
					t.Errorf("%s is spelt %q, want %q", s, got, c.status[s])
				}
			}
			if l.Claims() != c.claims {
				t.Errorf("claims: %v", l.Claims())
			}
		})
	}
}

func TestRecogniseSaysWhatIsMissingAndHowToNameIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		columns []Column
		key     map[string]string
		o       Options
		want    []string
	}{
		{"no payload", columns("id bigint", "body json"), primary, Options{}, []string{"shop.outbox", "payload", "body", "ROWFERRY_OUTBOX_COLUMNS=payload="}},
		{"no id", columns("nr bigint", "payload json"), primary, Options{}, []string{"role id", "ROWFERRY_OUTBOX_COLUMNS=id="}},
		{"composite key", pragmatic, map[string]string{}, Options{}, []string{"column id", "composite keys"}},
		{"key of time", columns("id timestamp(6)", "payload json"), primary, Options{}, []string{"column id", "timestamp(6)"}},
		{"key of years", columns("id year", "payload json"), primary, Options{}, []string{"column id", "year"}},
		{"key of floating point", columns("id double", "payload json"), primary, Options{}, []string{"column id", "double"}},
		{"override of nothing", pragmatic, primary, Options{Columns: map[Role]string{RolePayload: "boddy"}}, []string{"boddy", "payload"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Recognise(shop, c.columns, c.key, c.o)
			for _, part := range c.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
		})
	}
}

func TestOverridesWin(t *testing.T) {
	cs := columns("id bigint", "payload json", "body text", "state tinyint")
	l := recognise(t, cs, Options{
		Columns: map[Role]string{RolePayload: "BODY", RoleStatus: "state"},
		Status:  map[Status]string{Pending: "7", Sent: "8", Failed: "9"},
	})
	if c, _ := l.Column(RolePayload); c.Name != "body" {
		t.Errorf("payload is %s", c.Name)
	}
	for text, want := range map[string]Status{"7": Pending, "8": Sent, "9": Failed, "0": Other, "": Other} {
		if got := l.StatusOf([]byte(text)); got != want {
			t.Errorf("status %q is %s, want %s", text, got, want)
		}
	}
}

func TestTableWithoutStatusHoldsPendingRowsOnly(t *testing.T) {
	if got := recognise(t, debezium, Options{}).StatusOf(nil); got != Pending {
		t.Errorf("got %s", got)
	}
}

func TestParseColumnsAndStatusValues(t *testing.T) {
	cols, err := ParseColumns("payload=body, event_type=kind")
	if err != nil || !maps.Equal(cols, map[Role]string{RolePayload: "body", RoleEventType: "kind"}) {
		t.Errorf("%v, %v", cols, err)
	}
	st, err := ParseStatusValues("pending=0,sent=1,failed=2,processing=3")
	if err != nil || !maps.Equal(st, map[Status]string{Pending: "0", Sent: "1", Failed: "2", Processing: "3"}) {
		t.Errorf("%v, %v", st, err)
	}
	for _, bad := range []string{"", "payload", "payload=", "pay=load"} {
		if _, err := ParseColumns(bad); err == nil {
			t.Errorf("columns %q are accepted", bad)
		}
	}
	for _, bad := range []string{"", "pending=0", "pending=0,sent=1", "pending=0,sent=1,failed=", "pending=0,sent=1,failed=2,other=3", "missing=1"} {
		if _, err := ParseStatusValues(bad); err == nil {
			t.Errorf("status values %q are accepted", bad)
		}
	}
}

func TestPatternsBecomeLike(t *testing.T) {
	for pattern, want := range map[string]string{"shop_*": `shop\_%`, "a%b": `a\%b`, `a\*`: `a\\%`} {
		if got := like(pattern); got != want {
			t.Errorf("like(%q) is %q, want %q", pattern, got, want)
		}
	}
}
