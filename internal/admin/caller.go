package admin

import (
	"context"
	"net/http"
	"strings"
	"unicode"
)

// callerHeader is where a command says who runs it. It is not proved by anything, so the
// log names it beside what is: the address, and whether the token was shown.
const callerHeader = "Rowferry-Caller"

// callerMax is how much of that is believed, in bytes.
const callerMax = 100

type callerKey struct{}

// CallerOf says who asked for an action over HTTP, for the audit line: whether the token
// was shown, the address, and who the caller says it is. Empty outside of an action.
func CallerOf(ctx context.Context) string {
	who, _ := ctx.Value(callerKey{}).(string)
	return who
}

// withCaller notes who asks for an action. The token itself is in nothing of it.
func withCaller(r *http.Request, token bool) *http.Request {
	who := "no token"
	if token {
		who = "token"
	}
	who += " from " + r.RemoteAddr
	if says := printable(r.Header.Get(callerHeader)); says != "" {
		who += ", says it is " + says
	}
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
}

// WithCaller has a Client tell the relay who runs the command.
func WithCaller(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, callerKey{}, printable(who))
}

// printable makes a text that can stand in a header and in a log.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), callerMax)]
}
