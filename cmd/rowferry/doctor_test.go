package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rowferry/rowferry/internal/doctor"
	"github.com/rowferry/rowferry/internal/testservers"
	"github.com/rowferry/rowferry/migrations"
)

// TestDoctorExitCodes: 0 also with warnings unless strict, 1 when something
// fails, 2 when the environment is wrong.
func TestDoctorExitCodes(t *testing.T) {
	d := testservers.MySQL(t)
	schema := d.Schema(t)
	if _, err := migrations.Up(context.Background(), d.Open(t, schema), migrations.Options{Outbox: true}); err != nil {
		t.Fatal(err)
	}
	source := "ROWFERRY_SOURCE_DSN=" + d.DSN(schema)
	away := fmt.Sprintf("ROWFERRY_SOURCE_DSN=root:s3cret@tcp(127.0.0.1:%d)/x", testservers.FreePort(0))
	const quiet = "ROWFERRY_SINK=stdout"
	for _, c := range []struct {
		name    string
		args    []string
		environ []string
		want    int
		says    string
	}{
		{"a warning", nil, []string{source, quiet}, exitDone, "1 warn, 0 fail"},
		{"a warning, strict", []string{"--strict"}, []string{source, quiet}, exitFailed, "1 warn, 0 fail"},
		{"no server", nil, []string{away, quiet}, exitFailed, "start the server"},
		{"no source named", nil, []string{quiet}, exitUsage, "ROWFERRY_SOURCE_DSN is required"},
		{"a topic that cannot be", nil, []string{source, quiet, "ROWFERRY_ROUTE_RULES=A=b c"}, exitUsage, "ROWFERRY_ROUTE_RULES"},
		{"an unknown flag", []string{"--no-such"}, []string{source}, exitUsage, "no-such"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if got := run(append([]string{"doctor"}, c.args...), c.environ, &out, &errs); got != c.want {
				t.Errorf("exit code %d, want %d\n%s%s", got, c.want, &out, &errs)
			}
			said := out.String() + errs.String()
			if !strings.Contains(said, c.says) || strings.Contains(said, "s3cret") {
				t.Errorf("does not say %q, or says the password:\n%s", c.says, said)
			}
		})
	}

	var out, errs bytes.Buffer
	if code := run([]string{"doctor", "--json"}, []string{away, quiet}, &out, &errs); code != exitFailed {
		t.Errorf("exit code %d with --json", code)
	}
	var report doctor.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("not one JSON document: %v\n%s", err, &out)
	}
	if report.OK || report.Name != "rowferry" || len(report.Checks) == 0 || report.Checks[0].Fix == "" {
		t.Errorf("the document says %+v", report)
	}
}
