package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// confirm returns nil if the operator wants what cannot be undone: by --yes, or by
// answering the question on a terminal. Anything else is a usage error that says what
// would have been done; what is a sentence without a full stop, such as "5 rows would
// be discarded".
func (c *cli) confirm(yes bool, what string) error {
	if yes {
		return nil
	}
	var in io.Reader
	if isTerminal(c.stderr) && isTerminal(os.Stdin) {
		in = os.Stdin
	}
	return askYes(in, c.stderr, what)
}

var errNotConfirmed = errors.New("nothing was done")

// askYes asks in for a "yes"; without in, which is nobody who could answer, it is a no.
func askYes(in io.Reader, out io.Writer, what string) error {
	if in == nil {
		return usageError{fmt.Errorf("%s; %w: add --yes to do it", what, errNotConfirmed)}
	}
	if _, err := fmt.Fprintf(out, "%s. Type yes to go on: ", what); err != nil {
		return fmt.Errorf("asking for a confirmation: %w", err)
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the confirmation: %w", err)
	}
	if !strings.EqualFold(strings.TrimSpace(line), "yes") {
		return usageError{errNotConfirmed}
	}
	return nil
}
