package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestConfirmation(t *testing.T) {
	for _, c := range []struct {
		name   string
		in     io.Reader
		agreed bool
	}{
		{"nobody there", nil, false},
		{"yes", strings.NewReader("yes\n"), true},
		{"in capitals, without an end of line", strings.NewReader(" YES"), true},
		{"no", strings.NewReader("no\n"), false},
		{"y is not enough", strings.NewReader("y\n"), false},
		{"nothing", strings.NewReader(""), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked bytes.Buffer
			err := askYes(c.in, &asked, "5 rows would be discarded")
			if c.agreed != (err == nil) {
				t.Fatalf("err = %v, wanted agreement: %v", err, c.agreed)
			}
			var usage usageError
			if err != nil && (!errors.As(err, &usage) || !errors.Is(err, errNotConfirmed)) {
				t.Errorf("%v is no usage error that says that nothing was done", err)
			}
			if c.in != nil && !strings.Contains(asked.String(), "5 rows would be discarded") {
				t.Errorf("asked %q, which does not say what for", asked.String())
			}
		})
	}
}

func TestYesAsksNothing(t *testing.T) {
	var stderr bytes.Buffer
	c := &cli{stderr: &stderr}
	if err := c.confirm(true, "all would go"); err != nil || stderr.Len() > 0 {
		t.Errorf("err = %v, said %q", err, stderr.String())
	}
	if err := c.confirm(false, "all would go"); !errors.Is(err, errNotConfirmed) {
		t.Errorf("err = %v without --yes and without a terminal", err)
	}
}
