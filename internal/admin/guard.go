package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
)

// guard lets through who shows the token, and, without a token, who speaks from
// this host and is neither a web page nor somebody behind a proxy. A token that
// is wrong is refused from anywhere.
//
// What must hold: whatever publishes, changes or shows the inside of the process
// is reached through here. Otherwise anyone who can reach the port can do it,
// or, on a developer's machine, any web page (TestGuard).
func (s *Server) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, present := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case present && s.config.Token != "" && equal(shown, s.config.Token):
		case present:
			s.refuse(w, http.StatusUnauthorized, "the token is wrong")
			return
		case local(r):
		case s.config.Token != "":
			s.refuse(w, http.StatusUnauthorized, "a token is needed: Authorization: Bearer TOKEN")
			return
		default:
			s.refuse(w, http.StatusForbidden, "without ROWFERRY_HTTP_TOKEN this is only done for callers on this host")
			return
		}
		h.ServeHTTP(w, withCaller(r, present))
	})
}

func (s *Server) refuse(w http.ResponseWriter, code int, why string) {
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="rowferry"`)
	}
	s.writeJSON(w, code, failure{why})
}

// equal compares in a time that tells nothing, not even the length.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// crossOrigin knows requests that a browser makes for a page of another origin.
var crossOrigin = http.NewCrossOriginProtection()

// local reports whether a program on this host asks for itself. A proxy on this
// host speaks for others, and a browser speaks for web pages: one from another
// origin is known by its headers, one that was rebound to this address by a Host
// that is a name other than localhost.
func local(r *http.Request) bool {
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(header) != "" {
			return false
		}
	}
	if crossOrigin.Check(r) != nil || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return false
	}
	return loopback(r.RemoteAddr) && loopback(r.Host)
}

// loopback reports whether an address, with or without a port, is of this host.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
