// Package archtest holds the repository against its own rules: which package may
// import which, how long a file may be, that every package says what it promises,
// and what has no place in a file. It promises nothing at run time; it only has
// tests.
package archtest
