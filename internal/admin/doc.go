// Package admin is the HTTP side of a running relay: health, readiness, metrics,
// status, actions and profiles, and the client with which the commands ask.
//
// It promises that an action is only done for someone who showed the token or
// who speaks from this host and is no web page; that readiness and status come
// from the relay at the moment of the request; and that nothing here can hold
// the relay up: a slow or dead caller costs one connection.
//
// The JSON of [Status], [Readiness] and the paths are a surface that people rely
// on.
package admin
