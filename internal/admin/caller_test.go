package admin

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCaller(t *testing.T) {
	r := httptest.NewRequest("POST", "/", nil)
	r.RemoteAddr = "192.0.2.7:1234"
	if got := CallerOf(withCaller(r, false).Context()); got != "no token from 192.0.2.7:1234" {
		t.Errorf("got %q", got)
	}
	r.Header.Set(callerHeader, "ann@host\nforged: line")
	got := CallerOf(withCaller(r, true).Context())
	if got != "token from 192.0.2.7:1234, says it is ann@host?forged: line" {
		t.Errorf("got %q", got)
	}
	r.Header.Set(callerHeader, strings.Repeat("é", 1000))
	if got := CallerOf(withCaller(r, true).Context()); len(got) > 200 {
		t.Errorf("a caller has %d bytes of the log", len(got))
	}
	if got := CallerOf(t.Context()); got != "" {
		t.Errorf("without an action there is a caller: %q", got)
	}
}
