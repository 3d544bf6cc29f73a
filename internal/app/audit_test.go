package app

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/rowferry/rowferry/internal/admin"
)

func TestAuditSaysWho(t *testing.T) {
	var log bytes.Buffer
	audit(t.Context(), zerolog.New(&log), "dead requeue").Int("rows", 3).Send()
	if got := log.String(); !strings.Contains(got, `"by":"`+osUser()) || !strings.Contains(got, `"rows":3`) {
		t.Errorf("logged %s", got)
	}
	log.Reset()
	audit(admin.WithCaller(t.Context(), "token from 192.0.2.7:1"), zerolog.New(&log), "dead requeue").Send()
	if got := log.String(); !strings.Contains(got, `"by":"token from 192.0.2.7:1"`) {
		t.Errorf("logged %s", got)
	}
}
