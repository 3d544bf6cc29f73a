// Package app puts the rooms together: from a configuration to a running relay.
//
// It promises that a relay which cannot work yet stays alive and says why: a
// database that does not answer, tables that are not there, another leader. Only
// mistakes that the environment alone shows end the process.
package app

// ConfigError is a mistake that the environment alone shows; a command ends with
// exit code 2 for it.
type ConfigError struct{ error }

// Unwrap returns the mistake.
func (e ConfigError) Unwrap() error { return e.error }

func usage(err error) error { return ConfigError{err} }
