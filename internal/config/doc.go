// Package config turns the environment into a checked [Config].
//
// It promises that every mistake is reported at once, one line each, with the
// variable, the value and what is accepted; that no message and no printed
// configuration ever holds a secret; and that the reference page is generated
// from the struct, so that the two cannot differ. A value that this version
// accepts does what the reference says: what is not built yet is refused.
//
// It reads the environment that it is given and the files that the environment
// names (NAME_FILE, certificates), and nothing else: no server is asked.
package config
